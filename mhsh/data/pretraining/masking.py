"""Masked language models: which tokens are predicted, and what the model sees instead of them."""

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

# A position of the sequence below 32 random bits. Sorted, these are the positions in random order.
_POSITION_BITS = np.uint64(16)
_POSITION = np.uint64(2**16 - 1)
_LAST = np.uint64(2**64 - 1)
_HALF = np.uint64(32)


@dataclasses.dataclass(frozen=True)
class MaskingRule:
    """What `mask_examples` needs of the vocabulary and the config, computed once."""

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


def mask_examples(inputs: Int32[np.ndarray, "B T"], keys: UInt64[np.ndarray, " B"], rule: MaskingRule) -> dict[str, np.ndarray]:
    """Masked inputs and their predictions. The result for an example depends on its inputs, its key
    and the rule alone.

    Of the n maskable tokens of an example (neither special nor padding), round(mask_fraction n) are
    chosen, at least 1 and at most P. With whole words that is the maximum: words in random order
    are taken while they fit, and none is split. (A word of more than P pieces is never taken; an
    example of such words alone predicts nothing.)

    Args:
      inputs: ids, padding included; T at most 65,536.
      keys: see `random_numbers.keys`.

    Returns:
        inputs [B,T] int32: what the model sees;
        targets [B,P] int32: the original ids, 0 where unused;
        targets_position [B,P] int32: their positions, ascending, 0 where unused;
        weights [B,P] float32: 1 for a prediction, 0 where unused.
    """
    length, size = inputs.shape[1], rule.max_predictions
    maskable = rule.is_maskable.take(inputs)
    num_maskable = maskable.sum(1)
    budget = np.rint(rule.mask_fraction * num_maskable).astype(np.int64).clip(1, size)
    budget = np.minimum(budget, num_maskable)
    bits = random_bits(keys, -(-length // 2) + size)
    order = bits[:, :-size].view(np.uint32)[:, :length].astype(np.uint64) << _POSITION_BITS
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
    examples, slots = used.nonzero()
    masked[examples, positions[examples, slots]] = seen[examples, slots]
    return {
        "inputs": masked,
        "targets": np.where(used, original, 0),
        "targets_position": positions.astype(np.int32),
        "weights": used.astype(np.float32),
    }


def _tokens(
    maskable: Bool[np.ndarray, "B T"], order: UInt64[np.ndarray, "B T"], budget: Int64[np.ndarray, " B"], size: int
) -> Int64[np.ndarray, "B P"]:
    """The first `budget` maskable positions in random order, sorted; T where there are no more."""
    length = maskable.shape[1]
    sorted_order = _in_order(maskable, order, size)
    positions = (sorted_order & _POSITION).astype(np.int64)
    positions[np.arange(positions.shape[1]) >= budget[:, None]] = length
    return _ascending(positions, length, size)


def _whole_words(
    maskable: Bool[np.ndarray, "B T"],
    continues: Bool[np.ndarray, "B T"],
    order: UInt64[np.ndarray, "B T"],
    budget: Int64[np.ndarray, " B"],
    size: int,
) -> Int64[np.ndarray, "B P"]:
    """The positions of whole words, at most `budget`, sorted; T where there are no more.

    If no word has at most `budget` positions, one word of at most `size` positions is taken.
    """
    num_examples, length = maskable.shape
    # A word begins at a piece that continues nothing, and after a gap: a special, or the start of a
    # cut sentence.
    begins = maskable.copy()
    begins[:, 1:] &= ~(continues[:, 1:] & maskable[:, :-1])
    word_of_position = begins.cumsum(1) - 1
    num_words = begins.sum(1)
    most = int(num_words.max(initial=1))
    examples = np.arange(num_examples)
    in_flat = word_of_position + most * examples[:, None]
    lengths = np.bincount(in_flat[maskable], minlength=num_examples * most).reshape(num_examples, most)
    words = (_in_order(np.arange(most) < num_words[:, None], order[:, :most], most) & _POSITION).astype(np.int64).clip(0, most - 1)
    # Words that an example does not have are too long for every budget.
    in_order = np.where(np.arange(most) < num_words[:, None], np.take_along_axis(lengths, words, 1), length + 1)
    left = budget.copy()
    taken = np.zeros((most, num_examples), bool)
    for rank, length_of_word in enumerate(np.ascontiguousarray(in_order.T)):
        taken[rank] = length_of_word <= left
        left -= np.where(taken[rank], length_of_word, 0)
        if not left.any():
            break
    alone = (left == budget) & (in_order <= size).any(1)
    taken[(in_order <= size).argmax(1)[alone], examples[alone]] = True
    kept = np.zeros((num_examples, most), bool)
    ranks, of_examples = taken.nonzero()
    kept[of_examples, words[of_examples, ranks]] = True
    chosen = maskable & kept.reshape(-1).take(in_flat)
    return _ascending(np.where(chosen, np.arange(length), length), length, size)


def _in_order(present: Bool[np.ndarray, "B n"], order: UInt64[np.ndarray, "B n"], count: int) -> UInt64[np.ndarray, "B count"]:
    """The first `count` of the present positions in random order, with the bits of that order above
    them; all ones where there are no more.
    """
    width = present.shape[1]
    values = np.where(present, order | np.arange(width, dtype=np.uint64), _LAST)
    if count < width:
        values = np.partition(values, count - 1, axis=1)[:, :count]
    return np.sort(values, axis=1)


def _ascending(positions: Int64[np.ndarray, "B n"], length: int, size: int) -> Int64[np.ndarray, "B P"]:
    """`size` sorted positions; `length` stands for none."""
    ascending = np.full((len(positions), size), length, np.int64)
    width = min(size, positions.shape[1])
    ascending[:, :width] = np.sort(positions, axis=1)[:, :width]
    return ascending
