"""Masked-language-model targets: which tokens of a row are predicted, and what the model sees in
their place.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Bool, Int32, Int64, UInt64

from mhsh.config.schema import DataConfig
from mhsh.data.random_numbers import random_bits
from mhsh.data.tokenizers.wordpiece import Tokenizer

# Of the chosen tokens 80 % become [MASK], 10 % a random token, 10 % stay (Devlin et al., arXiv
# 1810.04805, section 3.1).
_MASK_BELOW = np.uint64(0.8 * 2**32)
_RANDOM_BELOW = np.uint64(0.9 * 2**32)

# 32 random bits above a place of a row: sorted, they are the places in random order.
_PLACE_BITS = np.uint64(16)
_PLACE = np.uint64(2**16 - 1)
_LAST = np.uint64(2**64 - 1)
_HALF = np.uint64(32)


@dataclasses.dataclass(frozen=True)
class MaskingRule:
    """What `mask_rows` needs to know of vocabulary and config, prepared once."""

    mask_id: int
    is_maskable: Bool[np.ndarray, " V"]  # all but the specials
    ordinary_ids: Int32[np.ndarray, " n"]  # the ids a random token is drawn from: all but the specials
    is_continuation: Bool[np.ndarray, " V"] | None  # None: tokens are chosen one by one, not word by word
    mask_fraction: float
    max_predictions: int  # P

    @classmethod
    def of(cls, tokenizer: Tokenizer, data: DataConfig) -> MaskingRule:
        """The rule of a config: data.mask_fraction, data.max_predictions and
        data.whole_word_masking.
        """
        return cls(
            mask_id=tokenizer.mask_id,
            is_maskable=~tokenizer.is_special,
            ordinary_ids=np.flatnonzero(~tokenizer.is_special).astype(np.int32),
            is_continuation=tokenizer.is_continuation if data.whole_word_masking else None,
            mask_fraction=data.mask_fraction,
            max_predictions=data.max_predictions,
        )


def mask_rows(inputs: Int32[np.ndarray, "B T"], keys: UInt64[np.ndarray, " B"], rule: MaskingRule) -> dict[str, np.ndarray]:
    """Masked rows and the predictions that the model owes; what becomes of a row hangs on it, its
    key and the rule alone.

    Of the n maskable tokens of a row (neither special nor padding), round(mask_fraction n) are
    chosen, at least 1 and at most P. Where whole words are masked that is the most: words in random
    order are taken while they fit, and none is parted. (A word of more than P pieces is never
    taken; a row of nothing else predicts nothing.)

    Args:
      inputs: the ids of the rows, padding among them; T at most 65,536.
      keys: see `random_numbers.keys`.

    Returns:
        inputs [B,T] int32: what the model sees;
        targets [B,P] int32: the original ids, 0 where unused;
        targets_position [B,P] int32: their positions in the row, ascending, 0 where unused;
        weights [B,P] float32: 1 for a prediction, 0 where unused.
    """
    length, size = inputs.shape[1], rule.max_predictions
    maskable = rule.is_maskable.take(inputs)
    num_maskable = maskable.sum(1)
    budget = np.rint(rule.mask_fraction * num_maskable).astype(np.int64).clip(1, size)
    budget = np.minimum(budget, num_maskable)
    bits = random_bits(keys, -(-length // 2) + size)
    order = bits[:, :-size].view(np.uint32)[:, :length].astype(np.uint64) << _PLACE_BITS
    replace_by, random_token = bits[:, -size:] >> _HALF, bits[:, -size:] & np.uint64(2**32 - 1)
    if rule.is_continuation is None:
        chosen = _tokens(maskable, order, budget, size)
    else:
        chosen = _whole_words(maskable, rule.is_continuation.take(inputs), order, budget, size)

    used = chosen < length
    positions = np.where(used, chosen, 0)
    original = np.take_along_axis(inputs, positions, 1)
    drawn = rule.ordinary_ids.take((random_token * np.uint64(len(rule.ordinary_ids)) >> _HALF).astype(np.int64))
    seen = np.where(replace_by < _MASK_BELOW, np.int32(rule.mask_id), np.where(replace_by < _RANDOM_BELOW, drawn, original))
    masked = inputs.copy()
    rows, slots = used.nonzero()
    masked[rows, positions[rows, slots]] = seen[rows, slots]
    return {
        "inputs": masked,
        "targets": np.where(used, original, 0),
        "targets_position": positions.astype(np.int32),
        "weights": used.astype(np.float32),
    }


def _tokens(
    maskable: Bool[np.ndarray, "B T"], order: UInt64[np.ndarray, "B T"], budget: Int64[np.ndarray, " B"], size: int
) -> Int64[np.ndarray, "B P"]:
    """The first `budget` maskable places in random order, ascending; T where a row has no more."""
    length = maskable.shape[1]
    sorted_order = _in_order(maskable, order, size)
    places = (sorted_order & _PLACE).astype(np.int64)
    places[np.arange(places.shape[1]) >= budget[:, None]] = length
    return _ascending(places, length, size)


def _whole_words(
    maskable: Bool[np.ndarray, "B T"],
    continues: Bool[np.ndarray, "B T"],
    order: UInt64[np.ndarray, "B T"],
    budget: Int64[np.ndarray, " B"],
    size: int,
) -> Int64[np.ndarray, "B P"]:
    """The places of whole words, `budget` of them at most; where no word is that short, one word of
    at most `size` places.
    """
    num_rows, length = maskable.shape
    # A word begins at a piece that continues nothing, and after a gap (a special, or the start of a
    # cut sentence).
    begins = maskable.copy()
    begins[:, 1:] &= ~(continues[:, 1:] & maskable[:, :-1])
    word_of_place = begins.cumsum(1) - 1
    num_words = begins.sum(1)
    most = int(num_words.max(initial=1))
    rows = np.arange(num_rows)
    in_flat = word_of_place + most * rows[:, None]
    lengths = np.bincount(in_flat[maskable], minlength=num_rows * most).reshape(num_rows, most)
    words = (_in_order(np.arange(most) < num_words[:, None], order[:, :most], most) & _PLACE).astype(np.int64).clip(0, most - 1)
    # Words that a row has not are too long for any.
    in_order = np.where(np.arange(most) < num_words[:, None], np.take_along_axis(lengths, words, 1), length + 1)
    left = budget.copy()
    taken = np.zeros((most, num_rows), bool)
    for rank, each in enumerate(np.ascontiguousarray(in_order.T)):
        taken[rank] = each <= left
        left -= np.where(taken[rank], each, 0)
        if not left.any():
            break
    alone = (left == budget) & (in_order <= size).any(1)
    taken[(in_order <= size).argmax(1)[alone], rows[alone]] = True
    kept = np.zeros((num_rows, most), bool)
    ranks, of_rows = taken.nonzero()
    kept[of_rows, words[of_rows, ranks]] = True
    chosen = maskable & kept.reshape(-1).take(in_flat)
    return _ascending(np.where(chosen, np.arange(length), length), length, size)


def _in_order(present: Bool[np.ndarray, "B n"], order: UInt64[np.ndarray, "B n"], count: int) -> UInt64[np.ndarray, "B count"]:
    """The `count` first of the places present, in random order, below the bits of that order; all
    ones where there are no more.
    """
    width = present.shape[1]
    values = np.where(present, order | np.arange(width, dtype=np.uint64), _LAST)
    if count < width:
        values = np.partition(values, count - 1, axis=1)[:, :count]
    return np.sort(values, axis=1)


def _ascending(places: Int64[np.ndarray, "B n"], length: int, size: int) -> Int64[np.ndarray, "B P"]:
    """The places in their order, as `size` of them, `length` standing for none."""
    found = np.full((len(places), size), length, np.int64)
    width = min(size, places.shape[1])
    found[:, :width] = np.sort(places, axis=1)[:, :width]
    return found
