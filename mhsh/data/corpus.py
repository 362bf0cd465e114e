"""What a run trains on, of whatever task: the interface, and the fingerprint of its rows."""

from __future__ import annotations

import abc
import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import grain
import numpy as np
from etils import epath

from mhsh.data.batches import Batch, ProcessRows
from mhsh.data.pretraining.packing import Rows
from mhsh.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corpus(abc.ABC):
    """Training and validation rows, and the batches made of them."""

    fingerprint: str  # SHA-256, in hex, over the vocabulary and every row of both splits
    unigram_entropy: float  # see `unigram.unigram_entropy`, of what the training rows ask for

    @property
    @abc.abstractmethod
    def num_train_rows(self) -> int:
        """The rows of one epoch."""

    @abc.abstractmethod
    def summary(self) -> dict[str, Any]:
        """What is in it and what was left out, as plain numbers, for run.json and for people."""

    @abc.abstractmethod
    def save_vocab(self, folder: epath.PathLike) -> None:
        """Writes the vocabulary into a run folder, under the name that `run_folder.vocab_file`
        gives.
        """

    @abc.abstractmethod
    def train_steps(self, batch_size: int, rows: ProcessRows | None = None) -> grain.MapDataset[Batch]:
        """A dataset whose element k is the batch of training step k, for any k: a pure function of
        (fingerprint, data.seed, k).

        Unless a corpus says otherwise, epochs follow each other without a seam: step k takes the
        positions k B to k B + B - 1 of an endless stream in which every run of R rows (R: the
        training rows) is one epoch, in an order of its own.

        Args:
          batch_size: B, rows of the whole step.
          rows: which rows of a batch this process makes (None: all); those of all processes, put
            together, are the whole batch.
        """

    @abc.abstractmethod
    def validation_batches(self, batch_size: int, rows: ProcessRows | None = None) -> grain.MapDataset[Batch]:
        """All validation rows in a fixed order, in batches with the keys of `train_steps`.

        Where a batch would be short, it is filled with rows whose `weights` are all 0: no metric
        that is weighted by them counts a row twice, and the batch keeps its shape.
        """

    def check_batch(self, batch_size: int) -> None:
        """Raises UserError where the training rows do not fill one batch, so that an epoch would
        end inside a step.
        """
        if self.num_train_rows < batch_size:
            raise UserError(
                f"train.batch_size = {batch_size} is more than the {self.num_train_rows} training rows of data.source; lower "
                "train.batch_size or data.sequence_length, or give more text"
            )


def fingerprint_of(vocabulary: Iterable[bytes], splits: Mapping[str, Rows]) -> str:
    """SHA-256, in hex, over a vocabulary and every array of every split: name, shape, dtype and
    bytes.
    """
    digest = hashlib.sha256()
    for part in vocabulary:
        digest.update(part)
    for split, rows in splits.items():
        for name in sorted(rows):
            values = np.ascontiguousarray(rows[name])
            digest.update(f"{split}/{name} {values.shape} {values.dtype.str}\n".encode())
            digest.update(values.data)
    return digest.hexdigest()
