"""Batches as a pure function of the step: grain datasets of masked, shuffled, sliced training and validation rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import grain
import numpy as np
from jaxtyping import Float32

from mhsh.config import DataConfig, ModelConfig
from mhsh.data.corpus import Corpus
from mhsh.data.masking import MaskingRule, mask_row
from mhsh.data.rows import Rows
from mhsh.data.seeds import MASKING, ROW_ORDER, VALIDATION_MASKING, derived_seed

# Batches made ahead of the step that needs them, and the threads that make them. The work is many short numpy calls under one
# interpreter lock: a second thread would add waiting, not speed.
_BATCHES_AHEAD = 4
_THREADS = 1

Batch = dict[str, np.ndarray]


def train_steps(
    corpus: Corpus, model: ModelConfig, data: DataConfig, batch_size: int, rows: slice | None = None
) -> grain.MapDataset[Batch]:
    """A dataset whose element k is the batch of training step k, for any k: a pure function of (corpus.fingerprint, data.seed, k).

    Epochs follow each other without a seam: step k takes the positions k B to k B + B - 1 of an endless stream in which every
    run of R rows (R: the training rows) is one epoch, each row once, in an order of its own. Masking is drawn anew each epoch.

    Args:
      batch_size: B, rows of the whole step.
      rows: the rows of the batch that this process makes; the slices of all processes, put together, are the whole batch.

    Returns:
      Batches of int32 `inputs`, `inputs_position`, `inputs_segmentation` [B,T], `token_types` [B,T] and `next_sentence` [B]
      where the model has them, and `targets`; mlm: `targets`, `targets_position` [B,P] and float32 `weights` [B,P]; clm:
      `targets` [B,T] and `weights` [B,T], all 1; with next_sentence `row_weights` [B] float32, all 1.
    """
    stream = _records(corpus, corpus.train, model, data, derived_seed(data.seed, MASKING))
    stream = stream.shuffle(seed=derived_seed(data.seed, ROW_ORDER)).repeat()

    def finish(batch: Batch, positions: range) -> None:
        _add_weights(batch, np.ones(len(positions), np.float32), model)

    return _batches(stream, len(stream) // batch_size, batch_size, rows, finish)


def validation_batches(
    corpus: Corpus, model: ModelConfig, data: DataConfig, batch_size: int, rows: slice | None = None
) -> grain.MapDataset[Batch]:
    """All validation rows in order, always masked alike, as ceil(R / B) batches with the keys of `train_steps`.

    Where the last batch would be short, it is filled with rows whose `weights` (and `row_weights`) are all 0: no metric that
    is weighted by them counts a row twice, and the batch keeps its shape.
    """
    stream = _records(corpus, corpus.validation, model, data, derived_seed(data.seed, VALIDATION_MASKING))
    num_rows = len(stream)

    def finish(batch: Batch, positions: range) -> None:
        _add_weights(batch, (np.array(positions) < num_rows).astype(np.float32), model)

    return _batches(stream, -(-num_rows // batch_size), batch_size, rows, finish)


def prefetched(steps: grain.MapDataset[Batch], start: int, stop: int) -> grain.DatasetIterator[Batch]:
    """The batches of steps `start` to `stop` - 1 in order, made ahead of time by a thread; an error there is raised here.

    Close the iterator (`.close()`) when it is left before its end; its thread ends with it.
    """
    options = grain.ReadOptions(num_threads=_THREADS, prefetch_buffer_size=_BATCHES_AHEAD)
    return iter(steps.slice(slice(start, stop)).to_iter_dataset(options))


def _batches(
    stream: grain.MapDataset[Batch],
    num_batches: int,
    batch_size: int,
    rows: slice | None,
    finish: Callable[[Batch, range], None],
) -> grain.MapDataset[Batch]:
    """Batch k is made of the positions k B to k B + B - 1 of the stream, of which only this process's `rows` are read.

    grain's own `.batch()` would make every row in every process. `finish` adds to a batch what hangs on its positions.
    """
    mine = range(batch_size)[rows if rows is not None else slice(None)]

    def batch_of(step: int) -> Batch:
        positions = range(step * batch_size + mine.start, step * batch_size + mine.stop, mine.step)
        # grain's None stands for a filtered record; nothing here filters.
        records = [cast(Batch, stream[position]) for position in positions]
        batch = {name: np.array([record[name] for record in records]) for name in records[0]}
        finish(batch, positions)
        return batch

    return grain.MapDataset.range(num_batches).map(batch_of)


def _records(corpus: Corpus, rows: Rows, model: ModelConfig, data: DataConfig, seed: int) -> grain.MapDataset[Batch]:
    """One epoch of rows in their own order, masked by random numbers that depend on seed, row and epoch alone."""

    def row_of(index: int) -> Batch:
        return {name: values[index] for name, values in rows.items()}

    # MapDataset.source would do the same, and take twice as long over its read metrics as over reading from memory.
    stream = grain.MapDataset.range(len(rows["inputs"])).map(row_of)
    if model.objective == "clm":
        return stream
    rule = MaskingRule.of(corpus.tokenizer, data)
    return stream.random_map(lambda row, rng: mask_row(row, rng, rule), seed=seed)


def _add_weights(batch: Batch, row_weights: Float32[np.ndarray, " B"], model: ModelConfig) -> None:
    """The weight of each row on each of its predictions, and by itself where the row as a whole is predicted on."""
    if model.objective == "clm":
        batch["weights"] = np.ones(batch["targets"].shape, np.float32)
    batch["weights"] *= row_weights[:, None]
    if model.next_sentence:
        batch["row_weights"] = row_weights
