"""Batches as a pure function of the step: which examples are in a batch, which part of it a process
makes, and batches made ahead of time.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float32, Int64

from mhsh.data.random_numbers import EXAMPLE_ORDER, derived_seed, shuffled_numbers

if TYPE_CHECKING:
    import grain

# Batches made ahead of the step that needs them, and the threads that make them. The work is many
# short numpy calls under one interpreter lock: a second thread would add waiting, not speed.
_BATCHES_AHEAD = 4
_THREADS = 1

Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Selection:
    """The examples of a batch."""

    numbers: Int64[np.ndarray, " B"]
    epochs: Int64[np.ndarray, " B"]  # an example may differ from epoch to epoch (masking)
    weights: Float32[np.ndarray, " B"]  # 1, or 0 where an example only fills the batch


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


def prefetch(batches: Batches, start: int, stop: int) -> grain.DatasetIterator[Batch]:
    """Makes the batches `start` to `stop` - 1 in order and ahead of time, in a thread whose errors
    are raised here. Close the iterator if you leave it before its end: that ends the thread.
    """
    import grain  # not above: it imports jax, which `mhsh prepare` does without

    options = grain.ReadOptions(num_threads=_THREADS, prefetch_buffer_size=_BATCHES_AHEAD)
    return iter(grain.MapDataset.source(batches).slice(slice(start, stop)).to_iter_dataset(options))


def shuffled_batches(make: MakeBatch, num_examples: int, batch_size: int, seed: int, part: slice) -> Batches:
    """Element k is the batch of training step k, for any k; of its B examples this process makes
    those of `part`.

    Step k takes the indices k B to k B + B - 1 of an endless stream. Every `num_examples` indices
    are one epoch, which may end inside a batch: each example once, in an order that depends on the
    seed and the epoch alone.
    """
    order = derived_seed(seed, EXAMPLE_ORDER)

    def batch_at(step: int) -> Batch:
        numbers, epochs = shuffled_numbers(_indices(step, batch_size, part), num_examples, order)
        return make(Selection(numbers, epochs, np.ones(len(numbers), np.float32)))

    return Batches(sys.maxsize // batch_size, batch_at)


def ordered_batches(make: MakeBatch, num_examples: int, batch_size: int, part: slice) -> Batches:
    """Every example once, in order. The last batch is filled with the first examples again, at
    weight 0. For `part` see `shuffled_batches`.
    """

    def batch_at(number: int) -> Batch:
        rounds, numbers = np.divmod(_indices(number, batch_size, part), num_examples)
        return make(Selection(numbers, rounds, (rounds == 0).astype(np.float32)))

    return Batches(-(-num_examples // batch_size), batch_at)


def _indices(batch: int, batch_size: int, part: slice) -> Int64[np.ndarray, " B"]:
    """The indices of a batch, in the stream of all, that this process makes."""
    return np.arange(batch * batch_size, (batch + 1) * batch_size)[part]
