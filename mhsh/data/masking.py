"""Masked-language-model targets: which tokens of a row are predicted, and what the model sees in their place."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float64, Int32, Int64

from mhsh.config import DataConfig
from mhsh.data.tokenizer import Tokenizer

# Of the chosen tokens 80 % become [MASK], 10 % a random token, 10 % stay (Devlin et al., arXiv 1810.04805, section 3.1).
_MASK_BELOW = 0.8
_RANDOM_BELOW = 0.9


@dataclasses.dataclass(frozen=True)
class MaskingRule:
    """What `mask_row` needs to know of vocabulary and config, prepared once."""

    mask_id: int
    is_maskable: Bool[np.ndarray, " V"]  # all but the specials
    ordinary_ids: Int32[np.ndarray, " n"]  # the ids a random token is drawn from: all but the specials
    is_continuation: Bool[np.ndarray, " V"] | None  # None: tokens are chosen one by one, not word by word
    mask_fraction: float
    max_predictions: int  # P

    @classmethod
    def of(cls, tokenizer: Tokenizer, data: DataConfig) -> MaskingRule:
        """The rule of a config: data.mask_fraction, data.max_predictions and data.whole_word_masking."""
        return cls(
            mask_id=tokenizer.mask_id,
            is_maskable=~tokenizer.is_special,
            ordinary_ids=np.flatnonzero(~tokenizer.is_special).astype(np.int32),
            is_continuation=tokenizer.is_continuation if data.whole_word_masking else None,
            mask_fraction=data.mask_fraction,
            max_predictions=data.max_predictions,
        )


def mask_row(row: Mapping[str, np.ndarray], rng: np.random.Generator, rule: MaskingRule) -> dict[str, np.ndarray]:
    """The row with masked `inputs` [T] and the predictions that the model owes; a pure function of its arguments.

    Of the n maskable tokens (neither special nor padding), round(mask_fraction n) are chosen, at least 1 and at most P. Where
    whole words are masked that is the most: words in random order are taken while they fit, and none is parted. (A word of
    more than P pieces is never taken; a row of nothing else predicts nothing.)

    Returns:
      the row's arrays, `inputs` replaced, and
        targets [P] int32: the original ids, 0 where unused;
        targets_position [P] int32: their positions in the row, ascending, 0 where unused;
        weights [P] float32: 1 for a prediction, 0 where unused.
    """
    inputs = row["inputs"]
    size = rule.max_predictions
    candidates = rule.is_maskable[inputs].nonzero()[0]
    # All random numbers of the row in one draw, as a call costs more than its numbers.
    uniforms = rng.random(len(inputs) + 2 * size)
    order, replace_by, random_token = uniforms[: len(candidates)], uniforms[-2 * size : -size], uniforms[-size:]
    budget = min(max(1, round(rule.mask_fraction * len(candidates))), size, len(candidates))
    if rule.is_continuation is None:
        chosen = candidates[order.argsort()[:budget]]
        chosen.sort()
    else:
        chosen = _whole_words(candidates, rule.is_continuation[inputs[candidates]], order, budget, size)

    count = len(chosen)
    targets = np.zeros(size, np.int32)
    targets_position = np.zeros(size, np.int32)
    weights = np.zeros(size, np.float32)
    targets[:count] = original = inputs[chosen]
    targets_position[:count] = chosen
    weights[:count] = 1
    replace_by = replace_by[:count]
    drawn = rule.ordinary_ids[(random_token[:count] * len(rule.ordinary_ids)).astype(np.int64)]
    masked = inputs.copy()
    masked[chosen] = np.where(replace_by < _MASK_BELOW, rule.mask_id, np.where(replace_by < _RANDOM_BELOW, drawn, original))
    return {**row, "inputs": masked, "targets": targets, "targets_position": targets_position, "weights": weights}


def _whole_words(
    candidates: Int64[np.ndarray, " n"],
    continues: Bool[np.ndarray, " n"],
    order: Float64[np.ndarray, " n"],
    budget: int,
    most: int,
) -> Int64[np.ndarray, " k"]:
    """Positions of whole words, `budget` of them at most; where no word is that short, one word of at most `most`."""
    if not len(candidates):
        return candidates
    # A word begins at a piece that continues nothing, and after a gap (a special, or the start of a cut sentence).
    begins = ~continues
    begins[0] = True
    begins[1:] |= candidates[1:] != candidates[:-1] + 1
    starts = begins.nonzero()[0]
    lengths = np.diff(starts, append=len(candidates))
    words = order[: len(starts)].argsort()
    kept = np.zeros(len(starts), bool)
    left = budget
    for word, length in zip(words.tolist(), lengths[words].tolist(), strict=True):
        if length <= left:
            kept[word] = True
            left -= length
            if not left:
                break
    if left == budget:
        kept[words[lengths[words] <= most][:1]] = True
    return candidates[kept.repeat(lengths)]
