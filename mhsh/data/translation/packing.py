"""Sentence pairs encoded and packed, several in an example."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32, Int64, Integer

from mhsh.config.schema import TranslationDataConfig
from mhsh.data.corpus import Item
from mhsh.data.tables import Examples, bounds_of
from mhsh.data.tokenizers.subword import BOS_ID, EOS_ID, SubwordTokenizer

# Pairs given to the tokenizer at once: enough to keep its threads busy, few enough that its objects
# stay small.
_PAIRS_AT_ONCE = 4096
# Pairs with at most this many tokens on both sides may differ by any ratio: two words are often
# translated by seven.
_SHORT = 10
# Examples that are open for more pairs while pairs are packed. More give fuller examples, and take
# more time a pair.
_OPEN_EXAMPLES = 256


@dataclasses.dataclass(frozen=True)
class EncodedSide:
    """P sentences of one language as one flat array of n tokens; every sentence ends with [EOS]."""

    tokens: Int32[np.ndarray, " n"]
    bounds: Int64[np.ndarray, " bounds"]  # sentence p is tokens[bounds[p] : bounds[p + 1]]

    @property
    def lengths(self) -> Int64[np.ndarray, " P"]:
        """The tokens of each sentence with its end mark."""
        return np.diff(self.bounds)


@dataclasses.dataclass(frozen=True)
class EncodedPairs:
    """P sentence pairs as ids."""

    source: EncodedSide
    target: EncodedSide

    def __len__(self) -> int:
        """P."""
        return len(self.source.bounds) - 1


def encode_pairs(
    tokenizer: SubwordTokenizer, pairs: Sequence[Item], data: TranslationDataConfig
) -> tuple[EncodedPairs, dict[str, int]]:
    """The pairs as ids, with [EOS] after every sentence, without those that are too long or too
    unlike.

    A pair is too long if a side has more than data.sequence_length tokens with its end mark. It is
    too unlike if the longer side has more than data.max_length_ratio times the tokens of the
    shorter (the rule of Moses' clean-corpus-n.perl). Pairs of at most 10 tokens a side are exempt:
    for short sentences a ratio means little.

    Returns:
      the pairs kept, and counts: `pairs` kept, `too_long` and `unlike` ones left out, and of the
      pairs kept the `source_tokens` and `target_tokens` with end marks.
    """
    encoded: list[tuple[list[np.ndarray], list[np.ndarray]]] = []
    too_long = unlike = 0
    for start in range(0, len(pairs), _PAIRS_AT_ONCE):
        source, target = map(tokenizer.encode_batch, zip(*pairs[start : start + _PAIRS_AT_ONCE], strict=True))
        shorter, longer = np.sort([list(map(len, source)), list(map(len, target))], axis=0)
        fits = longer < data.sequence_length
        alike = (longer <= _SHORT) | (longer <= data.max_length_ratio * shorter)
        too_long += int((~fits).sum())
        unlike += int((fits & ~alike).sum())
        kept = np.flatnonzero(fits & alike)
        encoded.append(([source[index] for index in kept], [target[index] for index in kept]))
    sides = EncodedPairs(*(_ended([ids for chunk in encoded for ids in chunk[side]]) for side in (0, 1)))
    return sides, {
        "pairs": len(sides),
        "too_long": too_long,
        "unlike": unlike,
        "source_tokens": len(sides.source.tokens),
        "target_tokens": len(sides.target.tokens),
    }


def pack_pairs(encoded: EncodedPairs, length: int) -> Examples:
    """All pairs in examples of `length` tokens on each side, several in each. The arrays are those
    of a batch, except `weights`.

    First fit: every pair goes to the oldest of at most 256 open examples that has room for both
    sides. Where none has, the fullest is closed and a new one opened. Examples are in the order in
    which they were opened, pairs in an example in that of `encoded`. Segmentation counts the pairs
    of an example from 1, positions the tokens of a pair's side from 0; 0 is padding.
    """
    example, before = _first_fit(encoded.source.lengths, encoded.target.lengths, length)
    return _examples(encoded, length, example, before)


def _ended(sentences: Sequence[np.ndarray]) -> EncodedSide:
    bounds = bounds_of([len(ids) + 1 for ids in sentences])
    tokens = np.full(bounds[-1], EOS_ID, np.int32)
    is_end = np.zeros(len(tokens), bool)
    is_end[bounds[1:] - 1] = True
    if sentences:
        tokens[~is_end] = np.concatenate(sentences)
    return EncodedSide(tokens, bounds)


def _first_fit(
    source: Int64[np.ndarray, " P"], target: Int64[np.ndarray, " P"], length: int
) -> tuple[Int64[np.ndarray, " P"], Int64[np.ndarray, "3 P"]]:
    """The example of each pair, and the pairs, source and target tokens before the pair in it."""
    examples = np.zeros(len(source), np.int64)
    before = np.zeros((3, len(source)), np.int64)
    # Open examples, the oldest first: their numbers, and their pairs and tokens of both sides.
    number = np.arange(_OPEN_EXAMPLES)
    used = np.zeros((3, _OPEN_EXAMPLES), np.int64)
    source_used, target_used = used[1], used[2]
    opened = 1
    for pair, (source_length, target_length) in enumerate(zip(source.tolist(), target.tolist(), strict=True)):
        fits = (source_used[:opened] <= length - source_length) & (target_used[:opened] <= length - target_length)
        slot = int(fits.argmax())
        if not fits[slot]:
            if opened == _OPEN_EXAMPLES:
                slot = int((source_used + target_used).argmax())
                newest = number[-1]
                number[slot:-1], used[:, slot:-1] = number[slot + 1 :], used[:, slot + 1 :]
                number[-1], used[:, -1] = newest + 1, 0
            else:
                opened += 1
            slot = opened - 1
        examples[pair] = number[slot]
        before[:, pair] = used[:, slot]
        used[0, slot] += 1
        source_used[slot] += source_length
        target_used[slot] += target_length
    return examples, before


def _examples(encoded: EncodedPairs, length: int, example: Int64[np.ndarray, " P"], before: Int64[np.ndarray, "3 P"]) -> Examples:
    """The examples in which pair p follows `before`[:, p] (pairs, source tokens, target tokens) of
    example `example`[p].
    """
    count = int(example.max()) + 1 if len(example) else 0
    examples: Examples = {}
    for side, prefix, tokens_before in ((encoded.source, "inputs", before[1]), (encoded.target, "targets", before[2])):
        positions = _positions(side.bounds)
        flat = np.repeat(example * length + tokens_before, side.lengths) + positions
        values = {"": side.tokens, "_position": positions, "_segmentation": np.repeat(before[0] + 1, side.lengths)}
        for suffix, value in values.items():
            filled = np.zeros(count * length, np.int32)
            filled[flat] = value
            examples[prefix + suffix] = filled.reshape(count, length)
    shifted = np.zeros((count, length), np.int32)
    shifted[:, 1:] = examples["targets"][:, :-1]
    is_target = examples["targets_segmentation"] > 0
    begins = (examples["targets_position"] == 0) & is_target
    examples["decoder_inputs"] = np.where(begins, BOS_ID, np.where(is_target, shifted, 0)).astype(np.int32)
    return examples


def _positions(bounds: Int64[np.ndarray, " bounds"]) -> Integer[np.ndarray, " n"]:
    """The position of every token in its sentence, from 0."""
    return np.arange(bounds[-1]) - np.repeat(bounds[:-1], np.diff(bounds))
