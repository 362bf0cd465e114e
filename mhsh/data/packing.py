"""Documents cut into sentences, tokenised, and packed into examples of T tokens: sentence pairs,
single segments, or one stream.

The packed arrays have nothing that follows from the rest; `full_examples` makes of them what a
model reads:
  tokens: ids [R,T] of mlm, padding included, or [R,T+1] of clm; uint16 where every id fits, else
    int32.
  ends [R,2] int32, mlm: the number of tokens of [CLS] A [SEP], and of the whole example.
  next_sentence [R] int32, with that head.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import sentencex
from jaxtyping import Int32, Int64

from mhsh.config.schema import DataConfig, ModelConfig
from mhsh.data.tables import Examples, bounds_of
from mhsh.data.wordpiece import Tokenizer, count_unknown
from mhsh.errors import UserError

# Examples gathered at once: bounds the int64 index arrays of a large corpus.
_EXAMPLES_AT_ONCE = 16384
# sentencex 1.0.32 panics where a white space of several UTF-8 bytes (U+0085, U+00A0, U+2028 ...)
# follows an initial, so it gets a plain space instead. One character replaces one, so the cuts that
# it finds hold in the original too.
_WHITE_SPACE = {code: " " for code in range(0x10000) if chr(code).isspace()}

# Texts given to the tokenizer at once: enough to keep its threads busy, few enough that its objects
# stay small.
_TEXTS_AT_ONCE = 4096


def sentences(document: str) -> list[str]:
    """The sentences of a document with one paragraph a line, whose end ends a sentence too.

    The splitter is Wikimedia's sentencex, which needs no model and no download and knows the
    abbreviations of English. Nothing is lost: the sentences joined together are the document again.
    White space stays with the sentence before it.
    """
    cut: list[str] = []
    for line in re.findall(r"[^\n]*\n|[^\n]+", document):
        start = 0
        pieces = sentencex.segment("en", line.translate(_WHITE_SPACE))  # pyrefly: ignore[missing-attribute] (compiled)
        for piece in pieces:
            stop = start + len(piece)
            # White space alone is not a sentence. It stays with the sentence before it or, at the
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
    unknown_counts: Mapping[str, int]  # as `count_unknown`

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
        sentence_bounds=bounds_of(lengths[filled]),
        document_bounds=bounds_of(sentences_in_document[sentences_in_document > 0]),
        unknown_counts=count_unknown(texts, ids, tokenizer),
    )


def cut_long_sentences(documents: TokenDocuments, longest: int) -> tuple[TokenDocuments, int]:
    """The documents with sentences of at most `longest` tokens, and how many sentences were cut."""
    lengths = np.diff(documents.sentence_bounds)
    pieces = -(-lengths // longest)
    first_piece = bounds_of(pieces)  # number of the first piece of each sentence
    # A piece starts at its sentence's start plus `longest` for every piece before it.
    number_in_sentence = np.arange(first_piece[-1]) - np.repeat(first_piece[:-1], pieces)
    starts = np.repeat(documents.sentence_bounds[:-1], pieces) + longest * number_in_sentence
    bounds = {
        "sentence_bounds": np.append(starts, documents.sentence_bounds[-1]),
        "document_bounds": first_piece[documents.document_bounds],
    }
    return dataclasses.replace(documents, **bounds), int((pieces > 1).sum())


def split_limit(model: ModelConfig, data: DataConfig) -> int:
    """The most tokens of a sentence: an example holds any, or any two with next_sentence. Raises
    UserError where data.sequence_length has no room for the specials and a token of each.
    """
    smallest = 5 if model.next_sentence else 3
    if data.sequence_length < smallest:
        raise UserError(
            f"data.sequence_length = {data.sequence_length} has no room for [CLS], [SEP] and text; allowed with "
            f"model.next_sentence = {model.next_sentence}: {smallest} or more"
        )
    return (data.sequence_length - 3) // 2 if model.next_sentence else data.sequence_length - 2


def pack(
    documents: TokenDocuments, tokenizer: Tokenizer, model: ModelConfig, data: DataConfig, rng: np.random.Generator
) -> tuple[Examples, int, int]:
    """Examples in one of three layouts, and how many sentences (mlm) were cut and tokens (clm)
    dropped. No layout repeats or invents a token.

    mlm with next_sentence: [CLS] A [SEP] B [SEP], where A and B are runs of whole sentences.
      `next_sentence` is 1 where B follows A in its document, 0 where B comes from another document.
      Source: Devlin et al., arXiv 1810.04805, appendix A.2. Unlike in their script, nothing is
      truncated.
    mlm: [CLS] sentences [SEP], as many whole sentences of one document as fit (DOC-SENTENCES of Liu
      et al., arXiv 1907.11692).
    clm: all documents in one stream, [SEP] after each. Example r predicts tokens r T + 1 to r T + T
      of the stream from those before, so every token but the first is a target once. The end that
      fills no example is dropped and counted.

    `documents` are split into sentences for mlm; for clm into any pieces. `rng` draws where pairs
    are split and which are random. Raises UserError where the rows are too short for the specials,
    or there is a single document with next_sentence.
    """
    length = data.sequence_length
    if model.objective == "clm":
        examples, dropped = _stream_examples(documents, tokenizer, length)
        return examples, 0, dropped
    pieces, cut = cut_long_sentences(documents, split_limit(model, data))
    if model.next_sentence:
        edges, is_next = _plan_pairs(pieces, length - 3, rng)
        examples = _gather(pieces, edges, tokenizer, length) | {"next_sentence": is_next}
    else:
        examples = _gather(pieces, _plan_segments(pieces, length - 2), tokenizer, length)
    return examples, cut, 0


def full_examples(packed: Examples, model: ModelConfig) -> Examples:
    """The arrays of a batch that follow from packed examples alone, all int32: inputs,
    inputs_position, inputs_segmentation [R,T] (0 in padding, else 1), targets [R,T] for clm, and
    where there are such, next_sentence [R] and token_types [R,T] (0 up to the first [SEP], then 1).
    """
    tokens = packed["tokens"].astype(np.int32)
    if model.objective == "clm":
        shape = (len(tokens), tokens.shape[1] - 1)
        full = {
            "inputs": np.ascontiguousarray(tokens[:, :-1]),
            "inputs_position": np.tile(np.arange(shape[1], dtype=np.int32), (shape[0], 1)),
            "inputs_segmentation": np.ones(shape, np.int32),
            "targets": np.ascontiguousarray(tokens[:, 1:]),
        }
        return full | ({"token_types": np.zeros(shape, np.int32)} if model.num_token_types else {})
    column = np.arange(tokens.shape[1], dtype=np.int32)
    first_end, end = packed["ends"][:, :1], packed["ends"][:, 1:]
    real = (column < end).astype(np.int32)
    full = {"inputs": tokens, "inputs_position": column * real, "inputs_segmentation": real}
    if model.num_token_types:
        full["token_types"] = (column >= first_end) * real
    if "next_sentence" in packed:
        full["next_sentence"] = packed["next_sentence"]
    return full


def _token_dtype(tokenizer: Tokenizer) -> np.dtype:
    return np.dtype(np.uint16 if tokenizer.vocab_size <= 2**16 else np.int32)


def _stream_examples(documents: TokenDocuments, tokenizer: Tokenizer, length: int) -> tuple[Examples, int]:
    ends = documents.sentence_bounds[documents.document_bounds[1:]]
    stream = np.insert(documents.tokens, ends, np.int32(tokenizer.sep_id)).astype(_token_dtype(tokenizer))
    num_examples = max(0, len(stream) - 1) // length
    used = num_examples * length
    # Example r ends with the token that example r + 1 begins with.
    inputs, last = stream[:used].reshape(num_examples, length), stream[1 : used + 1].reshape(num_examples, length)[:, -1:]
    return {"tokens": np.concatenate([inputs, last], axis=1)}, len(stream) - used - (1 if num_examples else 0)


def _plan_segments(documents: TokenDocuments, room: int) -> Int64[np.ndarray, "R 4"]:
    """The first token and the end of A, and an empty B, of each example: as many whole sentences of
    a document as fit into `room` tokens.
    """
    bounds = documents.sentence_bounds
    spans: list[tuple[int, int]] = []
    for first, stop in zip(documents.document_bounds[:-1].tolist(), documents.document_bounds[1:].tolist(), strict=True):
        start = first
        while start < stop:
            end = _fit(bounds, start, stop, room)
            spans.append((start, end))
            start = end
    edges = bounds[np.array(spans, np.int64).reshape(-1, 2)]
    return np.concatenate([edges, np.zeros_like(edges)], axis=1)


def _plan_pairs(
    documents: TokenDocuments, room: int, rng: np.random.Generator
) -> tuple[Int64[np.ndarray, "R 4"], Int32[np.ndarray, " R"]]:
    """Sentence pairs that fill `room` tokens as far as whole sentences do: the first token and the
    end of A and of B, and whether B follows A.

    Sentences are taken in order until the next one would not fit, and split at random into A and
    the rest. In half of the cases B is the rest. Otherwise B is a run of sentences of another
    document, and the rest begins the next example. A single last sentence can only get a random B;
    that happens at most once a document.
    """
    if documents.num_documents < 2:
        raise UserError(
            "model.next_sentence = True needs text in two documents of training and of validation at least, but one of them has "
            f"{documents.num_documents}; raise data.validation_fraction or give more documents"
        )
    bounds = documents.sentence_bounds
    edges = documents.document_bounds.tolist()
    spans: list[tuple[int, int, int, int, int]] = []
    for document in range(documents.num_documents):
        start, stop = edges[document], edges[document + 1]
        while start < stop:
            end = _fit(bounds, start, stop, room)
            if end == stop - 1 and end - start > 2:
                end -= 1  # leaves two sentences, which can be a true pair, rather than one, which cannot
            middle = start + 1 + int(rng.integers(end - start - 1)) if end - start > 1 else end
            if middle < end and rng.random() < 0.5:
                spans.append((start, middle, middle, end, 1))
                start = end
                continue
            other = int(rng.integers(documents.num_documents - 1))
            other += other >= document
            first = int(rng.integers(edges[other], edges[other + 1]))
            last = _fit(bounds, first, edges[other + 1], room - int(bounds[middle] - bounds[start]))
            if last == first:
                # A is shortened, so that one sentence fits beside it. There is room for one: see
                # `split_limit`.
                last = first + 1
                middle = _fit(bounds, start, middle, room - int(bounds[last] - bounds[first]))
            spans.append((start, middle, first, last, 0))
            start = middle
    table = np.array(spans, np.int64).reshape(-1, 5)
    return bounds[table[:, :4]], table[:, 4].astype(np.int32)


def _fit(bounds: Int64[np.ndarray, " bounds"], start: int, stop: int, room: int) -> int:
    """The end of the longest run of sentences from `start` with at most `room` tokens."""
    # No sentence is empty, so at most `room` of them fit. Searching only those makes the time
    # independent of the size of the corpus.
    limit = min(stop, start + room)
    return start + int(bounds[start + 1 : limit + 1].searchsorted(bounds[start] + room, "right"))


def _gather(documents: TokenDocuments, edges: Int64[np.ndarray, "R 4"], tokenizer: Tokenizer, length: int) -> Examples:
    """The examples of the edges: [CLS] A [SEP], and then B [SEP] where B is not empty."""
    num_examples = len(edges)
    examples = {"tokens": np.empty((num_examples, length), _token_dtype(tokenizer)), "ends": np.empty((num_examples, 2), np.int32)}
    column = np.arange(length)
    for first in range(0, num_examples, _EXAMPLES_AT_ONCE):
        block = slice(first, min(first + _EXAMPLES_AT_ONCE, num_examples))
        a_start, a_stop, b_start, b_stop = (edges[block, side, None] for side in range(4))
        a_end = 1 + a_stop - a_start  # column of the first [SEP]
        b_length = b_stop - b_start
        b_end = np.where(b_length > 0, a_end + 1 + b_length, a_end)  # column of the last [SEP]
        source = np.where(column < a_end, a_start + column - 1, b_start + column - a_end - 1)
        # Columns of specials and padding point anywhere inside the array; they are overwritten.
        tokens = documents.tokens[np.clip(source, 0, len(documents.tokens) - 1)]
        tokens = np.where((column == a_end) | (column == b_end), tokenizer.sep_id, tokens)
        tokens[:, 0] = tokenizer.cls_id
        examples["tokens"][block] = np.where(column <= b_end, tokens, tokenizer.pad_id)
        examples["ends"][block] = np.concatenate([a_end, b_end], axis=1) + 1
    return examples
