"""Documents before they are packed: cut into sentences, and tokenised."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

import numpy as np
import sentencex
from jaxtyping import Int32, Int64

from mhsh.data.tokenizers.wordpiece import Tokenizer

# sentencex 1.0.32 panics where a white space of several UTF-8 bytes (U+0085, U+00A0, U+2028 ...)
# follows an initial, so it gets a plain space instead. One character replaces one, so the cuts that
# it finds hold in the original too.
_WHITE_SPACE = {code: " " for code in range(0x10000) if chr(code).isspace()}

# Texts given to the tokenizer at once: enough to keep its threads busy, few enough that its objects
# stay small.
_TEXTS_AT_ONCE = 4096


def sentences(document: str, language: str = "en") -> list[str]:
    """The sentences of a document with one paragraph a line. A sentence ends at the end of its line
    at the latest.

    The splitter is Wikimedia's sentencex, a library that needs no model and no download. Nothing is
    lost: the sentences joined together are the document again. White space stays with the sentence
    before it. (WordPiece drops it; bytes keep it.)

    Args:
      document: lines ended by "\\n" only.
      language: the ISO 639-1 code, for the abbreviations that the splitter knows.
    """
    cut: list[str] = []
    for line in re.findall(r"[^\n]*\n|[^\n]+", document):
        start = 0
        pieces = sentencex.segment(language, line.translate(_WHITE_SPACE))  # pyrefly: ignore[missing-attribute] (compiled)
        for piece in pieces:
            stop = start + len(piece)
            # White space alone is no sentence. It stays with the sentence before it or, at the very
            # start, with the one after it.
            if cut and (piece.isspace() or cut[-1].isspace()):
                cut[-1] += line[start:stop]
            else:
                cut.append(line[start:stop])
            start = stop
    return cut


@dataclasses.dataclass(frozen=True)
class TokenDocuments:
    """D documents as one flat array of tokens. Sentences and documents without tokens are left out.

    Sentence s is tokens[sentence_bounds[s] : sentence_bounds[s + 1]]. Document d is the sentences
    document_bounds[d] to document_bounds[d + 1] - 1.
    """

    tokens: Int32[np.ndarray, " n"]
    sentence_bounds: Int64[np.ndarray, " sentence_bounds"]
    document_bounds: Int64[np.ndarray, " document_bounds"]

    @property
    def num_documents(self) -> int:
        """D."""
        return len(self.document_bounds) - 1


def tokenise(documents: Sequence[str], tokenizer: Tokenizer, split: Callable[[str], list[str]]) -> TokenDocuments:
    """The ids of all documents, each cut by `split` into sentences or into lines."""
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
    """The documents with sentences of at most `longest` tokens, and how many sentences were cut."""
    lengths = np.diff(documents.sentence_bounds)
    pieces = -(-lengths // longest)
    first_piece = _bounds(pieces)  # number of the first piece of each sentence
    # A piece starts at its sentence's start plus `longest` for every piece before it.
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
    """The bounds of consecutive runs with these lengths."""
    bounds = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    return bounds
