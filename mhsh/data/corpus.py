"""The text that a run trains on. A `Task` is one kind of corpus: it knows how a source becomes
examples, and how examples become batches. A `Corpus` is what it has loaded.

Nothing here imports jax or grain: `mhsh prepare` runs tasks in many processes.
"""

from __future__ import annotations

import abc
import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from etils import epath

from mhsh.config.recorded import identity
from mhsh.config.schema import AnyDataConfig, DataConfig, ModelConfig, TranslationDataConfig
from mhsh.data.batches import Batch, Batches, MakeBatch, Selection, ordered_batches, shuffled_batches
from mhsh.data.local_shards import open_table
from mhsh.data.random_numbers import is_held_out
from mhsh.data.shards import REMEDY, read_index
from mhsh.data.subword import SubwordTokenizer
from mhsh.data.tables import SPLITS, TRAIN, VALIDATION, ArrayTable, Examples, ExampleTable, fingerprint_of, overlap
from mhsh.data.wordpiece import Tokenizer
from mhsh.errors import UserError
from mhsh.storage.files import expand_user
from mhsh.storage.questions import exists

Item = tuple[str, ...]  # one item of a source: the text of a document, or both sides of a pair
Log = Callable[[str], None]  # takes a line about the progress
TokenizerT = TypeVar("TokenizerT", bound=Tokenizer | SubwordTokenizer)

_ALL = slice(None)
# Fields that must be empty where the examples are prepared, as the preparation has used them.
_PREPARED_FIELDS = ("validation_source", "vocab_path")


@dataclasses.dataclass(frozen=True)
class Task(abc.ABC, Generic[TokenizerT]):
    """One kind of corpus, as a config describes it. It may be sent to other processes."""

    vocab_file: ClassVar[str]  # the vocabulary's name in a run folder
    unknown_remedy: ClassVar[str] = ""  # what to do about unknown characters; empty: there are none

    model: ModelConfig
    data: AnyDataConfig

    @abc.abstractmethod
    def load(self, saved_vocab: epath.PathLike | None = None) -> Corpus[TokenizerT]:
        """The examples of both splits, the same for equal configs and text in every process.

        The vocabulary is `saved_vocab`, that of the run; where it has none, that of data.vocab_path
        or one trained on the training split. Raises UserError where the source or the vocabulary is
        wrong or does not fit the config, or a split has no examples.
        """

    @abc.abstractmethod
    def check_source(self) -> None:
        """Raises UserError where the source is not here, or begins with no example."""

    @abc.abstractmethod
    def read_tokenizer(self, path: epath.PathLike) -> TokenizerT:
        """The vocabulary of a file. Raises UserError where it does not fit the config."""

    def check_tokenizer(self, tokenizer: TokenizerT, what: str, remedy: str = "") -> TokenizerT:
        """Returns the tokenizer. Raises UserError where it has more tokens than the model."""
        if tokenizer.vocab_size > self.model.vocab_size:
            raise UserError(
                f"{what} has {tokenizer.vocab_size} tokens, more than model.vocab_size = {self.model.vocab_size}; "
                + (remedy or f"set model.vocab_size to {tokenizer.vocab_size} or more")
            )
        return tokenizer

    @abc.abstractmethod
    def make_batch(self, tokenizer: TokenizerT, split: str, examples: Examples, chosen: Selection) -> Batch:
        """The batch of the selected examples of a split."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corpus(Generic[TokenizerT]):
    """The examples of training and validation, and the batches made of them."""

    task: Task[TokenizerT]
    tokenizer: TokenizerT
    train: ExampleTable
    validation: ExampleTable
    fingerprint: str  # SHA-256, in hex, over the vocabulary and every example
    unigram_entropy: float  # the loss of a model that knows only how frequent the targets are
    counts: Mapping[str, Any]  # what was read, left out and kept, as plain numbers; with `overlap` (see tables.py)

    def summary(self) -> dict[str, Any]:
        """The counts, the vocabulary and the entropy, for run.json and for people."""
        return {"vocab_size": self.tokenizer.vocab_size, "unigram_entropy": self.unigram_entropy, **self.counts}

    def save_vocab(self, folder: epath.PathLike) -> None:
        """Writes the vocabulary into a run folder."""
        self.tokenizer.save(epath.Path(folder) / self.task.vocab_file)

    def train_steps(self, batch_size: int, part: slice = _ALL) -> Batches:
        """Element k is the batch of training step k, a pure function of (fingerprint, data.seed, k)
        in the order of `batches.shuffled_batches`; `part` of its B examples, of this process.
        """
        return shuffled_batches(self._maker(TRAIN), len(self.train), batch_size, self.task.data.seed, part)

    def validation_batches(self, batch_size: int, part: slice = _ALL) -> Batches:
        """All validation examples in order, with the keys of `train_steps`. A batch that would be
        short is filled with examples of weight 0, which no metric counts.
        """
        return ordered_batches(self._maker(VALIDATION), len(self.validation), batch_size, part)

    def _maker(self, split: str) -> MakeBatch:
        table = self.train if split == TRAIN else self.validation
        return lambda chosen: self.task.make_batch(self.tokenizer, split, table.take(chosen.numbers), chosen)

    def check_batch(self, batch_size: int) -> None:
        """Raises UserError where training has fewer examples than a batch."""
        if len(self.train) < batch_size:
            raise UserError(
                f"train.batch_size = {batch_size} is more than the {len(self.train)} training rows of data.source; lower "
                "train.batch_size or data.sequence_length, or give more text"
            )


class StreamedTask(Task[TokenizerT]):
    """A task whose source is a stream of items, so that its examples can be prepared on disk.

    `mhsh prepare` (prepare.py) does chunk by chunk what `load` does with one chunk in memory.
    """

    items: ClassVar[str]  # the name of the items: pairs, documents
    items_per_shard: ClassVar[int]  # unless --per-shard is given
    compression: ClassVar[str]  # of the shards: shards.ZSTD or shards.UNCOMPRESSED
    count_names: ClassVar[tuple[str, ...]] = ("read", "empty", "duplicates")  # what `split` counts
    training_only_fields: ClassVar[tuple[str, ...]] = ()  # fields of the data section that decide no byte
    split_purpose: ClassVar[int]  # of the seed that decides which items are held out

    data: DataConfig | TranslationDataConfig

    @property
    def min_items(self) -> int:
        """The fewest items of a chunk. Fewer at the end of a split go into the chunk before."""
        return 1

    def job(self) -> dict[str, Any]:
        """All values that decide the bytes, but for the items; a vocabulary by its content."""
        values = identity(self.data, "data")
        fields = {name: value for name, value in values.items() if name not in self.training_only_fields}
        if self.data.vocab_path:
            fields["vocab_path"] = self.configured_tokenizer().fingerprint
        return {"model.vocab_size": self.model.vocab_size, **{f"data.{name}": value for name, value in fields.items()}}

    @abc.abstractmethod
    def layout(self) -> dict[str, Any]:
        """The config fields that a run must share with the preparation of its examples."""

    @abc.abstractmethod
    def streams(self) -> Sequence[Iterable[Item]]:
        """All items in order, read on demand: those that validation has of its own, if any, and
        those of data.source. Raises UserError for a bad source.
        """

    def item_rule(self) -> str:
        """The definition of an item of data.source, in a sentence for errors; empty where it is
        plain.
        """
        return ""

    def clean(self, item: Item) -> Item:
        """Cleans an item, as it is kept. Cleaning it again changes nothing."""
        return item

    def split(self, streams: Sequence[Iterable[Item]], counts: dict[str, int]) -> Iterator[tuple[str, Item]]:
        """The split and the cleaned form of every item with text, each once, adding to `counts`.

        Items that validation has of its own come first and are left out of training. Otherwise
        data.validation_fraction is held out by a hash of the first text (see `is_held_out`), so
        that translations of one sentence stay together. Raises UserError where, at the end, a split
        has too few items.
        """
        *validation_streams, items = streams
        data, sizes = self.data, dict.fromkeys(SPLITS, 0)
        held_out: set[bytes] = set()
        for digest, item in self._distinct_items(
            validation_streams[0] if validation_streams else (), dict.fromkeys(self.count_names, 0)
        ):
            held_out.add(digest)
            sizes[VALIDATION] += 1
            yield VALIDATION, item
        for digest, item in self._distinct_items(items, counts):
            if digest in held_out:
                counts["in_both_splits"] += 1
                continue
            chosen = not validation_streams and is_held_out(item[0], data.validation_fraction, data.seed, self.split_purpose)
            split = VALIDATION if chosen else TRAIN
            sizes[split] += 1
            yield split, item
        for split, size in sizes.items():
            if size < self.min_items:
                given = split == VALIDATION and getattr(data, "validation_source", "")
                source = f"data.validation_source = {given!r}" if given else f"data.source = {data.source!r}"
                words = ", ".join(f"{count} {name}" for name, count in counts.items())
                rule, items = self.item_rule(), self.items[:-1] if size == 1 else self.items
                raise UserError(
                    f"{source} leaves {size} {items} for {split}, which needs {self.min_items} ({words}, "
                    f"data.validation_fraction = {data.validation_fraction}); {rule}give more {self.items}, "
                    "or change data.validation_fraction or data.seed"
                )

    def _distinct_items(self, items: Iterable[Item], counts: dict[str, int]) -> Iterator[tuple[bytes, Item]]:
        """Every item with text, once, and a digest that equal items share (100 bytes an item)."""
        seen: set[bytes] = set()
        for item in items:
            counts["read"] += 1
            cleaned = self.clean(item)
            if not all(cleaned):
                counts["empty"] += 1
                continue
            digest = hashlib.blake2b("\n".join(cleaned).encode(), digest_size=16).digest()
            if digest in seen:
                counts["duplicates"] += 1
                continue
            seen.add(digest)
            yield digest, cleaned

    @abc.abstractmethod
    def new_tokenizer(self, texts: Iterable[str], log: Log) -> TokenizerT:
        """The vocabulary that the config names, or one trained on the texts of the training split,
        which may be read twice.
        """

    @abc.abstractmethod
    def encode(self, items: Sequence[Item], split: str, chunk: int, tokenizer: TokenizerT) -> tuple[Examples, dict[str, Any]]:
        """The examples of the items of a numbered chunk (a corpus in memory is chunk 0), and sums
        (numbers or arrays) that those of other chunks are added to.
        """

    @abc.abstractmethod
    def summarize(self, sums: Mapping[str, Any], split: str, tokenizer: TokenizerT) -> tuple[dict[str, Any], float]:
        """The sums of a split for people, and its unigram entropy. Raises UserError where it has no
        examples, or the vocabulary covers less than half of the training text.
        """

    def configured_tokenizer(self) -> TokenizerT:
        """The vocabulary of data.vocab_path."""
        return self.read_tokenizer(expand_user(self.data.vocab_path))

    def load(self, saved_vocab: epath.PathLike | None = None) -> Corpus[TokenizerT]:
        """Also opens the examples that `mhsh prepare` has made, with their vocabulary."""
        if saved_vocab is not None and not exists(saved_vocab):
            raise UserError(f"the run's vocabulary {saved_vocab} is missing; put it back from a copy, or start another run folder")
        if (folder := self._prepared_folder()) is not None:
            return self._open_prepared(folder, saved_vocab)
        counts = dict.fromkeys(self.count_names, 0)
        items: dict[str, list[Item]] = {split: [] for split in SPLITS}
        for split, item in self.split(self.streams(), counts):
            items[split].append(item)
        if saved_vocab is None:
            tokenizer = self.new_tokenizer([text for item in items[TRAIN] for text in item], lambda line: None)
        else:
            tokenizer = self.read_tokenizer(saved_vocab)
        encoded = {split: self.encode(items[split], split, 0, tokenizer) for split in SPLITS}
        summaries = {split: self.summarize(sums, split, tokenizer) for split, (_, sums) in encoded.items()}
        return Corpus(
            task=self,
            tokenizer=tokenizer,
            train=ArrayTable(encoded[TRAIN][0]),
            validation=ArrayTable(encoded[VALIDATION][0]),
            fingerprint=fingerprint_of([tokenizer.fingerprint.encode()], {split: encoded[split][0] for split in SPLITS}),
            unigram_entropy=summaries[TRAIN][1],
            counts=counts
            | {"overlap": overlap(items[TRAIN], items[VALIDATION])}
            | {split: plain for split, (plain, _) in summaries.items()},
        )

    def check_source(self) -> None:
        if (folder := self._prepared_folder()) is not None:
            read_index(folder / TRAIN)
            return
        for items in self.streams():
            next(iter(items), None)

    def _prepared_folder(self) -> epath.Path | None:
        """The folder of `mhsh prepare` that is the source; None where it is another source."""
        kind, _, folder = self.data.source.partition(":")
        return expand_user(folder) if kind == "arrayrecord" and folder else None

    def _open_prepared(self, folder: epath.Path, saved_vocab: epath.PathLike | None) -> Corpus[TokenizerT]:
        """A prepared folder, read on demand. Raises UserError where it is unfinished, damaged or of
        another config or run, or the config sets what the preparation has decided.
        """
        for name in _PREPARED_FIELDS:
            if value := getattr(self.data, name, ""):
                raise UserError(
                    f"data.{name} = {value!r}, but data.source = {self.data.source!r} has its own, from when it was prepared; "
                    f"empty data.{name}"
                )
        train, validation = (open_table(folder / split) for split in (TRAIN, VALIDATION))
        # The index of translation does not name its objective.
        meta = {"objective": "translation"} | train.meta
        for name, value in ({"model.objective": self.model.objective} | self.layout()).items():
            prepared = meta.get(name.partition(".")[2])
            if prepared != value:
                raise UserError(
                    f"{folder} was prepared with {name} = {prepared!r}, not {value!r}; set it to that, or prepare again into "
                    "another folder"
                )
        tokenizer = self.prepared_tokenizer(folder, train.meta, validation.meta)
        if saved_vocab is not None and self.read_tokenizer(saved_vocab).fingerprint != tokenizer.fingerprint:
            path = folder / self.vocab_file
            raise UserError(f"{path} is not the vocabulary of the run, {saved_vocab}; put back the folder the run began with")
        parts = (tokenizer.fingerprint, train.fingerprint, validation.fingerprint)
        return Corpus(
            task=self,
            tokenizer=tokenizer,
            train=train,
            validation=validation,
            fingerprint=hashlib.sha256(" ".join(parts).encode()).hexdigest(),
            unigram_entropy=train.meta["unigram_entropy"],
            counts=train.meta["counts"],
        )

    def prepared_tokenizer(self, folder: epath.PathLike, train: Mapping[str, Any], validation: Mapping[str, Any]) -> TokenizerT:
        """The vocabulary of a prepared folder, whose indices have these `meta`. Raises UserError
        where it is missing, or the three are not of one preparation, as after a copy over another
        folder.
        """
        folder = epath.Path(folder)
        if not exists(folder / self.vocab_file):
            raise UserError(f"{folder / self.vocab_file} is missing; {REMEDY}")
        tokenizer = self.read_tokenizer(folder / self.vocab_file)
        same_rows = all(validation.get(name) == value for name, value in train.items() if name != "unigram_entropy")
        if not same_rows or train.get("tokenizer_fingerprint", tokenizer.fingerprint) != tokenizer.fingerprint:
            raise UserError(
                f"{folder / (self.vocab_file if same_rows else VALIDATION)} is of another preparation than {folder / TRAIN}; copy "
                "all of one again, or prepare into another folder"
            )
        return tokenizer
