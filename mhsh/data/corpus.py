"""What a run trains on: the interface of every corpus."""

from __future__ import annotations

import abc
import dataclasses
import functools
from typing import Any, ClassVar

import grain
import numpy as np
from etils import epath
from jaxtyping import Float32, Int64

from mhsh.config.schema import ClassificationDataConfig, DataConfig, SpanDataConfig, TranslationDataConfig
from mhsh.data.batches import Batch, BatchPart, ordered_batches, shuffled_batches
from mhsh.data.seeds import EXAMPLE_ORDER, derived_seed
from mhsh.data.splits import TRAIN, VALIDATION
from mhsh.data.tables import Table
from mhsh.data.tasks import AnyTokenizer
from mhsh.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corpus(abc.ABC):
    """The examples of training and validation, and the batches made of them."""

    vocab_file: ClassVar[str]  # the vocabulary's name in a run folder

    data: DataConfig | TranslationDataConfig | ClassificationDataConfig | SpanDataConfig
    tokenizer: AnyTokenizer
    train: Table
    validation: Table
    fingerprint: str  # SHA-256, in hex, over the vocabulary and every example
    unigram_entropy: float  # see `entropy.unigram_entropy`, of what the training examples ask for

    @property
    def num_train_examples(self) -> int:
        """The examples of one epoch."""
        return len(self.train)

    @abc.abstractmethod
    def summary(self) -> dict[str, Any]:
        """What was read, left out and kept, as plain numbers, for run.json and for people; with
        `overlap` (see splits.overlap).
        """

    def save_vocab(self, folder: epath.PathLike) -> None:
        """Writes the vocabulary into a run folder."""
        self.tokenizer.save(epath.Path(folder) / self.vocab_file)

    @abc.abstractmethod
    def batch(
        self, split: str, numbers: Int64[np.ndarray, " B"], epochs: Int64[np.ndarray, " B"], weights: Float32[np.ndarray, " B"]
    ) -> Batch:
        """The batch of these examples of a split; see `batches.MakeBatch`."""

    def train_steps(self, batch_size: int, part: BatchPart | None = None) -> grain.MapDataset[Batch]:
        """A dataset whose element k is the batch of training step k, for any k.

        It is a pure function of (fingerprint, data.seed, k). Unless a corpus says otherwise, the
        order is that of `batches.shuffled_batches`.

        Args:
          batch_size: B, the examples of the whole step.
          part: the part of a batch that this process makes (None: all of it). The parts of all
            processes, put together, are the whole batch.
        """
        seed = derived_seed(self.data.seed, EXAMPLE_ORDER)
        return shuffled_batches(functools.partial(self.batch, TRAIN), len(self.train), batch_size, seed, part)

    def validation_batches(self, batch_size: int, part: BatchPart | None = None) -> grain.MapDataset[Batch]:
        """All validation examples in a fixed order, in batches with the keys of `train_steps`.

        A batch that would be short is filled with examples whose `weights` are all 0. So it keeps
        its shape, and no weighted metric counts an example twice.
        """
        return ordered_batches(functools.partial(self.batch, VALIDATION), len(self.validation), batch_size, part)

    def check_batch(self, batch_size: int) -> None:
        """Raises UserError where the training examples do not fill one batch."""
        if self.num_train_examples < batch_size:
            raise UserError(
                f"train.batch_size = {batch_size} is more than the {self.num_train_examples} training rows of data.source; lower "
                "train.batch_size or data.sequence_length, or give more text"
            )
