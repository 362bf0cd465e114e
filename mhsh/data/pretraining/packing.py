"""Tokenised documents packed into fixed rows of T tokens: sentence pairs, single segments, or one
stream.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int32, Int64

from mhsh.config.schema import DataConfig, ModelConfig
from mhsh.data.pretraining.token_documents import TokenDocuments, cut_long_sentences
from mhsh.data.tokenizers.wordpiece import Tokenizer
from mhsh.errors import UserError

# Arrays that share their first axis R, the rows. Those of pre-training have nothing in them that
# follows from the rest:
# tokens: ids [R,T] of mlm, padding among them, or [R,T+1] of clm; uint16 where every id fits, else
# int32;
# ends [R,2] int32, mlm: the tokens of [CLS] A [SEP], and of the whole row;
# next_sentence [R] int32, with that head. `full_rows` makes of them what a model reads.
Rows = dict[str, np.ndarray]

# Rows gathered at once: bounds the int64 index arrays of a large corpus.
_ROWS_AT_ONCE = 16384


@runtime_checkable
class RowTable(Protocol):
    """Rows of equal shapes, in memory or on disk."""

    def __len__(self) -> int: ...

    def take(self, numbers: Int64[np.ndarray, " n"]) -> Rows:
        """The arrays of these rows, in the order asked for."""
        ...


@dataclasses.dataclass(frozen=True)
class ArrayTable:
    """A RowTable in memory."""

    rows: Rows

    def __len__(self) -> int:
        return len(next(iter(self.rows.values())))

    def take(self, numbers: Int64[np.ndarray, " n"]) -> Rows:
        """As `RowTable.take`."""
        return {name: values[numbers] for name, values in self.rows.items()}


@dataclasses.dataclass(frozen=True)
class Packing:
    """What `pack` made, and what it had to do for it."""

    rows: Rows
    cut_sentences: int  # sentences longer than a row (mlm) allows, cut into pieces
    dropped_tokens: int  # the end of a clm stream that fills no row


@dataclasses.dataclass(frozen=True)
class _Pairs:
    """Token spans of R rows; B is empty (start = stop) in rows of a single segment."""

    a_start: Int64[np.ndarray, " R"]
    a_stop: Int64[np.ndarray, " R"]
    b_start: Int64[np.ndarray, " R"]
    b_stop: Int64[np.ndarray, " R"]
    is_next: Int32[np.ndarray, " R"]


def split_limit(model: ModelConfig, data: DataConfig) -> int:
    """The tokens a sentence may have before it is cut: a row must hold one, or for sentence pairs
    any two of them.

    Raises:
      UserError: data.sequence_length has no room for the specials and a token of each segment.
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
) -> Packing:
    """Rows in one of three layouts, none of which repeats or invents a token.

    mlm with next_sentence: [CLS] A [SEP] B [SEP], A and B runs of whole sentences; `next_sentence`
      is 1 where B follows A in its document, 0 where B comes from another document. Source: Devlin
      et al., arXiv 1810.04805, appendix A.2; unlike their script, rows are never truncated.
    mlm: [CLS] sentences [SEP], as many whole sentences of one document as fit (DOC-SENTENCES of Liu
      et al., arXiv 1907.11692).
    clm: all documents in one stream, [SEP] after each; row r predicts tokens r T + 1 to r T + T of
      it from those one before, so that every token but the very first is a target once. The end
      that fills no row is dropped and counted.

    Args:
      documents: for mlm split into sentences; for clm any pieces, which are put together again.
      rng: draws where pairs are parted and which are random; not used in the other layouts.

    Raises:
      UserError: rows too short for their specials, or random sentences wanted of a single document.
    """
    length = data.sequence_length
    if model.objective == "clm":
        rows, dropped = _stream_rows(documents, tokenizer, length)
        return Packing(rows, 0, dropped)
    pieces, cut = cut_long_sentences(documents, split_limit(model, data))
    pairs = _plan_pairs(pieces, length - 3, rng) if model.next_sentence else _plan_segments(pieces, length - 2)
    rows = _gather(pieces, pairs, tokenizer, length)
    if model.next_sentence:
        rows["next_sentence"] = pairs.is_next
    return Packing(rows, cut, 0)


def full_rows(rows: Rows, model: ModelConfig) -> Rows:
    """The arrays of the batch contract that hang on the rows alone, all int32: for a batch, or for
    as many rows as there are.

    Returns:
      inputs, inputs_position, inputs_segmentation [R,T], the latter two 0 in padding, segmentation
      1 elsewhere; token_types [R,T] where the model has them: 0 up to the first [SEP], then 1, and
      0 in padding; next_sentence [R] where the rows have it; targets [R,T] for clm.
    """
    tokens = rows["tokens"].astype(np.int32)
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
    first_end, end = rows["ends"][:, :1], rows["ends"][:, 1:]
    real = (column < end).astype(np.int32)
    full = {"inputs": tokens, "inputs_position": column * real, "inputs_segmentation": real}
    if model.num_token_types:
        full["token_types"] = (column >= first_end) * real
    if "next_sentence" in rows:
        full["next_sentence"] = rows["next_sentence"]
    return full


def _token_dtype(tokenizer: Tokenizer) -> np.dtype:
    return np.dtype(np.uint16 if tokenizer.vocab_size <= 2**16 else np.int32)


def _stream_rows(documents: TokenDocuments, tokenizer: Tokenizer, length: int) -> tuple[Rows, int]:
    ends = documents.sentence_bounds[documents.document_bounds[1:]]
    stream = np.insert(documents.tokens, ends, np.int32(tokenizer.sep_id)).astype(_token_dtype(tokenizer))
    num_rows = max(0, len(stream) - 1) // length
    used = num_rows * length
    # Row r ends with the token that row r + 1 begins with.
    inputs, last = stream[:used].reshape(num_rows, length), stream[1 : used + 1].reshape(num_rows, length)[:, -1:]
    return {"tokens": np.concatenate([inputs, last], axis=1)}, len(stream) - used - (1 if num_rows else 0)


def _plan_segments(documents: TokenDocuments, room: int) -> _Pairs:
    """As many whole sentences a row as fit into `room` tokens, document by document."""
    bounds = documents.sentence_bounds
    spans: list[tuple[int, int]] = []
    for first, stop in zip(documents.document_bounds[:-1].tolist(), documents.document_bounds[1:].tolist(), strict=True):
        start = first
        while start < stop:
            end = _fit(bounds, start, stop, room)
            spans.append((start, end))
            start = end
    edges = bounds[np.array(spans, np.int64).reshape(-1, 2)]
    nowhere = np.zeros(len(spans), np.int64)
    return _Pairs(edges[:, 0], edges[:, 1], nowhere, nowhere, np.zeros(len(spans), np.int32))


def _plan_pairs(documents: TokenDocuments, room: int, rng: np.random.Generator) -> _Pairs:
    """Sentence pairs that fill `room` tokens as far as whole sentences do.

    Sentences are taken in order until the next one would not fit, and parted at random into A and
    what follows. In half of the cases B is what follows; otherwise it is a run of sentences of
    another document, and what follows begins the next row. A last sentence that stands alone can
    only get a random B, which happens once a document at most.
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
                middle, last = _shorten(bounds, start, middle, first, room), first + 1
            spans.append((start, middle, first, last, 0))
            start = middle
    table = np.array(spans, np.int64).reshape(-1, 5)
    tokens = bounds[table[:, :4]]
    return _Pairs(tokens[:, 0], tokens[:, 1], tokens[:, 2], tokens[:, 3], table[:, 4].astype(np.int32))


def _fit(bounds: Int64[np.ndarray, " bounds"], start: int, stop: int, room: int) -> int:
    """The end of the longest run of sentences from `start`, before `stop`, of at most `room` tokens
    in all.
    """
    # No sentence is empty, so at most `room` of them fit; searching only those keeps this
    # independent of the corpus.
    limit = min(stop, start + room)
    return start + int(bounds[start + 1 : limit + 1].searchsorted(bounds[start] + room, "right"))


def _shorten(bounds: Int64[np.ndarray, " bounds"], start: int, middle: int, other: int, room: int) -> int:
    """The end of A when it must leave room for the sentence `other`; cut_long_sentences saw to it
    that one sentence does.
    """
    return _fit(bounds, start, middle, room - int(bounds[other + 1] - bounds[other]))


def _gather(documents: TokenDocuments, pairs: _Pairs, tokenizer: Tokenizer, length: int) -> Rows:
    """The rows that the spans describe: [CLS] A [SEP], and B [SEP] after it where B is not
    empty.
    """
    num_rows = len(pairs.a_start)
    rows = {"tokens": np.empty((num_rows, length), _token_dtype(tokenizer)), "ends": np.empty((num_rows, 2), np.int32)}
    column = np.arange(length)
    for first in range(0, num_rows, _ROWS_AT_ONCE):
        block = slice(first, min(first + _ROWS_AT_ONCE, num_rows))
        a_start, b_start = pairs.a_start[block, None], pairs.b_start[block, None]
        a_end = 1 + pairs.a_stop[block, None] - a_start  # column of the first [SEP]
        b_length = pairs.b_stop[block, None] - b_start
        b_end = np.where(b_length > 0, a_end + 1 + b_length, a_end)  # column of the last [SEP]
        source = np.where(column < a_end, a_start + column - 1, b_start + column - a_end - 1)
        # Columns of specials and padding point anywhere inside the array; they are overwritten
        # next.
        tokens = documents.tokens[np.clip(source, 0, len(documents.tokens) - 1)]
        tokens = np.where((column == a_end) | (column == b_end), tokenizer.sep_id, tokens)
        tokens[:, 0] = tokenizer.cls_id
        rows["tokens"][block] = np.where(column <= b_end, tokens, tokenizer.pad_id)
        rows["ends"][block] = np.concatenate([a_end, b_end], axis=1) + 1
    return rows
