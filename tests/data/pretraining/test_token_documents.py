"""Sentence and document bounds over the flat token array."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mhsh.data.pretraining.token_documents import TokenDocuments, cut_long_sentences, tokenise
from mhsh.data.tokenizers.wordpiece import ByteTokenizer


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


def test_nothing_to_tokenise() -> None:
    for texts in ([], [""]):
        documents = tokenise(texts, ByteTokenizer(), lines)
        assert (documents.num_documents, len(documents.tokens), documents.sentence_bounds.tolist()) == (0, 0, [0])


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
