"""Sentence pairs as token ids, and token ids as rows: several pairs in a row, or rows of like
length together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64, Integer

from mhsh.config.schema import TranslationDataConfig
from mhsh.data.pretraining.packing import Rows
from mhsh.data.tokenizers.subword import BOS_ID, EOS_ID, SubwordTokenizer
from mhsh.data.translation.pairs import Pair
from mhsh.errors import UserError

# Texts handed to the tokenizer at once: enough to keep its threads busy, few enough that its
# objects stay small.
_PAIRS_AT_ONCE = 4096
# Pairs no side of which has more tokens may differ by any ratio: two words are often said in seven.
_SHORT = 10
# Rows that wait for more pairs while pairs are packed. More fill a row better, at more time a pair.
_OPEN_ROWS = 256
# Of data.sequence_length, the rows of a bucketed corpus; a batch of them is longer by as much.
BUCKET_DIVISORS = (8, 4, 2, 1)


@dataclasses.dataclass(frozen=True)
class EncodedSide:
    """P sentences of one language as one flat array of n tokens; every sentence ends with [EOS]."""

    tokens: Int32[np.ndarray, " n"]
    bounds: Int64[np.ndarray, " bounds"]  # sentence p is tokens[bounds[p] : bounds[p + 1]]

    @property
    def lengths(self) -> Int64[np.ndarray, " P"]:
        """Tokens of each sentence, its end mark included."""
        return np.diff(self.bounds)


@dataclasses.dataclass(frozen=True)
class EncodedPairs:
    """P sentence pairs as ids."""

    source: EncodedSide
    target: EncodedSide

    def __len__(self) -> int:
        """P."""
        return len(self.source.bounds) - 1


@dataclasses.dataclass(frozen=True)
class EncodingCounts:
    """What `encode_pairs` made of its pairs."""

    pairs: int  # kept
    too_long: int  # left out, as a side has more than data.sequence_length tokens
    unlike: int  # left out, as the sides differ by more than data.max_length_ratio
    source_tokens: int  # of the pairs kept, end marks among them
    target_tokens: int


def encode_rows(
    tokenizer: SubwordTokenizer, pairs: Iterable[Pair], data: TranslationDataConfig
) -> tuple[dict[int, Rows], dict[str, Any]]:
    """The rows of a run of pairs by their length, and sums that those of other runs are added to.

    The sums are those of EncodingCounts, `rows`, the `places` of either side, and `target_counts`:
    how often each id is a target.
    """
    encoded, counts = encode_pairs(tokenizer, pairs, data)
    groups = rows_by_length(encoded, data)
    return groups, dataclasses.asdict(counts) | {
        "rows": sum(len(rows["inputs"]) for rows in groups.values()),
        "places": sum(rows["inputs"].size for rows in groups.values()),
        "target_counts": np.bincount(encoded.target.tokens, minlength=tokenizer.vocab_size),
    }


def split_counts(sums: Mapping[str, Any], data: TranslationDataConfig, split: str) -> dict[str, Any]:
    """The sums of a split as plain numbers, and which part of its places is padding. Raises
    UserError where it has no pairs.
    """
    if not sums["pairs"]:
        raise UserError(
            f"data.source = {data.source!r} leaves no pair for {split}: {sums['too_long']} are longer than data.sequence_length = "
            f"{data.sequence_length} and {sums['unlike']} differ by more than data.max_length_ratio = {data.max_length_ratio}; "
            "give more pairs, or change these, data.validation_source or data.validation_fraction"
        )
    plain = {name: int(value) for name, value in sums.items() if name not in ("places", "target_counts")}
    return plain | {f"{side}_padding_fraction": 1 - plain[f"{side}_tokens"] / int(sums["places"]) for side in ("source", "target")}


def encode_pairs(
    tokenizer: SubwordTokenizer, pairs: Iterable[Pair], data: TranslationDataConfig
) -> tuple[EncodedPairs, EncodingCounts]:
    """The pairs as ids, [EOS] after every sentence, without those that are too long or too unlike
    in length.

    Too long is a side of more than data.sequence_length tokens with its end mark. Too unlike are
    sides the longer of which has more than data.max_length_ratio times the tokens of the shorter
    (the rule of Moses' clean-corpus-n.perl), unless neither has more than 10: among short sentences
    a ratio says little.
    """
    encoded: list[tuple[list[np.ndarray], list[np.ndarray]]] = []
    too_long = unlike = 0
    for chunk in _chunks(pairs, _PAIRS_AT_ONCE):
        source, target = (tokenizer.encode_batch(texts) for texts in zip(*chunk, strict=True))
        shorter, longer = np.sort([list(map(len, source)), list(map(len, target))], axis=0)
        fits = longer < data.sequence_length
        alike = (longer <= _SHORT) | (longer <= data.max_length_ratio * shorter)
        too_long += int((~fits).sum())
        unlike += int((fits & ~alike).sum())
        kept = np.flatnonzero(fits & alike)
        encoded.append(([source[index] for index in kept], [target[index] for index in kept]))
    sides = EncodedPairs(*(_ended([ids for chunk in encoded for ids in chunk[side]]) for side in (0, 1)))
    return sides, EncodingCounts(len(sides), too_long, unlike, len(sides.source.tokens), len(sides.target.tokens))


def pack_pairs(encoded: EncodedPairs, length: int) -> Rows:
    """All pairs in rows of `length` tokens on each side, several in a row; the keys of the batch
    contract but `weights`.

    First fit: every pair goes to the oldest of at most 256 open rows that has room for both its
    sides; where none has, the fullest is closed and a new one opened. Rows are in the order of
    their opening, pairs in a row in that of `encoded`. Segmentation counts the pairs of a row from
    1, positions the tokens of a pair's side from 0; 0 is padding.
    """
    row, before = _first_fit(encoded.source.lengths, encoded.target.lengths, length)
    return _rows(encoded, length, row, before)


def bucket_pairs(encoded: EncodedPairs, length: int) -> dict[int, Rows]:
    """One pair a row, each in the shortest rows that hold both its sides: `length` / 8, / 4, / 2 or
    / 1 tokens.

    Returns:
      the rows of each length, the shortest first, as `pack_pairs` gives them and in the order of
      `encoded`; a length that no pair needs has no rows.
    """
    widths = np.array([length // divisor for divisor in BUCKET_DIVISORS])
    bucket = widths.searchsorted(np.maximum(encoded.source.lengths, encoded.target.lengths))
    rows = {}
    for number, width in enumerate(widths.tolist()):
        chosen = _select(encoded, np.flatnonzero(bucket == number))
        rows[width] = _rows(chosen, width, np.arange(len(chosen)), np.zeros((3, len(chosen)), np.int64))
    return rows


def rows_by_length(encoded: EncodedPairs, data: TranslationDataConfig) -> dict[int, Rows]:
    """The rows that data.layout asks for, by their length, the shortest first."""
    if data.layout == "packed":
        return {data.sequence_length: pack_pairs(encoded, data.sequence_length)}
    return bucket_pairs(encoded, data.sequence_length)


def _chunks(pairs: Iterable[Pair], size: int) -> Iterable[Sequence[Pair]]:
    chunk: list[Pair] = []
    for pair in pairs:
        chunk.append(pair)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _ended(sentences: Sequence[np.ndarray]) -> EncodedSide:
    bounds = np.zeros(len(sentences) + 1, np.int64)
    np.cumsum([len(ids) + 1 for ids in sentences], out=bounds[1:])
    tokens = np.full(bounds[-1], EOS_ID, np.int32)
    is_end = np.zeros(len(tokens), bool)
    is_end[bounds[1:] - 1] = True
    if sentences:
        tokens[~is_end] = np.concatenate(sentences)
    return EncodedSide(tokens, bounds)


def _select(encoded: EncodedPairs, chosen: Int64[np.ndarray, " k"]) -> EncodedPairs:
    def part(side: EncodedSide) -> EncodedSide:
        lengths = side.lengths[chosen]
        bounds = np.zeros(len(chosen) + 1, np.int64)
        np.cumsum(lengths, out=bounds[1:])
        return EncodedSide(side.tokens[np.repeat(side.bounds[chosen], lengths) + _places(bounds)], bounds)

    return EncodedPairs(part(encoded.source), part(encoded.target))


def _first_fit(
    source: Int64[np.ndarray, " P"], target: Int64[np.ndarray, " P"], length: int
) -> tuple[Int64[np.ndarray, " P"], Int64[np.ndarray, "3 P"]]:
    """The row of each pair, and what is in that row before it: pairs, source tokens, target
    tokens.
    """
    rows = np.zeros(len(source), np.int64)
    before = np.zeros((3, len(source)), np.int64)
    # Open rows, in the order of their opening: their numbers, pairs, and tokens on both sides.
    number = np.arange(_OPEN_ROWS)
    used = np.zeros((3, _OPEN_ROWS), np.int64)
    source_used, target_used = used[1], used[2]
    opened = 1
    for pair, (source_length, target_length) in enumerate(zip(source.tolist(), target.tolist(), strict=True)):
        fits = (source_used[:opened] <= length - source_length) & (target_used[:opened] <= length - target_length)
        slot = int(fits.argmax())
        if not fits[slot]:
            if opened == _OPEN_ROWS:
                slot = int((source_used + target_used).argmax())
                newest = number[-1]
                number[slot:-1], used[:, slot:-1] = number[slot + 1 :], used[:, slot + 1 :]
                number[-1], used[:, -1] = newest + 1, 0
            else:
                opened += 1
            slot = opened - 1
        rows[pair] = number[slot]
        before[:, pair] = used[:, slot]
        used[0, slot] += 1
        source_used[slot] += source_length
        target_used[slot] += target_length
    return rows, before


def _rows(encoded: EncodedPairs, length: int, row: Int64[np.ndarray, " P"], before: Int64[np.ndarray, "3 P"]) -> Rows:
    """The rows in which pair p begins behind `before`[:, p] (pairs, source tokens, target tokens)
    of row `row`[p].
    """
    num_rows = int(row.max()) + 1 if len(row) else 0
    rows: Rows = {}
    for side, prefix, tokens_before in ((encoded.source, "inputs", before[1]), (encoded.target, "targets", before[2])):
        places = _places(side.bounds)
        flat = np.repeat(row * length + tokens_before, side.lengths) + places
        values = {"": side.tokens, "_position": places, "_segmentation": np.repeat(before[0] + 1, side.lengths)}
        for suffix, value in values.items():
            filled = np.zeros(num_rows * length, np.int32)
            filled[flat] = value
            rows[prefix + suffix] = filled.reshape(num_rows, length)
    shifted = np.zeros((num_rows, length), np.int32)
    shifted[:, 1:] = rows["targets"][:, :-1]
    begins = (rows["targets_position"] == 0) & (rows["targets_segmentation"] > 0)
    rows["decoder_inputs"] = np.where(begins, BOS_ID, np.where(rows["targets_segmentation"] > 0, shifted, 0)).astype(np.int32)
    return rows


def _places(bounds: Int64[np.ndarray, " bounds"]) -> Integer[np.ndarray, " n"]:
    """The place of every token in its sentence, from 0."""
    return np.arange(bounds[-1]) - np.repeat(bounds[:-1], np.diff(bounds))
