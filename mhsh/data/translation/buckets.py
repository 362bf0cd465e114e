"""Batches of bucketed examples: each batch holds examples of one length, and all batches have the
same number of tokens.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Sequence

import grain
import numpy as np
from jaxtyping import Float32, Int64

from mhsh.data.batches import Batch, BatchPart, batch_indices
from mhsh.data.random_numbers import shuffled
from mhsh.data.seeds import BATCH_ORDER, EXAMPLE_ORDER, derived_seed
from mhsh.data.tables import Table


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Examples that are batched together."""

    length: int  # S = T of its batches
    batch_size: int  # examples of a whole batch
    numbers: Int64[np.ndarray, " R"]  # of the examples; none of them is longer


def buckets(table: Table, lengths: Iterable[int], batch_size: int) -> list[Bucket]:
    """The buckets of an epoch, the shortest first: examples of T / n tokens in batches of B n.

    Where a length has too few examples for one batch, they join those of the next length, whose
    batches are smaller. So only the last bucket may be smaller than its batch.

    Args:
      lengths: all lengths that examples may have; the greatest is T.
      batch_size: B, the examples of length T in a batch.
    """
    ends = np.cumsum([group.count for group in table.groups], dtype=np.int64).tolist()
    longest = max(lengths)
    found: list[Bucket] = []
    waiting = np.zeros(0, np.int64)
    for length in sorted(lengths):
        for group, end in zip(table.groups, ends, strict=True):
            if group.shapes["inputs"] == (length,):
                waiting = np.concatenate([waiting, np.arange(end - group.count, end)])
        size = batch_size * longest // length
        if len(waiting) and (len(waiting) >= size or length == longest):
            found.append(Bucket(length, size, waiting))
            waiting = waiting[:0]
    return found


def bucketed_steps(table: Table, epoch: Sequence[Bucket], seed: int, part: BatchPart | None) -> grain.MapDataset[Batch]:
    """Element k is the batch of step k. Every epoch has the same whole batches of every bucket, in
    an order of its own.

    In an epoch the examples of every bucket are shuffled, and each is read at most once: those at
    the end that fill no batch are left out. They are others in each epoch.
    """
    counts = np.array([len(bucket.numbers) // bucket.batch_size for bucket in epoch])
    ends = np.cumsum(counts)
    batch_seed, example_seed = (derived_seed(seed, purpose) for purpose in (BATCH_ORDER, EXAMPLE_ORDER))

    def batch_of(step: int) -> Batch:
        (number,), (epochs_before,) = shuffled(np.array([step]), int(ends[-1]), batch_seed)
        which = int(ends.searchsorted(number, "right"))
        bucket = epoch[which]
        first = epochs_before * len(bucket.numbers) + (number - (ends[which] - counts[which])) * bucket.batch_size
        chosen, _ = shuffled(batch_indices(int(first), bucket.batch_size, part), len(bucket.numbers), example_seed)
        return _batch(table, bucket, chosen, np.ones(len(chosen), np.float32))

    return grain.MapDataset.range(sys.maxsize // epoch[0].batch_size).map(batch_of)


def bucketed_validation(table: Table, epoch: Sequence[Bucket], part: BatchPart | None) -> grain.MapDataset[Batch]:
    """Every example once, bucket by bucket in order. A bucket's last batch is filled with its first
    examples, at weight 0.
    """
    ends = np.cumsum([-(-len(bucket.numbers) // bucket.batch_size) for bucket in epoch])

    def batch_of(number: int) -> Batch:
        which = int(ends.searchsorted(number, "right"))
        bucket = epoch[which]
        first = (number - (int(ends[which - 1]) if which else 0)) * bucket.batch_size
        rounds, chosen = np.divmod(batch_indices(first, bucket.batch_size, part), len(bucket.numbers))
        return _batch(table, bucket, chosen, (rounds == 0).astype(np.float32))

    return grain.MapDataset.range(int(ends[-1])).map(batch_of)


def _batch(table: Table, bucket: Bucket, chosen: Int64[np.ndarray, " B"], weights: Float32[np.ndarray, " B"]) -> Batch:
    return with_weights(table.take(bucket.numbers[chosen], bucket.length), weights)


def with_weights(batch: Batch, weights: Float32[np.ndarray, " B"]) -> Batch:
    """Adds `weights` [B,T]: those of the examples where there is a target, 0 in padding."""
    return batch | {"weights": (batch["targets_segmentation"] > 0) * weights[:, None]}
