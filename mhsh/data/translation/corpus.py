"""The corpus of translation: sentence pairs, packed or bucketed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import grain
import numpy as np
from etils import epath
from jaxtyping import Float32, Int64

from mhsh.config.schema import ModelConfig, TranslationDataConfig
from mhsh.data.batches import Batch, BatchPart
from mhsh.data.corpus import Corpus
from mhsh.data.splits import TRAIN
from mhsh.data.tables import Table
from mhsh.data.tasks import load_examples
from mhsh.data.tokenizers.subword import SubwordTokenizer
from mhsh.data.translation.buckets import Bucket, bucketed_steps, bucketed_validation, buckets, with_weights
from mhsh.data.translation.packing import BUCKET_DIVISORS
from mhsh.data.translation.pairs import Pair
from mhsh.data.translation.task import TranslationTask
from mhsh.errors import UserError
from mhsh.run_folder import TOKENIZER_FILE


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationCorpus(Corpus):
    """Sentence pairs. An epoch has each pair once.

    Batches have int32 `inputs`, `inputs_position`, `inputs_segmentation` [B,S], `decoder_inputs`,
    `targets`, `targets_position`, `targets_segmentation` [B,T], and float32 `weights` [B,T], 1
    where there is a target. With data.layout = bucketed a batch has S = T = data.sequence_length /
    n tokens and B n examples, where n is 8, 4, 2 or 1; see `buckets.bucketed_steps`.
    """

    vocab_file: ClassVar[str] = TOKENIZER_FILE

    data: TranslationDataConfig
    tokenizer: SubwordTokenizer
    counts: Mapping[str, Any]

    def summary(self) -> dict[str, Any]:
        """As `Corpus.summary`."""
        return {
            "vocab_size": self.tokenizer.vocab_size,
            "unigram_entropy": self.unigram_entropy,
            **self.counts,
        }

    def batch(
        self, split: str, numbers: Int64[np.ndarray, " B"], epochs: Int64[np.ndarray, " B"], weights: Float32[np.ndarray, " B"]
    ) -> Batch:
        """As `Corpus.batch`, of packed examples."""
        return with_weights((self.train if split == TRAIN else self.validation).take(numbers), weights)

    def train_steps(self, batch_size: int, part: BatchPart | None = None) -> grain.MapDataset[Batch]:
        """As `Corpus.train_steps`. Bucketed epochs leave out the pairs that fill no batch, others
        each time.
        """
        if self.data.layout == "packed":
            return super().train_steps(batch_size, part)
        return bucketed_steps(self.train, self._buckets(self.train, batch_size), self.data.seed, part)

    def validation_batches(self, batch_size: int, part: BatchPart | None = None) -> grain.MapDataset[Batch]:
        """As `Corpus.validation_batches`."""
        if self.data.layout == "packed":
            return super().validation_batches(batch_size, part)
        return bucketed_validation(self.validation, self._buckets(self.validation, batch_size), part)

    def _buckets(self, table: Table, batch_size: int) -> list[Bucket]:
        return buckets(table, [self.data.sequence_length // divisor for divisor in BUCKET_DIVISORS], batch_size)

    def validation_pairs(self, count: int | None) -> list[Pair]:
        """The first `count` pairs of the validation examples (None: all), as text again."""
        found: list[Pair] = []
        for number in range(len(self.validation)):
            example = {name: values[0] for name, values in self.validation.take(np.array([number])).items()}
            for segment in range(1, int(example["inputs_segmentation"].max()) + 1):
                if len(found) == count:
                    return found
                sides = (example[side][example[f"{side}_segmentation"] == segment] for side in ("inputs", "targets"))
                # Every sentence ends with its end mark.
                found.append(Pair(*(self.tokenizer.decode(side[:-1].tolist()) for side in sides)))
        return found

    def check_batch(self, batch_size: int) -> None:
        """As `Corpus.check_batch`. With buckets, every pair must have a batch that it can be in."""
        if self.data.layout == "packed":
            super().check_batch(batch_size)
            return
        last = self._buckets(self.train, batch_size)[-1]
        if len(last.numbers) < last.batch_size:
            raise UserError(
                f"train.batch_size = {batch_size}: the {len(last.numbers)} longest training pairs of data.source fill no batch "
                f"of {last.length} tokens, and would never be learnt; lower train.batch_size or data.sequence_length, "
                "or give more pairs"
            )


def load_translation(
    model: ModelConfig, data: TranslationDataConfig, saved_vocab: epath.PathLike | None = None
) -> TranslationCorpus:
    """The corpus of a config; see `tasks.load_examples`."""
    return TranslationCorpus(data=data, **vars(load_examples(TranslationTask(model, data), saved_vocab)))
