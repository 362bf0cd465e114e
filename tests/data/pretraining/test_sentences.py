"""Sentence ends where a reader sees them, and not a character lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhsh.data.pretraining.sentences import sentences

# What sentence rules turn on, and white space that is no plain space.
AWKWARD = [*'.!?()"\n\r\x85\u2028\u2019\xa0\u2026B', "Mr.", "U.S.", "J.", "e.g."]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("Dr. Smith met J. R. R. Tolkien. He paid $3.50.", ["Dr. Smith met J. R. R. Tolkien. ", "He paid $3.50."]),
        ("It was 5 p.m. on Jan. 5th. Was it? Yes!", ["It was 5 p.m. on Jan. 5th. ", "Was it? ", "Yes!"]),
        ("Title\nFirst. Second.\nThird", ["Title\n", "First. ", "Second.\n", "Third"]),
        ("One.\n\n \nTwo.\n", ["One.\n\n \n", "Two.\n"]),
        (" \n\nOne.", [" \n\nOne."]),
        ("", []),
        ("\n", ["\n"]),
    ],
)
def test_ends(document: str, expected: list[str]) -> None:
    assert sentences(document) == expected


@pytest.mark.parametrize("space", ["\u0085", "\u00a0", "\u2009", "\u2028", "\u3000"])
def test_a_white_space_of_several_bytes_after_an_initial(space: str) -> None:
    document = f"John B{space}. came. He left."
    assert sentences(document) == [f"John B{space}. came. ", "He left."]


@given(
    st.lists(
        st.one_of(
            st.sampled_from(AWKWARD),
            st.text(max_size=4),
        )
    ).map(" ".join)
)
def test_nothing_is_lost(document: str) -> None:
    found = sentences(document)
    assert "".join(found) == document
    assert all(found)
    assert len(found) <= 1 or not any(sentence.isspace() for sentence in found)
    assert not any("\n" in sentence.rstrip() for sentence in found[1:])
