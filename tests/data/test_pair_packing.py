"""Rows against a plain reference: every pair once, whole, in one row, with the keys of the batch
contract.
"""

from __future__ import annotations

from collections import Counter
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mhsh.config.schema import TranslationDataConfig
from mhsh.data.pairs import Pair
from mhsh.data.subword import BOS_ID, EOS_ID, SubwordTokenizer, train_subword
from mhsh.data.synthetic import training_pairs
from mhsh.data.translation import EncodedSide, encode_pairs, pack_pairs
from tests.data.preparing import translation_config

T = 16
DATA = cast(TranslationDataConfig, translation_config(source="numbers", sequence_length=T, max_length_ratio=2.0).data)
KEYS = {"inputs", "inputs_position", "inputs_segmentation", "decoder_inputs", "targets", "targets_position", "targets_segmentation"}
Sentences = list[tuple[list[int], list[int]]]


def encoded(pairs: Sentences) -> tuple[EncodedSide, EncodedSide]:
    """Both sides of pairs, each sentence ending with the end mark, as `encode_pairs` gives them."""

    def side(sentences: list[list[int]]) -> EncodedSide:
        bounds = np.cumsum([0, *map(len, sentences)]).astype(np.int64)
        return EncodedSide(np.array([number for ids in sentences for number in ids], np.int32), bounds)

    return side([source for source, _ in pairs]), side([target for _, target in pairs])


def read_back(rows: dict[str, np.ndarray]) -> list[Sentences]:
    """The pairs of each row, in its order; on the way everything that a row must be is checked,
    place by place.
    """
    assert rows.keys() == KEYS
    assert {values.dtype for values in rows.values()} == {np.dtype(np.int32)}
    found = []
    for number in range(len(rows["inputs"])):
        row = {name: values[number].tolist() for name, values in rows.items()}
        pairs: Sentences = []
        for segment in range(1, max(row["inputs_segmentation"]) + 1):
            sides = []
            for name in ("inputs", "targets"):
                places = [place for place, count in enumerate(row[f"{name}_segmentation"]) if count == segment]
                assert places == list(range(places[0], places[-1] + 1))
                assert [row[f"{name}_position"][place] for place in places] == list(range(len(places)))
                sides.append([row[name][place] for place in places])
                if name == "targets":
                    assert [row["decoder_inputs"][place] for place in places] == [BOS_ID, *sides[1][:-1]]
            assert sides[0][-1] == sides[1][-1] == EOS_ID
            pairs.append((sides[0], sides[1]))
        for name, side in (("inputs", 0), ("targets", 1)):
            used = sum(len(pair[side]) for pair in pairs)
            padding = {key: row[key][used:] for key in row if key.startswith(name) or (side and key == "decoder_inputs")}
            assert not any(value for values in padding.values() for value in values)
        found.append(pairs)
    return found


sentence = st.lists(st.integers(4, 99), max_size=T - 1).map(lambda ids: [*ids, EOS_ID])


def first_fit(pairs: Sentences, open_rows: int) -> list[Sentences]:
    """The packing rule, said plainly."""
    rows: list[Sentences] = []
    waiting: list[int] = []

    def used(row: int, side: int) -> int:
        return sum(len(pair[side]) for pair in rows[row])

    for pair in pairs:
        fitting = [row for row in waiting if all(used(row, side) + len(pair[side]) <= T for side in (0, 1))]
        if not fitting:
            if len(waiting) == open_rows:
                waiting.remove(max(waiting, key=lambda row: (used(row, 0) + used(row, 1), -row)))
            rows.append([])
            waiting.append(len(rows) - 1)
            fitting = waiting[-1:]
        rows[fitting[0]].append(pair)
    return rows


@settings(max_examples=60, deadline=None)
@given(pairs=st.lists(st.tuples(sentence, sentence), max_size=60), open_rows=st.integers(2, 5))
def test_packing_is_first_fit_and_loses_nothing(pairs: Sentences, open_rows: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mhsh.data.translation._OPEN_EXAMPLES", open_rows)
        found = read_back(pack_pairs(*encoded(pairs), T))
    assert found == first_fit(pairs, open_rows)


@pytest.fixture(scope="module")
def tokenizer() -> SubwordTokenizer:
    return train_subword(["a b c d"], 270)  # single letters, so that lengths are plain to see


def test_encoding_drops_and_counts(tokenizer: SubwordTokenizer) -> None:
    def letters(count: int) -> str:
        return " ".join("a" * count)

    per_letter = len(tokenizer.encode_batch([letters(10)])[0]) // 10
    data = replace(DATA, sequence_length=40 * per_letter)
    lengths = [(1, 1), (1, 5), (20, 9), (20, 10), (9, 20), (39, 38), (40, 39), (30, 31), (200, 1)]
    pairs = [Pair(letters(source), letters(target)) for source, target in lengths]
    *sides, counts = encode_pairs(tokenizer, pairs, data)
    expected = []
    for source, target in lengths:
        longer, shorter = max(source, target) * per_letter, min(source, target) * per_letter
        fits, alike = longer + 1 <= data.sequence_length, longer <= 10 or longer <= 2 * shorter
        expected.append("kept" if fits and alike else "unlike" if fits else "too_long")
    tally = Counter(expected)
    assert (counts["pairs"], counts["too_long"], counts["unlike"]) == (tally["kept"], tally["too_long"], tally["unlike"])
    assert min(tally.values()) >= 2
    kept = [pair for pair, verdict in zip(pairs, expected, strict=True) if verdict == "kept"]
    for side, texts in zip(sides, zip(*kept, strict=True), strict=True):
        assert len(side.lengths) == len(kept)
        for number, ids in enumerate(tokenizer.encode_batch(texts)):
            np.testing.assert_array_equal(side.tokens[side.bounds[number] : side.bounds[number + 1]], [*ids, EOS_ID])
    assert [counts["source_tokens"], counts["target_tokens"]] == [side.lengths.sum() for side in sides]


def test_packed_rows_are_mostly_full() -> None:
    pairs = [Pair(*pair) for pair in training_pairs(3000)]
    tokenizer = train_subword([text for pair in pairs for text in pair], 400)
    *sides, counts = encode_pairs(tokenizer, pairs, replace(DATA, sequence_length=64, max_length_ratio=9.0))
    packed = pack_pairs(*sides, 64)
    assert counts["pairs"] == 3000
    assert max(counts["source_tokens"], counts["target_tokens"]) / packed["inputs"].size > 0.9
    assert sum(map(len, read_back(packed))) == 3000
