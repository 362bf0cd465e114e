"""The corpus of pre-training: documents packed into examples, which are masked when they are
batched.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from etils import epath
from jaxtyping import Float32, Int64

from mhsh.config.schema import DataConfig, ModelConfig
from mhsh.data.batches import Batch
from mhsh.data.corpus import Corpus
from mhsh.data.pretraining.masking import MaskingRule, mask_examples
from mhsh.data.pretraining.packing import full_examples
from mhsh.data.pretraining.task import PretrainingTask
from mhsh.data.random_numbers import keys
from mhsh.data.seeds import MASKING, VALIDATION_MASKING, derived_seed
from mhsh.data.splits import TRAIN
from mhsh.data.tasks import load_examples
from mhsh.data.tokenizers.wordpiece import Tokenizer
from mhsh.run_folder import WORDPIECE_FILE


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingCorpus(Corpus):
    """Packed documents; see packing.py for the arrays. Masking is drawn anew in every epoch.

    Batches have int32 `inputs`, `inputs_position`, `inputs_segmentation` [B,T], and `token_types`
    [B,T] and `next_sentence` [B] where the model has them. mlm: int32 `targets`, `targets_position`
    [B,P] and float32 `weights` [B,P]. clm: int32 `targets` [B,T] and float32 `weights` [B,T]. With
    `next_sentence` also float32 `row_weights` [B], 0 where an example only fills a batch.
    """

    vocab_file: ClassVar[str] = WORDPIECE_FILE

    model: ModelConfig
    data: DataConfig
    tokenizer: Tokenizer
    counts: Mapping[str, Any]

    def summary(self) -> dict[str, Any]:
        """As `Corpus.summary`."""
        return {"vocab_size": self.tokenizer.vocab_size, "unigram_entropy": self.unigram_entropy, **self.counts}

    @functools.cached_property
    def _masking_rule(self) -> MaskingRule:
        return MaskingRule.of(self.tokenizer, self.data)

    def batch(
        self, split: str, numbers: Int64[np.ndarray, " B"], epochs: Int64[np.ndarray, " B"], weights: Float32[np.ndarray, " B"]
    ) -> Batch:
        """As `Corpus.batch`. The masking of an example depends on the seed, its number and the
        epoch alone.
        """
        table, purpose = (self.train, MASKING) if split == TRAIN else (self.validation, VALIDATION_MASKING)
        batch = full_examples(table.take(numbers), self.model)
        if self.model.objective == "clm":
            batch["weights"] = np.ones(batch["targets"].shape, np.float32)
        else:
            mask_keys = keys(derived_seed(self.data.seed, purpose), numbers, epochs)
            batch |= mask_examples(batch["inputs"], mask_keys, self._masking_rule)
        batch["weights"] *= weights[:, None]
        if self.model.next_sentence:
            batch["row_weights"] = weights
        return batch


def load_pretraining(model: ModelConfig, data: DataConfig, saved_vocab: epath.PathLike | None = None) -> PretrainingCorpus:
    """The corpus of a config; see `tasks.load_examples`."""
    loaded = load_examples(PretrainingTask(model, data), saved_vocab)
    return PretrainingCorpus(model=model, data=data, **vars(loaded))
