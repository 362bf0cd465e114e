"""Tokenised documents as one flat array of tokens with the bounds of its sentences and
documents.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int32, Int64

from mhsh.data.tokenizers.wordpiece import Tokenizer

# Texts handed to the tokenizer at once: enough to keep its threads busy, few enough that its
# objects stay small.
_TEXTS_AT_ONCE = 4096


@dataclasses.dataclass(frozen=True)
class TokenDocuments:
    """D documents of S sentences of n tokens in all; a sentence or document without tokens is not
    among them.
    """

    tokens: Int32[np.ndarray, " n"]
    sentence_bounds: Int64[np.ndarray, " sentence_bounds"]  # sentence s is tokens[sentence_bounds[s] : sentence_bounds[s + 1]]
    document_bounds: Int64[
        np.ndarray, " document_bounds"
    ]  # document d is the sentences document_bounds[d] to document_bounds[d + 1]

    @property
    def num_documents(self) -> int:
        """D."""
        return len(self.document_bounds) - 1


def tokenise(documents: Sequence[str], tokenizer: Tokenizer, split: Callable[[str], list[str]]) -> TokenDocuments:
    """Splits every document by `split` (into sentences, or into lines) and maps the pieces to
    ids.
    """
    pieces = [split(document) for document in documents]
    texts = [text for document in pieces for text in document]
    ids: list[np.ndarray] = []
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        ids += tokenizer.encode_batch(texts[start : start + _TEXTS_AT_ONCE])
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    filled = lengths > 0
    document_of_text = np.repeat(np.arange(len(pieces)), [len(document) for document in pieces])
    sentences_in_document = np.bincount(document_of_text[filled], minlength=len(pieces))
    return TokenDocuments(
        tokens=np.concatenate(ids) if ids else np.zeros(0, np.int32),
        sentence_bounds=_bounds(lengths[filled]),
        document_bounds=_bounds(sentences_in_document[sentences_in_document > 0]),
    )


def cut_long_sentences(documents: TokenDocuments, longest: int) -> tuple[TokenDocuments, int]:
    """Sentences of more than `longest` tokens in pieces of `longest` (the last one shorter), and
    how many were cut.
    """
    lengths = np.diff(documents.sentence_bounds)
    pieces = -(-lengths // longest)
    first_piece = _bounds(pieces)  # number of the first piece of each sentence
    # The bounds of all pieces: the sentence's own start plus `longest` for every piece before it in
    # the sentence.
    number_in_sentence = np.arange(first_piece[-1]) - np.repeat(first_piece[:-1], pieces)
    starts = np.repeat(documents.sentence_bounds[:-1], pieces) + longest * number_in_sentence
    return (
        TokenDocuments(
            tokens=documents.tokens,
            sentence_bounds=np.append(starts, documents.sentence_bounds[-1]),
            document_bounds=first_piece[documents.document_bounds],
        ),
        int((pieces > 1).sum()),
    )


def _bounds(counts: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n+1"]:
    """Where runs of these lengths begin and end."""
    bounds = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    return bounds
