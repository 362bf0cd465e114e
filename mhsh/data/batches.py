"""Batches as a pure function of the step: which examples are in a batch, which part of it a process
makes, and batches made ahead of time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import grain
import numpy as np
from jaxtyping import Float32, Int64

from mhsh.data.random_numbers import shuffled

# Batches made ahead of the step that needs them, and the threads that make them. The work is many
# short numpy calls under one interpreter lock: a second thread would add waiting, not speed.
_BATCHES_AHEAD = 4
_THREADS = 1

Batch = dict[str, np.ndarray]
# The size of a whole batch -> the part of it that this process makes.
BatchPart = Callable[[int], slice]
# Makes a batch of the examples with these numbers. An example may differ from epoch to epoch
# (masking). The weight of an example is 1, or 0 where it only fills a batch.
MakeBatch = Callable[[Int64[np.ndarray, " B"], Int64[np.ndarray, " B"], Float32[np.ndarray, " B"]], Batch]


def prefetched(steps: grain.MapDataset[Batch], start: int, stop: int) -> grain.DatasetIterator[Batch]:
    """The batches of steps `start` to `stop` - 1 in order, made ahead of time by a thread.

    An error in the thread is raised here. Close the iterator (`.close()`) if you leave it before
    its end: that also ends the thread.
    """
    options = grain.ReadOptions(num_threads=_THREADS, prefetch_buffer_size=_BATCHES_AHEAD)
    return iter(steps.slice(slice(start, stop)).to_iter_dataset(options))


def batch_indices(first: int, batch_size: int, part: BatchPart | None) -> Int64[np.ndarray, " B"]:
    """Of the indices `first` to `first + batch_size - 1`, those that this process makes."""
    return np.arange(first, first + batch_size)[part(batch_size) if part is not None else slice(None)]


def shuffled_batches(
    make: MakeBatch, num_examples: int, batch_size: int, seed: int, part: BatchPart | None
) -> grain.MapDataset[Batch]:
    """Element k is the batch of training step k, for any k.

    Step k takes the indices k B to k B + B - 1 of an endless stream. Every `num_examples` indices
    are one epoch: each example once, in an order that depends on the seed and the epoch alone. So
    an epoch may end inside a batch.
    """

    def batch_of(step: int) -> Batch:
        numbers, epochs = shuffled(batch_indices(step * batch_size, batch_size, part), num_examples, seed)
        return make(numbers, epochs, np.ones(len(numbers), np.float32))

    return grain.MapDataset.range(sys.maxsize // batch_size).map(batch_of)


def ordered_batches(make: MakeBatch, num_examples: int, batch_size: int, part: BatchPart | None) -> grain.MapDataset[Batch]:
    """ceil(R / B) batches of all R examples in order. The last is filled with the first examples
    again, at weight 0.
    """

    def batch_of(step: int) -> Batch:
        epochs, numbers = np.divmod(batch_indices(step * batch_size, batch_size, part), num_examples)
        return make(numbers, epochs, (epochs == 0).astype(np.float32))

    return grain.MapDataset.range(-(-num_examples // batch_size)).map(batch_of)
