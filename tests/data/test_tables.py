"""Tables in memory and on disk give the same examples, padded and put together in any order."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhsh.data.shards import ZSTD, StoredTable, write_index, write_shard
from mhsh.data.tables import ArrayTable, Examples, Table, fingerprint_of, format_overlap, overlap, unigram_entropy

RNG = np.random.default_rng(3)


def group(count: int, length: int) -> Examples:
    return {"inputs": RNG.integers(1, 99, (count, length)).astype(np.int32), "scores": RNG.normal(size=(count, length, 2))}


GROUPS = [group(3, 4), group(0, 6), group(5, 8), group(2, 8)]


@pytest.fixture(params=["memory", "disk"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    """The examples of GROUPS; on disk in two shards, which leave the empty group out."""
    if request.param == "memory":
        return ArrayTable(GROUPS)
    shards = [write_shard(tmp_path, number, part, ZSTD, "job", {}) for number, part in enumerate((GROUPS[:3], GROUPS[3:]))]
    write_index(tmp_path, shards, {})
    return StoredTable(tmp_path)


def padded(number: int, length: int) -> dict[str, np.ndarray]:
    """Example `number` of GROUPS, the plain way."""
    for examples in GROUPS:
        if number < len(examples["inputs"]):
            break
        number -= len(examples["inputs"])
    width = length - examples["inputs"].shape[1]
    return {name: np.pad(values[number], [(0, width), *[(0, 0)] * (values.ndim - 2)]) for name, values in examples.items()}


@pytest.mark.parametrize("length", [8, 11])
def test_examples_of_different_lengths_are_padded(table: Table, length: int) -> None:
    for numbers in (np.arange(10), np.array([9, 0, 4, 0, 2]), np.array([1]), np.array([3, 8])):
        found = table.take(numbers, length)
        for name, values in found.items():
            assert values.dtype == GROUPS[0][name].dtype
            np.testing.assert_array_equal(values, np.stack([padded(number, length)[name] for number in numbers.tolist()]))


def test_examples_of_one_shape_need_no_length(table: Table) -> None:
    for numbers, length in ((np.array([2, 0, 2]), 4), (np.array([4, 3]), 8)):
        for name, values in table.take(numbers).items():
            np.testing.assert_array_equal(values, np.stack([padded(number, length)[name] for number in numbers.tolist()]))
    assert [len(values) for values in table.take(np.arange(0)).values()] == [0, 0]


def test_examples_of_different_shapes_need_a_length(table: Table) -> None:
    with pytest.raises(ValueError, match="differ in their shapes"):
        table.take(np.array([0, 5]))
    with pytest.raises(ValueError, match="differ in their shapes"):
        table.all()


def test_a_fingerprint_covers_names_shapes_types_and_bytes() -> None:
    plain = {"a": np.arange(6, dtype=np.int32)}
    found = [
        fingerprint_of(vocabulary, tables)
        for vocabulary, tables in (
            ([b"v"], {"train": plain}),
            ([b"w"], {"train": plain}),
            ([b"v"], {"validation": plain}),
            ([b"v"], {"train": {"b": plain["a"]}}),
            ([b"v"], {"train": {"a": plain["a"].reshape(2, 3)}}),
            ([b"v"], {"train": {"a": plain["a"].astype(np.uint32)}}),
            ([b"v"], {"train": {"a": plain["a"] + 1}}),
        )
    ]
    assert len(set(found)) == len(found)
    assert fingerprint_of([b"v"], {"train": dict(plain)}) == found[0]


TEXTS = st.lists(st.sampled_from(["one", "two", "three", "four"]).map(lambda text: (text,)), max_size=6)


@given(TEXTS, TEXTS)
def test_an_overlap_counts_examples_as_often_as_they_are_validated(train, validation):
    assert overlap(iter(train), validation) == {"count": sum(each in train for each in validation), "of": len(validation)}


def test_an_overlap_in_words():
    assert format_overlap({"count": 0, "of": 9}) == ""
    assert format_overlap({"count": 10570, "of": 10570}).startswith(
        "10,570 of 10,570 validation examples are also training examples: "
    )


def test_the_entropy_of_frequencies_by_hand() -> None:
    # Frequencies 1/2, 1/4, 1/4: 1.5 bits.
    assert unigram_entropy(np.array([[7, 7], [3, 9]])) == pytest.approx(1.5 * math.log(2), abs=1e-12)
    assert unigram_entropy(np.array([4, 4, 4])) == 0
