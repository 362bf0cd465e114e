"""Translates lines: tokens, batches of sentences of similar length, beam search, text."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32

from mhsh.data.pairs import clean_text
from mhsh.data.subword import BOS_ID, EOS_ID, PAD_ID, SubwordTokenizer
from mhsh.errors import NotFinite, UserError
from mhsh.evaluation.beam_search import BestHypotheses, beam_search
from mhsh.models.generation import decode_step, decoding_params, empty_cache, encode, extend_caches
from mhsh.models.seq2seq import Seq2Seq
from mhsh.models.types import Batch, decoder_stack

_SHORTEST = 8

# (the source side of a batch, the limit of tokens of every row, the largest limit) -> hypotheses
Decoder = Callable[[Batch, Int32[np.ndarray, " B"], int], BestHypotheses]


@dataclasses.dataclass(frozen=True)
class Translations:
    """One translation per line, and the number of lines that were cut before translation."""

    lines: list[str]
    num_cut: int


@dataclasses.dataclass(frozen=True)
class Sentence:
    """The tokens of a line that has text."""

    line: int  # its index, from 0
    tokens: Int32[np.ndarray, " n"]  # the end mark included


def length_limit(source_length: int, max_positions: int) -> int:
    """The most tokens of a translation, end mark included: 2 n + 10, at most `max_positions`."""
    return min(2 * source_length + 10, max_positions)


def cache_buckets(max_length: int) -> list[int]:
    """The lengths of the decoder's cache in turn: a quarter, a half (where most end), the whole."""
    return sorted({-(-max_length // 4), -(-max_length // 2), max_length})


def model_decoder(
    model: Seq2Seq, params: Any, *, num_hypotheses: int, length_penalty: float, forbidden: tuple[int, ...] = (PAD_ID, BOS_ID)
) -> Decoder:
    """Beam search with a model, compiled once per shape; `forbidden` tokens are never produced."""
    return lambda batch, limits, max_length: jax.device_get(
        _decode(model, num_hypotheses, length_penalty, forbidden, max_length, params, batch, jnp.asarray(limits))
    )


def translate_lines(
    lines: Sequence[str], tokenizer: SubwordTokenizer, decode: Decoder, *, max_positions: int, batch_tokens: int, cut_overlong: bool
) -> Translations:
    """One translation per line, in order; a line without text gives an empty line. A batch has
    `batch_tokens` source tokens, with padding, or a longer sentence alone. Raises UserError where a
    line is longer than `max_positions` tokens with its end mark (`cut_overlong`: it is cut), or the
    model's probabilities are not finite.
    """
    texts = [clean_text(line) for line in lines]
    sentences, num_cut = [], 0
    for line, tokens in enumerate(tokenizer.encode_batch(texts)):
        if len(tokens) >= max_positions:
            if not cut_overlong:
                raise UserError(
                    f"line {line + 1} has {len(tokens) + 1} tokens with its end mark, more than model.max_positions = "
                    f"{max_positions}; split it, or translate its beginning with --overlong=cut"
                )
            num_cut += 1
        if len(tokens):
            sentences.append(Sentence(line, np.append(tokens[: max_positions - 1], np.int32(EOS_ID))))
    translations = [""] * len(lines)
    for members, rows, length in sentence_batches(sentences, max_positions, batch_tokens):
        limits = np.zeros(rows, np.int32)
        limits[: len(members)] = [length_limit(len(sentence.tokens), max_positions) for sentence in members]
        decoded = decode(source_batch(members, rows, length), limits, length_limit(length, max_positions))
        for sentence, tokens, count, score in zip(members, decoded.tokens, decoded.lengths, decoded.scores, strict=False):
            if not np.isfinite(score):
                raise NotFinite(f"line {sentence.line + 1}")
            # A vocabulary of bytes can spell a line break.
            translations[sentence.line] = clean_text(tokenizer.decode(tokens[:count].tolist()))
    return Translations(translations, num_cut)


def sentence_batches(
    sentences: Sequence[Sentence], max_positions: int, batch_tokens: int
) -> Iterator[tuple[Sequence[Sentence], int, int]]:
    """(sentences, rows, length) of every batch, longest first; equal lengths have equal rows."""
    by_length: dict[int, list[Sentence]] = {}
    for sentence in sorted(sentences, key=lambda sentence: -len(sentence.tokens)):
        by_length.setdefault(padded_length(len(sentence.tokens), max_positions), []).append(sentence)
    for length, members in by_length.items():
        # A few sentences are not padded to a whole batch.
        rows = min(max(1, batch_tokens // length), 1 << (len(members) - 1).bit_length())
        for start in range(0, len(members), rows):
            yield members[start : start + rows], rows, length


def padded_length(length: int, max_positions: int) -> int:
    """The least power of two times the shortest that holds `length`: each is compiled once."""
    return min(_SHORTEST << max(0, (length - 1) // _SHORTEST).bit_length(), max_positions)


def source_batch(members: Sequence[Sentence], rows: int, length: int) -> dict[str, np.ndarray]:
    """The source side of a batch [rows, length]: the sentences, then rows of padding."""
    tokens = np.full((rows, length), PAD_ID, np.int32)
    segmentation = np.zeros((rows, length), np.int32)
    for row, sentence in enumerate(members):
        tokens[row, : len(sentence.tokens)] = sentence.tokens
        segmentation[row, : len(sentence.tokens)] = 1
    return {
        "inputs": tokens,
        "inputs_position": np.arange(length, dtype=np.int32) * segmentation,
        "inputs_segmentation": segmentation,
    }


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _decode(
    model: Seq2Seq,
    num_hypotheses: int,
    length_penalty: float,
    forbidden: tuple[int, ...],
    max_length: int,
    params: Any,
    batch: Batch,
    limits: Int32[Array, " B"],
) -> BestHypotheses:
    memory, weights = encode(model, params, batch), decoding_params(model.config, params)
    return beam_search(
        lambda tokens, position, ancestry_mask, caches: decode_step(
            model, weights, tokens, position, ancestry_mask, caches, memory
        ),
        lambda caches, length: extend_caches(caches, num_hypotheses, length),
        (empty_cache(model.config, limits.shape[0], 0),) * decoder_stack(model.config).num_layers,
        limits,
        num_hypotheses=num_hypotheses,
        cache_buckets=cache_buckets(max_length),
        length_penalty=length_penalty,
        begin=BOS_ID,
        end=EOS_ID,
        forbidden=forbidden,
    )
