"""The corpus of translation: pairs read, cleaned, split, encoded and made into rows, or rows that
`mhsh prepare` has made.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import grain
import numpy as np
from etils import epath
from jaxtyping import Int64

from mhsh.config.schema import ModelConfig, TranslationDataConfig
from mhsh.data.batches import Batch, ProcessRows
from mhsh.data.corpus import Corpus, fingerprint_of
from mhsh.data.entropy import entropy_of_counts
from mhsh.data.prepared import open_prepared, prepared_folder
from mhsh.data.pretraining.packing import Rows
from mhsh.data.shards import StoredRows
from mhsh.data.splits import SPLITS, TRAIN, VALIDATION
from mhsh.data.tokenizers.subword import SubwordTokenizer, load_fitting_subword, train_subword
from mhsh.data.translation.buckets import RowsInMemory, RowSource, bucketed_steps, buckets, packed_steps, validation_batches
from mhsh.data.translation.packing import encode_rows, split_counts
from mhsh.data.translation.pairs import CleaningCounts, Pair, check_split, read_pairs, split_pairs, validation_pairs
from mhsh.errors import UserError
from mhsh.run_folder import TOKENIZER_FILE


@dataclasses.dataclass(frozen=True)
class Split:
    """The rows of training or of validation."""

    rows: RowSource
    by_length: dict[int, Int64[np.ndarray, ...]]  # numbers of the rows of each length, the greatest being S = T


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationCorpus(Corpus):
    """Rows of sentence pairs; an epoch is each pair once.

    Batches have int32 `inputs`, `inputs_position`, `inputs_segmentation` [B,S], `decoder_inputs`,
    `targets`, `targets_position`, `targets_segmentation` [B,T], and float32 `weights` [B,T], 1
    where there is a target. With data.layout = bucketed a batch has S = T = data.sequence_length /
    n tokens in B n rows, n one of 8, 4, 2 and 1, so epochs do not run into each other: see
    `translation_batches.bucketed_steps`.
    """

    data: TranslationDataConfig
    tokenizer: SubwordTokenizer
    train: Split
    validation: Split
    counts: Mapping[str, Any]  # what was read, left out and kept, as plain numbers

    @property
    def num_train_rows(self) -> int:
        """The rows of one epoch: several pairs each where they are packed, one where they are
        bucketed.
        """
        return len(self.train.rows)

    def summary(self) -> dict[str, Any]:
        """The counts as plain numbers, for run.json and for people."""
        return {
            "vocab_size": self.tokenizer.vocab_size,
            "vocab_fingerprint": self.tokenizer.fingerprint,
            "unigram_entropy": self.unigram_entropy,
            **self.counts,
        }

    def save_vocab(self, folder: epath.PathLike) -> None:
        """Writes tokenizer.json."""
        self.tokenizer.save(epath.Path(folder) / TOKENIZER_FILE)

    def train_steps(self, batch_size: int, rows: ProcessRows | None = None) -> grain.MapDataset[Batch]:
        """As `Corpus.train_steps`; bucketed epochs leave out the pairs that fill no batch, other
        ones each time.
        """
        train, seed = self.train, self.data.seed
        if self.data.layout == "packed":
            return packed_steps(train.rows, train.by_length, batch_size, seed, rows)
        return bucketed_steps(train.rows, buckets(train.by_length, batch_size), seed, rows)

    def validation_batches(self, batch_size: int, rows: ProcessRows | None = None) -> grain.MapDataset[Batch]:
        """As `Corpus.validation_batches`."""
        return validation_batches(self.validation.rows, buckets(self.validation.by_length, batch_size), rows)

    def validation_pairs(self, count: int | None) -> list[Pair]:
        """The first `count` pairs of the validation rows (None: all), as text again."""
        found: list[Pair] = []
        for number in range(len(self.validation.rows)):
            row = self.validation.rows[number]
            for segment in range(1, int(row["inputs_segmentation"].max()) + 1):
                if len(found) == count:
                    return found
                sides = (row[side][row[f"{side}_segmentation"] == segment] for side in ("inputs", "targets"))
                # Every sentence ends with its end mark.
                found.append(Pair(*(self.tokenizer.decode(side[:-1].tolist()) for side in sides)))
        return found

    def check_batch(self, batch_size: int) -> None:
        """As `Corpus.check_batch`; of a bucketed corpus every pair must have a batch that it can be
        in.
        """
        if self.data.layout == "packed":
            super().check_batch(batch_size)
            return
        last = buckets(self.train.by_length, batch_size)[-1]
        if len(last.rows) < last.batch_size:
            raise UserError(
                f"train.batch_size = {batch_size}: the {len(last.rows)} longest training pairs of data.source fill no batch "
                f"of {last.length} tokens, and would never be learnt; lower train.batch_size or data.sequence_length, "
                "or give more pairs"
            )


def load_translation(
    model: ModelConfig, data: TranslationDataConfig, saved_vocab: epath.PathLike | None = None
) -> TranslationCorpus:
    """Reads data.source and makes the rows of both splits, or opens the rows that `mhsh prepare`
    has made of another source.

    The vocabulary is that of `saved_vocab` (the tokenizer.json of a run folder) where given, else
    of data.vocab_path, else learnt from the training pairs alone. Prepared rows have their own, and
    no other fits them.

    Raises:
      UserError: whatever is wrong with the source, the vocabulary or their fit to the config; a
        split without pairs.
    """
    folder = prepared_folder(data)
    if folder is not None:
        return _prepared(folder, model, data, saved_vocab)
    cleaning = CleaningCounts()
    pairs: dict[str, list[Pair]] = {split: [] for split in SPLITS}
    for split, pair in split_pairs(read_pairs(data.source), validation_pairs(data), data, cleaning):
        pairs[split].append(pair)
    check_split({split: len(found) for split, found in pairs.items()}, data, cleaning)
    tokenizer = _tokenizer(model, data, pairs[TRAIN], saved_vocab)
    encoded = {split: encode_rows(tokenizer, pairs[split], data) for split in SPLITS}
    counts = {split: split_counts(sums, data, split) for split, (_, sums) in encoded.items()}
    named = {f"{split}/{length}": rows for split, (groups, _) in encoded.items() for length, rows in groups.items()}
    return TranslationCorpus(
        data=data,
        tokenizer=tokenizer,
        train=_in_memory(encoded[TRAIN][0]),
        validation=_in_memory(encoded[VALIDATION][0]),
        fingerprint=fingerprint_of([tokenizer.fingerprint.encode()], named),
        unigram_entropy=entropy_of_counts(encoded[TRAIN][1]["target_counts"]),
        counts=dataclasses.asdict(cleaning) | counts,
    )


def _tokenizer(
    model: ModelConfig, data: TranslationDataConfig, train: Iterable[Pair], saved_vocab: epath.PathLike | None
) -> SubwordTokenizer:
    if saved_vocab is not None and not epath.Path(saved_vocab).exists():
        raise UserError(f"the run's vocabulary {saved_vocab} is missing; put it back from a copy, or start another run folder")
    if saved_vocab is None and not data.vocab_path:
        return train_subword(data.tokenizer, [text for pair in train for text in pair], model.vocab_size)
    return load_fitting_subword(epath.Path(saved_vocab or data.vocab_path).expanduser(), data.tokenizer, model.vocab_size)


def _in_memory(groups: Mapping[int, Rows]) -> Split:
    sizes = [len(rows["inputs"]) for rows in groups.values()]
    starts = np.cumsum([0, *sizes])
    numbers = {length: np.arange(start, start + size) for length, start, size in zip(groups, starts, sizes, strict=False)}
    return Split(RowsInMemory(list(groups.values())), numbers)


def _prepared(
    folder: Path, model: ModelConfig, data: TranslationDataConfig, saved_vocab: epath.PathLike | None
) -> TranslationCorpus:
    wanted = {"model.objective": model.objective, "data.layout": data.layout, "data.sequence_length": data.sequence_length}
    load = functools.partial(load_fitting_subword, kind=data.tokenizer, vocab_size=model.vocab_size)
    prepared = open_prepared(folder, data, wanted, load, TOKENIZER_FILE, saved_vocab)
    return TranslationCorpus(
        data=data,
        tokenizer=prepared.tokenizer,
        train=_stored(prepared.train, data),
        validation=_stored(prepared.validation, data),
        fingerprint=prepared.fingerprint,
        unigram_entropy=prepared.train.meta["unigram_entropy"],
        counts=prepared.train.meta["counts"],
    )


def _stored(rows: StoredRows, data: TranslationDataConfig) -> Split:
    found: dict[int, list[np.ndarray]] = {data.sequence_length: []}
    for shapes, numbers in rows.groups:
        found.setdefault(shapes["inputs"][0], []).append(np.arange(numbers.start, numbers.stop))
    return Split(rows, {length: np.concatenate([*parts, np.zeros(0, np.int64)]) for length, parts in found.items()})
