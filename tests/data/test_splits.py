"""Validation examples that stand in the training data."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mhsh.data.tables import format_overlap, overlap

TEXTS = st.lists(st.sampled_from(["one", "two", "three", "four"]).map(lambda text: (text,)), max_size=6)


@given(TEXTS, TEXTS)
def test_every_one_is_counted_as_often_as_it_is_validated(train, validation):
    assert overlap(iter(train), validation) == {"count": sum(each in train for each in validation), "of": len(validation)}


def test_in_words():
    assert format_overlap({"count": 0, "of": 9}) == ""
    assert format_overlap({"count": 10570, "of": 10570}).startswith(
        "10,570 of 10,570 validation examples are also training examples: "
    )
