"""Batches as a pure function of the step: rows of a stream put together, sliced between processes,
and made ahead of time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import grain
import numpy as np

# Batches made ahead of the step that needs them, and the threads that make them. The work is many
# short numpy calls under one interpreter lock: a second thread would add waiting, not speed.
_BATCHES_AHEAD = 4
_THREADS = 1

# The rule that decides which examples are in the batch of a step. run.json records it, and a run
# that began under another rule cannot be resumed.
# 1: grain's shuffle for translation and fine-tuning. 2: `random_numbers.shuffled` for every task.
# The batches of pre-training are the same under both.
BATCH_ORDER_VERSION = 2

Batch = dict[str, np.ndarray]
# The number of rows of a whole batch -> those of them that this process makes.
ProcessRows = Callable[[int], slice]


def prefetched(steps: grain.MapDataset[Batch], start: int, stop: int) -> grain.DatasetIterator[Batch]:
    """The batches of steps `start` to `stop` - 1 in order, made ahead of time by a thread; an error
    there is raised here.

    Close the iterator (`.close()`) when it is left before its end; its thread ends with it.
    """
    options = grain.ReadOptions(num_threads=_THREADS, prefetch_buffer_size=_BATCHES_AHEAD)
    return iter(steps.slice(slice(start, stop)).to_iter_dataset(options))


def batches_of_rows(
    stream: grain.MapDataset[Batch],
    num_batches: int,
    batch_size: int,
    rows: ProcessRows | None,
    finish: Callable[[Batch, range], None],
) -> grain.MapDataset[Batch]:
    """Batch k is made of the positions k B to k B + B - 1 of the stream, of which only this
    process's `rows` are read.

    grain's own `.batch()` would make every row in every process. `finish` adds to a batch what
    hangs on its positions.
    """

    def batch_of(step: int) -> Batch:
        positions = process_positions(step * batch_size, batch_size, rows)
        batch = stacked(stream, positions)
        finish(batch, positions)
        return batch

    return grain.MapDataset.range(num_batches).map(batch_of)


def process_positions(first: int, batch_size: int, rows: ProcessRows | None) -> range:
    """Of the positions of a batch that begins at `first`, those that this process reads."""
    return range(first, first + batch_size)[rows(batch_size) if rows is not None else slice(None)]


def stacked(stream: grain.MapDataset[Batch], positions: range) -> Batch:
    """The records at these positions, every array with an axis of them in front."""
    # grain's None stands for a filtered record; nothing here filters.
    records = [cast(Batch, stream[position]) for position in positions]
    return {name: np.array([record[name] for record in records]) for name in records[0]}
