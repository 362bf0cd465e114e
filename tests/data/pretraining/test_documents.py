"""Each document once, in a split that depends on its content and the seed alone; sentences and
tokens without a loss.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mhsh.data.pretraining.packing import TokenDocuments, cut_long_sentences, sentences, tokenise
from mhsh.data.pretraining.task import PretrainingTask
from mhsh.data.tokenizers.wordpiece import ByteTokenizer
from mhsh.errors import UserError
from tests.data.preparing import pretraining_config

# What sentence rules turn on, and white space that is no plain space.
AWKWARD = [*'.!?()"\n\r\x85\u2028\u2019\xa0\u2026B', "Mr.", "U.S.", "J.", "e.g."]


def parts(documents: list[str], config: Any) -> dict[str, list[str]]:
    task = PretrainingTask(config.model, config.data)
    found: dict[str, list[str]] = {"train": [], "validation": []}
    try:
        for split, (document,) in task.split([((text,) for text in documents)], dict.fromkeys(task.counted, 0)):
            found[split].append(document)
    except UserError:  # at the end, where a side has too few
        pass
    return found


def test_the_split_depends_on_content_and_seed_alone(english: list[str]) -> None:
    config = pretraining_config()
    found = parts(english, config)
    assert [document for document in english if document in found["train"]] == found["train"]
    turned = parts(english[::-1], config)
    assert {split: set(texts) for split, texts in turned.items()} == {split: set(texts) for split, texts in found.items()}
    # A document alone is on the side it is on among others.
    for split, texts in found.items():
        assert all(parts([text], config)[split] == [text] for text in texts)
    assert parts(english, replace(config, data=replace(config.data, seed=1))) != found


@pytest.mark.parametrize("fraction", [0.0, 0.01, 0.25, 0.9])
def test_the_share_held_out(fraction: float) -> None:
    count = 20_000
    found = parts([f"document {number}" for number in range(count)], pretraining_config(validation_fraction=fraction))
    # Fair coins; five standard deviations.
    assert abs(len(found["validation"]) / count - fraction) <= 5 * np.sqrt(fraction * (1 - fraction) / count)


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
def test_sentences_end_where_a_reader_sees_it(document: str, expected: list[str]) -> None:
    assert sentences(document) == expected


@pytest.mark.parametrize("space", ["\u0085", "\u00a0", "\u2009", "\u2028", "\u3000"])
def test_a_white_space_of_several_bytes_after_an_initial(space: str) -> None:
    document = f"John B{space}. came. He left."
    assert sentences(document) == [f"John B{space}. came. ", "He left."]


@given(st.lists(st.one_of(st.sampled_from(AWKWARD), st.text(max_size=4))).map(" ".join))
def test_sentences_lose_nothing(document: str) -> None:
    found = sentences(document)
    assert "".join(found) == document
    assert all(found)
    assert len(found) <= 1 or not any(sentence.isspace() for sentence in found)
    assert not any("\n" in sentence.rstrip() for sentence in found[1:])


def lines(document: str) -> list[str]:
    return document.split("\n")


def as_lists(documents: TokenDocuments) -> list[list[list[int]]]:
    return [
        [
            documents.tokens[documents.sentence_bounds[s] : documents.sentence_bounds[s + 1]].tolist()
            for s in range(documents.document_bounds[d], documents.document_bounds[d + 1])
        ]
        for d in range(documents.num_documents)
    ]


def test_bounds_literal() -> None:
    documents = tokenise(["ab\nc", "", "\nd\n"], ByteTokenizer(), lines)
    assert documents.tokens.tolist() == [5 + ord(character) for character in "abcd"]
    assert documents.tokens.dtype == np.int32
    assert documents.sentence_bounds.tolist() == [0, 2, 3, 4]  # empty sentences are left out
    assert documents.document_bounds.tolist() == [0, 2, 3]  # and the document that has no other


@given(st.lists(st.lists(st.text("abc", max_size=12), min_size=1, max_size=5), max_size=5), st.integers(1, 6))
def test_cutting_parts_long_sentences_and_nothing_else(texts: list[list[str]], longest: int) -> None:
    documents = tokenise(["\n".join(sentences) for sentences in texts], ByteTokenizer(), lines)
    before = as_lists(documents)
    assert before == [
        filled for sentences in texts if (filled := [[5 + ord(character) for character in text] for text in sentences if text])
    ]
    cut, count = cut_long_sentences(documents, longest)
    assert as_lists(cut) == [
        [sentence[start : start + longest] for sentence in document for start in range(0, len(sentence), longest)]
        for document in before
    ]
    assert count == sum(len(sentence) > longest for document in before for sentence in document)
