"""Tables in memory and on disk give the same examples in any order."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhsh.data.shards import ZSTD, StoredTable, write_index, write_shard
from mhsh.data.tables import ArrayTable, ExampleTable, fingerprint_of, format_overlap, overlap, unigram_entropy

RNG = np.random.default_rng(3)


EXAMPLES = {"inputs": RNG.integers(1, 99, (10, 4)).astype(np.int32), "scores": RNG.normal(size=(10, 4, 2))}


@pytest.fixture(params=["memory", "disk"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> ExampleTable:
    """EXAMPLES; on disk in three shards, one of them empty."""
    if request.param == "memory":
        return ArrayTable(EXAMPLES)
    parts = [{name: values[start:stop] for name, values in EXAMPLES.items()} for start, stop in ((0, 3), (3, 3), (3, 10))]
    write_index(tmp_path, [write_shard(tmp_path, number, part, ZSTD, "job", {}) for number, part in enumerate(parts)], {})
    return StoredTable(tmp_path)


def test_examples_are_taken_in_any_order(table: ExampleTable) -> None:
    assert len(table) == 10
    for numbers in (np.arange(10), np.array([9, 0, 4, 0, 2]), np.array([1]), np.arange(0)):
        for name, values in table.take(numbers).items():
            assert values.dtype == EXAMPLES[name].dtype
            np.testing.assert_array_equal(values, EXAMPLES[name][numbers])
    for name, values in table.all().items():
        np.testing.assert_array_equal(values, EXAMPLES[name])


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
