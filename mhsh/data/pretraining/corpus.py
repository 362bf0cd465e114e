"""The corpus of pre-training: rows made of text at start, or made by `mhsh prepare`; masked as they
are batched.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grain
import numpy as np
from etils import epath
from jaxtyping import Float32, Int64

from mhsh.config.schema import DataConfig, ModelConfig
from mhsh.data import sources
from mhsh.data.batches import Batch, ProcessRows, process_positions
from mhsh.data.corpus import Corpus, fingerprint_of
from mhsh.data.prepared import open_prepared, prepared_folder
from mhsh.data.pretraining.documents import DocumentCounts, check_split, split_documents
from mhsh.data.pretraining.masking import MaskingRule, mask_rows
from mhsh.data.pretraining.packing import ArrayTable, RowTable, full_rows
from mhsh.data.pretraining.rows import encode_documents, prepared_with, rows_entropy, split_counts
from mhsh.data.pretraining.vocabulary import new_vocabulary, read_vocabulary
from mhsh.data.random_numbers import keys, shuffled
from mhsh.data.seeds import MASKING, ROW_ORDER, VALIDATION_MASKING, derived_seed
from mhsh.data.splits import SPLITS, TRAIN, VALIDATION
from mhsh.data.tokenizers.wordpiece import Tokenizer
from mhsh.errors import UserError
from mhsh.run_folder import WORDPIECE_FILE


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingCorpus(Corpus):
    """The rows that a run trains and validates on; see `rows.Rows` for their arrays."""

    model: ModelConfig
    data: DataConfig
    tokenizer: Tokenizer
    train: RowTable
    validation: RowTable
    counts: Mapping[str, Any]  # what was read, left out and kept, as plain numbers

    @property
    def num_train_rows(self) -> int:
        """R."""
        return len(self.train)

    def summary(self) -> dict[str, Any]:
        """The counts as plain numbers, for run.json and for people."""
        return {"vocab_size": self.tokenizer.vocab_size, "unigram_entropy": self.unigram_entropy, **self.counts}

    def save_vocab(self, folder: epath.PathLike) -> None:
        """Writes vocab.txt."""
        self.tokenizer.save(epath.Path(folder) / WORDPIECE_FILE)

    def train_steps(self, batch_size: int, rows: ProcessRows | None = None) -> grain.MapDataset[Batch]:
        """As `Corpus.train_steps`; an epoch is each of the R training rows once, and masking is
        drawn anew in each.

        Returns:
          Batches of int32 `inputs`, `inputs_position`, `inputs_segmentation` [B,T], `token_types`
          [B,T] and `next_sentence` [B] where the model has them, and `targets`; mlm: `targets`,
          `targets_position` [B,P] and float32 `weights` [B,P]; clm: `targets` [B,T] and `weights`
          [B,T], all 1; with next_sentence `row_weights` [B] float32, all 1.
        """
        order_seed, masking_seed = (derived_seed(self.data.seed, purpose) for purpose in (ROW_ORDER, MASKING))
        rule = MaskingRule.of(self.tokenizer, self.data)

        def batch_of(step: int) -> Batch:
            positions = np.array(process_positions(step * batch_size, batch_size, rows))
            numbers, epochs = shuffled(positions, len(self.train), order_seed)
            return self._batch(self.train, numbers, epochs, masking_seed, rule, np.ones(len(positions), np.float32))

        return grain.MapDataset.range(sys.maxsize // batch_size).map(batch_of)

    def validation_batches(self, batch_size: int, rows: ProcessRows | None = None) -> grain.MapDataset[Batch]:
        """As `Corpus.validation_batches`: ceil(R / B) of them, always masked alike; in filler rows
        `row_weights` are 0 too.
        """
        num_rows, seed = len(self.validation), derived_seed(self.data.seed, VALIDATION_MASKING)
        rule = MaskingRule.of(self.tokenizer, self.data)

        def batch_of(step: int) -> Batch:
            positions = np.array(process_positions(step * batch_size, batch_size, rows))
            rounds, numbers = np.divmod(positions, num_rows)
            return self._batch(self.validation, numbers, rounds, seed, rule, (rounds == 0).astype(np.float32))

        return grain.MapDataset.range(-(-num_rows // batch_size)).map(batch_of)

    def _batch(
        self,
        table: RowTable,
        numbers: Int64[np.ndarray, " B"],
        epochs: Int64[np.ndarray, " B"],
        seed: int,
        rule: MaskingRule,
        row_weights: Float32[np.ndarray, " B"],
    ) -> Batch:
        """Rows by their numbers, masked by random numbers that hang on seed, row and epoch
        alone.
        """
        batch = full_rows(table.take(numbers), self.model)
        if self.model.objective == "clm":
            batch["weights"] = np.ones(batch["targets"].shape, np.float32)
        else:
            batch |= mask_rows(batch["inputs"], keys(seed, numbers, epochs), rule)
        batch["weights"] *= row_weights[:, None]
        if self.model.next_sentence:
            batch["row_weights"] = row_weights
        return batch


def load_pretraining(model: ModelConfig, data: DataConfig, saved_vocab: epath.PathLike | None = None) -> PretrainingCorpus:
    """Reads data.source and makes the rows of both splits, or opens the rows that `mhsh prepare`
    has made of another source.

    Equal arguments and text give equal corpora, in every process. The vocabulary is that of
    `saved_vocab` (the vocab.txt of a run folder) where given, else of data.vocab_path, else trained
    on the training documents alone. Prepared rows have their own, and no other fits them.

    Raises:
      UserError: whatever is wrong with the source, the vocabulary or their fit to the config; a
        split without rows.
    """
    if saved_vocab is not None and not epath.Path(saved_vocab).exists():
        raise UserError(f"the run's vocabulary {saved_vocab} is missing; put it back from a copy, or start another run folder")
    folder = prepared_folder(data)
    if folder is not None:
        return _prepared(folder, model, data, saved_vocab)
    counts = DocumentCounts()
    documents: dict[str, list[str]] = {split: [] for split in SPLITS}
    for split, document in split_documents(sources.documents(data.source), data, counts):
        documents[split].append(document)
    check_split({split: len(found) for split, found in documents.items()}, model, data, counts)
    if saved_vocab is None:
        tokenizer = new_vocabulary(documents[TRAIN], model, data)
    else:
        tokenizer = read_vocabulary(saved_vocab, model, data)
    encoded = {split: encode_documents(documents[split], tokenizer, model, data, split, 0) for split in SPLITS}
    rows = {split: rows for split, (rows, _) in encoded.items()}
    return PretrainingCorpus(
        model=model,
        data=data,
        tokenizer=tokenizer,
        train=ArrayTable(rows[TRAIN]),
        validation=ArrayTable(rows[VALIDATION]),
        fingerprint=fingerprint_of([tokenizer.fingerprint.encode()], rows),
        unigram_entropy=rows_entropy(encoded[TRAIN][1], tokenizer, model),
        counts=dataclasses.asdict(counts)
        | {split: split_counts(sums, tokenizer, data, split) for split, (_, sums) in encoded.items()},
    )


def _prepared(folder: Path, model: ModelConfig, data: DataConfig, saved_vocab: epath.PathLike | None) -> PretrainingCorpus:
    load = functools.partial(read_vocabulary, model=model, data=data)
    prepared = open_prepared(folder, data, prepared_with(model, data), load, WORDPIECE_FILE, saved_vocab)
    return PretrainingCorpus(
        model=model,
        data=data,
        tokenizer=prepared.tokenizer,
        train=prepared.train,
        validation=prepared.validation,
        fingerprint=prepared.fingerprint,
        unigram_entropy=prepared.train.meta["unigram_entropy"],
        counts=prepared.train.meta["counts"],
    )
