"""From a source to the examples of a corpus: what each kind of corpus defines, and loading it.

`mhsh prepare` (prepare.py) does the same chunk by chunk and leaves the examples on disk. Loading in
memory is preparing one chunk in memory.
"""

from __future__ import annotations

import abc
import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from etils import epath

from mhsh.config.schema import DataConfig, ModelConfig, TranslationDataConfig
from mhsh.data.bucket_copies import local_copy
from mhsh.data.shards import StoredTable
from mhsh.data.splits import SPLITS, TRAIN, VALIDATION, overlap
from mhsh.data.tables import ArrayTable, Examples, Table, fingerprint_of
from mhsh.data.verification import verify_once
from mhsh.errors import UserError
from mhsh.files import expanded

Item = tuple[str, ...]  # one item of a source: the text of a document, or both sides of a pair
Log = Callable[[str], None]  # takes a line about the progress


@runtime_checkable
class AnyTokenizer(Protocol):
    """What every tokenizer has."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    def save(self, path: epath.PathLike) -> None: ...


TaskTokenizer = TypeVar("TaskTokenizer", bound=AnyTokenizer)

# Fields that must be empty where the examples are prepared, as the preparation has used them.
_USED_BY_PREPARATION = ("validation_source", "vocab_path")


@dataclasses.dataclass(frozen=True)
class Task(abc.ABC, Generic[TaskTokenizer]):
    """How the items of a source become the examples of one kind of corpus.

    It may be sent to other processes.
    """

    items: ClassVar[str]  # the name of the items: pairs, documents
    item_size: ClassVar[int]  # the texts of an item
    item_end: ClassVar[str]  # ends an item in a chunk's file; no item contains it
    items_per_shard: ClassVar[int]  # unless --per-shard is given
    vocab_file: ClassVar[str]
    compression: ClassVar[str]  # of the shards: shards.ZSTD or shards.UNCOMPRESSED
    new_counts: ClassVar[Callable[[], Any]]  # makes a dataclass of zeros for `split` to count in

    model: ModelConfig
    data: DataConfig | TranslationDataConfig

    @property
    def min_items(self) -> int:
        """The fewest items of a chunk. Fewer at the end of a split go into the chunk before."""
        return 1

    @abc.abstractmethod
    def job(self) -> dict[str, Any]:
        """All plain values that decide the bytes, except the items and the chunks."""

    @abc.abstractmethod
    def layout(self) -> dict[str, Any]:
        """The config fields that a run must share with the preparation of its examples."""

    @abc.abstractmethod
    def streams(self) -> Sequence[Iterable[Item]]:
        """All items in a fixed order, read on demand. Raises UserError for a bad source."""

    @abc.abstractmethod
    def split(self, streams: Sequence[Iterable[Item]], counts: Any) -> Iterator[tuple[str, Item]]:
        """The split and the cleaned form of every item that is kept. Adds to `counts` as it goes.

        Raises:
          UserError: (at the end) a split has too few items.
        """

    @abc.abstractmethod
    def new_tokenizer(self, texts: Iterable[str], log: Log) -> TaskTokenizer:
        """The vocabulary that the config names, or one trained on `texts`.

        Args:
          texts: those of the training split. They may be read twice.
        """

    @abc.abstractmethod
    def read_tokenizer(self, path: epath.PathLike) -> TaskTokenizer:
        """The vocabulary of a file. Raises UserError where it does not fit the config."""

    @abc.abstractmethod
    def encode(
        self, items: Sequence[Item], split: str, chunk: int, tokenizer: TaskTokenizer
    ) -> tuple[dict[str, Examples], dict[str, Any]]:
        """The examples of a chunk of items, and sums that those of other chunks are added to.

        Args:
          chunk: the number of the chunk in its split. A corpus in memory is chunk 0.

        Returns:
          groups of examples with equal shapes, by a name that the fingerprint includes; and
          numbers or arrays.
        """

    @abc.abstractmethod
    def summarize(self, sums: Mapping[str, Any], split: str, tokenizer: TaskTokenizer) -> tuple[dict[str, Any], float]:
        """The sums of a split as plain numbers for people, and its unigram entropy.

        Raises:
          UserError: the split has no examples.
        """

    @abc.abstractmethod
    def describe(self, counts: Mapping[str, Any]) -> Iterator[str]:
        """The counts in words, line by line."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedExamples(Generic[TaskTokenizer]):
    """The examples of both splits, and what a corpus says about them."""

    tokenizer: TaskTokenizer
    train: Table
    validation: Table
    fingerprint: str
    unigram_entropy: float
    counts: Mapping[str, Any]  # what was read and left out, `overlap` (see splits.py), and the counts of each split


def load_examples(task: Task[TaskTokenizer], saved_vocab: epath.PathLike | None) -> LoadedExamples[TaskTokenizer]:
    """Reads data.source and makes its examples, or opens those that `mhsh prepare` has made.

    Equal arguments and text give equal examples in every process.

    Args:
      saved_vocab: the vocabulary of the run, where it has one. Otherwise it is that of
        data.vocab_path, or trained on the training split alone. Prepared examples have their own.

    Raises:
      UserError: whatever is wrong with the source, the vocabulary or their fit to the config; a
        split without examples.
    """
    if saved_vocab is not None and not epath.Path(saved_vocab).exists():
        raise UserError(f"the run's vocabulary {saved_vocab} is missing; put it back from a copy, or start another run folder")
    kind, _, folder = task.data.source.partition(":")
    if kind == "arrayrecord" and folder:
        return _open_prepared(expanded(folder), task, saved_vocab)
    counts = task.new_counts()
    items: dict[str, list[Item]] = {split: [] for split in SPLITS}
    for split, item in task.split(task.streams(), counts):
        items[split].append(item)
    if saved_vocab is None:
        tokenizer = task.new_tokenizer([text for item in items[TRAIN] for text in item], lambda line: None)
    else:
        tokenizer = task.read_tokenizer(saved_vocab)
    encoded = {split: task.encode(items[split], split, 0, tokenizer) for split in SPLITS}
    summaries = {split: task.summarize(sums, split, tokenizer) for split, (_, sums) in encoded.items()}
    named = {name: examples for groups, _ in encoded.values() for name, examples in groups.items()}
    return LoadedExamples(
        tokenizer=tokenizer,
        train=ArrayTable([*encoded[TRAIN][0].values()]),
        validation=ArrayTable([*encoded[VALIDATION][0].values()]),
        fingerprint=fingerprint_of([tokenizer.fingerprint.encode()], named),
        unigram_entropy=summaries[TRAIN][1],
        counts=dataclasses.asdict(counts)
        | {"overlap": overlap(items[TRAIN], items[VALIDATION])}
        | {split: plain for split, (plain, _) in summaries.items()},
    )


def _open_prepared(
    folder: epath.Path, task: Task[TaskTokenizer], saved_vocab: epath.PathLike | None
) -> LoadedExamples[TaskTokenizer]:
    """The examples of a prepared folder, read on demand. Those of a bucket are copied first.

    Raises:
      UserError: the folder is unfinished or damaged, its examples or vocabulary are not those of
        the config or the run, or the config sets what the preparation has decided.
    """
    for name in _USED_BY_PREPARATION:
        if value := getattr(task.data, name, ""):
            raise UserError(
                f"data.{name} = {value!r}, but data.source = {task.data.source!r} has its own, from when it was prepared; "
                f"empty data.{name}"
            )
    train, validation = (StoredTable(local_copy(folder / split)) for split in (TRAIN, VALIDATION))
    for table in (train, validation):
        verify_once(table.folder, table.shards)
    # The index of translation does not name its objective: it is older than the others.
    meta = {"objective": "translation"} | train.meta
    for name, value in ({"model.objective": task.model.objective} | task.layout()).items():
        there = meta[name.partition(".")[2]]
        if there != value:
            raise UserError(
                f"{folder} was prepared with {name} = {there!r}, not {value!r}; set it to that, or prepare again into another "
                "folder"
            )
    path = folder / task.vocab_file
    tokenizer = task.read_tokenizer(path)
    if saved_vocab is not None and task.read_tokenizer(saved_vocab).fingerprint != tokenizer.fingerprint:
        raise UserError(f"{path} is not the vocabulary of the run, {saved_vocab}; put back the folder the run began with")
    parts = (tokenizer.fingerprint, train.fingerprint, validation.fingerprint)
    return LoadedExamples(
        tokenizer=tokenizer,
        train=train,
        validation=validation,
        fingerprint=hashlib.sha256(" ".join(parts).encode()).hexdigest(),
        unigram_entropy=train.meta["unigram_entropy"],
        counts=train.meta["counts"],
    )
