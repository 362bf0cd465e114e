"""Masked language models: which tokens are predicted, and what the model sees instead of them."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int32, Int64, UInt64

from mhsh.config.schema import DataConfig
from mhsh.data.random_numbers import random_bits
from mhsh.data.wordpiece import Tokenizer

# Of the chosen tokens 80 % become [MASK], 10 % a random token, 10 % stay (Devlin et al., arXiv
# 1810.04805, section 3.1).
_MASK_BELOW = np.uint64(0.8 * 2**32)
_RANDOM_BELOW = np.uint64(0.9 * 2**32)

# A position of the sequence below 32 random bits. Sorted, these are the positions in random order.
_POSITION_BITS = np.uint64(16)
_POSITION = np.uint64(2**16 - 1)
_LAST = np.uint64(2**64 - 1)
_HALF = np.uint64(32)


def mask_examples(
    inputs: Int32[np.ndarray, "B T"], keys: UInt64[np.ndarray, " B"], tokenizer: Tokenizer, data: DataConfig
) -> dict[str, np.ndarray]:
    """Masked inputs and their predictions. The result for an example depends on its inputs, its
    key, the vocabulary and the config alone.

    Of the n maskable tokens of an example (neither special nor padding), round(mask_fraction n) are
    chosen, at least 1 and at most P = data.max_predictions.

    Args:
      inputs: ids, padding included; T at most 65,536.
      keys: see `random_numbers.keys`.

    Returns:
        inputs [B,T] int32: what the model sees;
        targets [B,P] int32: the original ids, 0 where unused;
        targets_position [B,P] int32: their positions, ascending, 0 where unused;
        weights [B,P] float32: 1 for a prediction, 0 where unused.
    """
    length, size = inputs.shape[1], data.max_predictions
    ordinary_ids = tokenizer.ordinary_ids  # which a random token is drawn from
    maskable = ~tokenizer.is_special.take(inputs)
    num_maskable = maskable.sum(1)
    budget = np.rint(data.mask_fraction * num_maskable).astype(np.int64).clip(1, size)
    budget = np.minimum(budget, num_maskable)
    bits = random_bits(keys, -(-length // 2) + size)
    order = bits[:, :-size].view(np.uint32)[:, :length].astype(np.uint64) << _POSITION_BITS
    replace_by, random_token = bits[:, -size:] >> _HALF, bits[:, -size:] & np.uint64(2**32 - 1)
    chosen = _choose_positions(maskable, order, budget, size)
    used = chosen < length
    positions = np.where(used, chosen, 0)
    original = np.take_along_axis(inputs, positions, 1)
    drawn = ordinary_ids.take((random_token * np.uint64(len(ordinary_ids)) >> _HALF).astype(np.int64))
    seen = np.where(replace_by < _MASK_BELOW, np.int32(tokenizer.mask_id), np.where(replace_by < _RANDOM_BELOW, drawn, original))
    masked = inputs.copy()
    examples, slots = used.nonzero()
    masked[examples, positions[examples, slots]] = seen[examples, slots]
    return {
        "inputs": masked,
        "targets": np.where(used, original, 0),
        "targets_position": positions.astype(np.int32),
        "weights": used.astype(np.float32),
    }


def _choose_positions(
    maskable: Bool[np.ndarray, "B T"], order: UInt64[np.ndarray, "B T"], budget: Int64[np.ndarray, " B"], size: int
) -> Int64[np.ndarray, "B P"]:
    """The first `budget` maskable positions in random order, sorted; T where there are no more."""
    length = maskable.shape[1]
    values = np.where(maskable, order | np.arange(length, dtype=np.uint64), _LAST)
    in_order = np.sort(np.partition(values, size - 1, axis=1)[:, :size], axis=1)
    positions = (in_order & _POSITION).astype(np.int64)
    positions[np.arange(size) >= budget[:, None]] = length
    return np.sort(positions, axis=1)
