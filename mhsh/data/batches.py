"""Batches as a pure function of the step: which examples are in a batch, which part of it a process
makes, and batches made ahead of time.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float32, Int64

from mhsh.data.random_numbers import BATCH_ORDER, EXAMPLE_ORDER, derived_seed, shuffled

if TYPE_CHECKING:
    import grain

# Batches made ahead of the step that needs them, and the threads that make them. The work is many
# short numpy calls under one interpreter lock: a second thread would add waiting, not speed.
_BATCHES_AHEAD = 4
_THREADS = 1

Batch = dict[str, np.ndarray]
# The size of a whole batch -> the part of it that this process makes.
BatchPart = Callable[[int], slice]


@dataclasses.dataclass(frozen=True)
class Selection:
    """The examples of a batch."""

    numbers: Int64[np.ndarray, " B"]
    epochs: Int64[np.ndarray, " B"]  # an example may differ from epoch to epoch (masking)
    weights: Float32[np.ndarray, " B"]  # 1, or 0 where an example only fills the batch
    length: int | None = None  # tokens of an example; see `Table.take`


MakeBatch = Callable[[Selection], Batch]


@dataclasses.dataclass(frozen=True)
class Batches:
    """A sequence of batches. Each is made when it is asked for."""

    count: int
    make: Callable[[int], Batch]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Batch:
        if not 0 <= index < self.count:
            raise IndexError(f"there is no batch {index} of {self.count}")
        return self.make(index)


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Examples that are batched together."""

    length: int | None  # S = T of its batches; None: that of the examples
    batch_size: int  # examples of a whole batch
    numbers: Int64[np.ndarray, " R"]  # of the examples; none of them is longer


def prefetched(batches: Batches, start: int, stop: int) -> grain.DatasetIterator[Batch]:
    """The batches `start` to `stop` - 1 in order, made ahead of time by a thread.

    An error in the thread is raised here. Close the iterator (`.close()`) if you leave it before
    its end: that also ends the thread.
    """
    import grain  # not above: it imports jax, which `mhsh prepare` does without

    options = grain.ReadOptions(num_threads=_THREADS, prefetch_buffer_size=_BATCHES_AHEAD)
    return iter(grain.MapDataset.source(batches).slice(slice(start, stop)).to_iter_dataset(options))


def shuffled_batches(make: MakeBatch, num_examples: int, batch_size: int, seed: int, part: BatchPart | None) -> Batches:
    """Element k is the batch of training step k, for any k.

    Step k takes the indices k B to k B + B - 1 of an endless stream. Every `num_examples` indices
    are one epoch: each example once, in an order that depends on the seed and the epoch alone. So
    an epoch may end inside a batch.
    """
    order = derived_seed(seed, EXAMPLE_ORDER)

    def batch_of(step: int) -> Batch:
        numbers, epochs = shuffled(_indices(step * batch_size, batch_size, part), num_examples, order)
        return make(Selection(numbers, epochs, np.ones(len(numbers), np.float32)))

    return Batches(sys.maxsize // batch_size, batch_of)


def bucketed_batches(make: MakeBatch, buckets: Sequence[Bucket], seed: int, part: BatchPart | None) -> Batches:
    """Element k is the batch of training step k, for any k. Every epoch has the same whole batches
    of every bucket, in an order of its own.

    In an epoch the examples of every bucket are shuffled, and each is read at most once: those at
    the end that fill no batch are left out. They are others in each epoch.
    """
    counts = np.array([len(bucket.numbers) // bucket.batch_size for bucket in buckets])
    ends = np.cumsum(counts)
    batch_seed, example_seed = (derived_seed(seed, purpose) for purpose in (BATCH_ORDER, EXAMPLE_ORDER))

    def batch_of(step: int) -> Batch:
        (number,), (epochs_before,) = shuffled(np.array([step]), int(ends[-1]), batch_seed)
        which = int(ends.searchsorted(number, "right"))
        bucket = buckets[which]
        first = epochs_before * len(bucket.numbers) + (number - (ends[which] - counts[which])) * bucket.batch_size
        chosen, epochs = shuffled(_indices(int(first), bucket.batch_size, part), len(bucket.numbers), example_seed)
        return make(Selection(bucket.numbers[chosen], epochs, np.ones(len(chosen), np.float32), bucket.length))

    return Batches(sys.maxsize // buckets[0].batch_size, batch_of)


def ordered_batches(make: MakeBatch, buckets: Sequence[Bucket], part: BatchPart | None) -> Batches:
    """Every example once, bucket by bucket in order. A bucket's last batch is filled with its first
    examples again, at weight 0.
    """
    ends = np.cumsum([-(-len(bucket.numbers) // bucket.batch_size) for bucket in buckets])

    def batch_of(number: int) -> Batch:
        which = int(ends.searchsorted(number, "right"))
        bucket = buckets[which]
        first = (number - (int(ends[which - 1]) if which else 0)) * bucket.batch_size
        rounds, chosen = np.divmod(_indices(first, bucket.batch_size, part), len(bucket.numbers))
        return make(Selection(bucket.numbers[chosen], rounds, (rounds == 0).astype(np.float32), bucket.length))

    return Batches(int(ends[-1]), batch_of)


def _indices(first: int, batch_size: int, part: BatchPart | None) -> Int64[np.ndarray, " B"]:
    """Of the indices `first` to `first + batch_size - 1`, those that this process makes."""
    return np.arange(first, first + batch_size)[part(batch_size) if part is not None else slice(None)]
