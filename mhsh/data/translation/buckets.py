"""Batches of translation rows: one stream of packed rows, or buckets of rows of like length, as a
pure function of the step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol, cast, runtime_checkable

import grain
import numpy as np
from jaxtyping import Float32, Int64

from mhsh.data.batches import Batch, ProcessRows, batches_of_rows, process_positions, stacked
from mhsh.data.pretraining.packing import Rows
from mhsh.data.seeds import BATCH_ORDER, ROW_ORDER, derived_seed


@runtime_checkable
class RowSource(Protocol):
    """Rows by their number, in memory or on disk."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Batch: ...


class RowsInMemory:
    """Groups of rows of different lengths, numbered through."""

    def __init__(self, groups: Sequence[Rows]) -> None:
        self._groups = [group for group in groups if len(group["inputs"])]
        self._ends = np.cumsum([len(group["inputs"]) for group in self._groups], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int) -> Batch:
        """The arrays of row `index`."""
        number = int(self._ends.searchsorted(index, "right"))
        group = self._groups[number]
        return {name: values[index - self._ends[number]] for name, values in group.items()}


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Rows that make batches of their own."""

    length: int  # S = T of its batches
    batch_size: int  # rows of a whole batch
    rows: Int64[np.ndarray, " R"]  # numbers of the rows, none of which is longer


def buckets(by_length: Mapping[int, Int64[np.ndarray, ...]], batch_size: int) -> list[Bucket]:
    """The buckets of an epoch, the shortest first: rows of T / n tokens in batches of B n, so that
    all batches are of like cost.

    Rows too few for one batch of their length join those of the next length, which needs fewer. So
    only the last bucket may be smaller than its batch.

    Args:
      by_length: the numbers of the rows of each length; the greatest length is T.
      batch_size: B, rows of the greatest length.
    """
    longest = max(by_length)
    found: list[Bucket] = []
    waiting = np.zeros(0, np.int64)
    for length in sorted(by_length):
        waiting = np.concatenate([waiting, by_length[length]])
        size = batch_size * longest // length
        if len(waiting) and (len(waiting) >= size or length == longest):
            found.append(Bucket(length, size, waiting))
            waiting = waiting[:0]
    return found


def packed_steps(
    rows: RowSource, by_length: Mapping[int, Int64[np.ndarray, ...]], batch_size: int, seed: int, mine: ProcessRows | None
) -> grain.MapDataset[Batch]:
    """Element k is the batch of step k, of an endless stream of epochs without a seam; all rows
    have one length.
    """
    ((length, numbers),) = by_length.items()
    order = grain.MapDataset.range(len(numbers)).shuffle(seed=derived_seed(seed, ROW_ORDER)).repeat()
    stream = order.map(lambda position: _record(rows, int(numbers[position]), length))

    def finish(batch: Batch, positions: range) -> None:
        _add_weights(batch, np.ones(len(positions), np.float32))

    return batches_of_rows(stream, len(order) // batch_size, batch_size, mine, finish)


def bucketed_steps(rows: RowSource, epoch: Sequence[Bucket], seed: int, mine: ProcessRows | None) -> grain.MapDataset[Batch]:
    """Element k is the batch of step k: every epoch has the same number of whole batches, of all
    buckets in a shuffled order.

    In an epoch every bucket's rows are shuffled anew and every row is read once, except for those
    at the end that fill no
    batch: fewer than a batch of each bucket, and other ones each epoch.
    """
    counts = np.array([len(bucket.rows) // bucket.batch_size for bucket in epoch])
    ends = np.cumsum(counts)
    order = grain.MapDataset.range(int(ends[-1])).shuffle(seed=derived_seed(seed, BATCH_ORDER)).repeat()
    row_order_seed = derived_seed(seed, ROW_ORDER)
    streams = [_bucket_stream(rows, bucket).shuffle(seed=row_order_seed).repeat() for bucket in epoch]

    def batch_of(step: int) -> Batch:
        number = cast(int, order[step])  # never None: nothing here filters
        which = int(ends.searchsorted(number, "right"))
        bucket = epoch[which]
        epochs_before = step // int(ends[-1]) * len(bucket.rows)
        first = epochs_before + (number - int(ends[which] - counts[which])) * bucket.batch_size
        positions = process_positions(first, bucket.batch_size, mine)
        batch = stacked(streams[which], positions)
        _add_weights(batch, np.ones(len(positions), np.float32))
        return batch

    return grain.MapDataset.range(len(order)).map(batch_of)


def validation_batches(rows: RowSource, epoch: Sequence[Bucket], mine: ProcessRows | None) -> grain.MapDataset[Batch]:
    """Every row once, bucket by bucket in order; a bucket's last batch is filled with its first
    rows, at weight 0.
    """
    ends = np.cumsum([-(-len(bucket.rows) // bucket.batch_size) for bucket in epoch])
    streams = [_bucket_stream(rows, bucket) for bucket in epoch]

    def batch_of(number: int) -> Batch:
        which = int(ends.searchsorted(number, "right"))
        bucket = epoch[which]
        first = (number - (int(ends[which - 1]) if which else 0)) * bucket.batch_size
        positions = process_positions(first, bucket.batch_size, mine)
        batch = stacked(streams[which], positions)
        _add_weights(batch, (np.array(positions) < len(bucket.rows)).astype(np.float32))
        return batch

    return grain.MapDataset.range(int(ends[-1])).map(batch_of)


def _bucket_stream(rows: RowSource, bucket: Bucket) -> grain.MapDataset[Batch]:
    return grain.MapDataset.range(len(bucket.rows)).map(lambda position: _record(rows, int(bucket.rows[position]), bucket.length))


def _record(rows: RowSource, number: int, length: int) -> Batch:
    """A row as int32, padded at its end where its batch is longer."""
    record = {}
    for name, values in rows[number].items():
        record[name] = np.zeros(length, np.int32)
        record[name][: len(values)] = values
    return record


def _add_weights(batch: Batch, row_weights: Float32[np.ndarray, " B"]) -> None:
    batch["weights"] = (batch["targets_segmentation"] > 0) * row_weights[:, None]
