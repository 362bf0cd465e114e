"""Jittable beam search over any decoding step; with one hypothesis it is greedy decoding."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float32, Int32

# (tokens [B,K], their position [], ancestry_mask [B,K,T,K], cache) -> (logits [B,K,V], cache); see
# `beam_search`.
Step = Callable[[Int32[Array, "B K"], Int32[Array, ""], Bool[Array, "B K T K"], Any], tuple[Float32[Array, "B K V"], Any]]


_CHUNK = 128  # of the vocabulary; `_extend` ranks chunks first


class BestHypotheses(NamedTuple):
    """The best hypothesis of every sentence."""

    tokens: Int32[Array, "B T"]  # with the end mark if it was reached, then 0
    lengths: Int32[Array, " B"]  # of the tokens, with the end mark; 0 if nothing was decoded
    scores: Float32[Array, " B"]  # log-probability / length ** length_penalty; -inf if nothing was decoded


class _Live(NamedTuple):
    """The K unfinished hypotheses of every sentence, best first; all have the same length."""

    tokens: Int32[Array, "B K T"]
    logprobs: Float32[Array, "B K"]  # -inf for no hypothesis; all are -inf when a sentence is done
    beam_slots: Int32[Array, "B K T"]  # under which k each token was given to the step, and so where the cache holds it


class _State(NamedTuple):
    length: Int32[Array, ""]  # of the live hypotheses
    live: _Live
    best: BestHypotheses
    num_finished: Int32[Array, " B"]
    cache: Any


class _Candidates(NamedTuple):
    """Live hypotheses extended by one token, best first; C = 2 K."""

    parents: Int32[Array, "B C"]
    tokens: Int32[Array, "B C"]
    logprobs: Float32[Array, "B C"]


def beam_search(
    step: Step,
    extend_cache: Callable[[Any, int], Any],
    cache: Any,
    limits: Int32[Array, " B"],
    *,
    num_hypotheses: int,
    cache_buckets: Sequence[int],
    length_penalty: ArrayLike,
    begin: int,
    end: int,
    forbidden: Sequence[int],
) -> BestHypotheses:
    """The hypothesis of the highest log-probability / length ** length_penalty that a beam of K =
    num_hypotheses finds.

    The score is fairseq's and Marian's; the length counts the end mark. Of the 2 K best
    continuations, an end mark among the first K finishes its hypothesis, and the K best others live
    on (fairseq's rule). A sentence is done when K hypotheses are finished, or when no live one can
    win any more: none can pass its log-probability / limit ** length_penalty, if that is >= 0. Of
    equal candidates the one of the better parent and then of the lower token is taken.

    The cache is never reordered: a mask tells `step` what each hypothesis reads of it ("cache
    indirection" in NVIDIA's FasterTransformer). `ancestry_mask[b, k, t, j]` is True where
    hypothesis k of sentence b descends from, or is, what was given to the step as hypothesis j at
    position t <= the current one. T is the length of the cache; it grows in `cache_buckets`, so
    that short sentences do not read the room of long ones.

    Args:
      step: the model; it writes the given tokens into its cache, under k and at `position`.
      extend_cache: returns the cache with room for so many positions, its contents kept.
      cache: a cache without room; any pytree.
      limits: the most tokens of every sentence, which then ends without a mark; 0 leaves it out.
      cache_buckets: the lengths of the cache, in rising order; the last is the largest limit.
      begin, end: the token ids of the marks.
      forbidden: ids that are never produced; their probability is not given to the others.
    """
    batch_size, max_length = limits.shape[0], cache_buckets[-1]
    blank = jnp.zeros((batch_size, num_hypotheses, max_length), jnp.int32)
    exists = (jnp.arange(num_hypotheses) == 0) & (limits > 0)[:, None]
    nothing = jnp.full((batch_size,), -jnp.inf, jnp.float32)
    none = jnp.zeros((batch_size,), jnp.int32)
    state = _State(
        jnp.zeros((), jnp.int32),
        _Live(blank, jnp.where(exists, 0.0, -jnp.inf).astype(jnp.float32), blank),
        BestHypotheses(blank[:, 0], none, nothing),
        none,
        cache,
    )
    search = _Search(step, limits, length_penalty, begin, end, forbidden)
    for room in cache_buckets:
        state = state._replace(cache=extend_cache(state.cache, room))
        state = jax.lax.while_loop(
            lambda state, room=room: (state.length < room) & jnp.any(state.live.logprobs > -jnp.inf),
            functools.partial(search.advance, room),
            state,
        )
    return state.best


class _Search(NamedTuple):
    """The arguments of `beam_search` that each of its steps reads."""

    step: Step
    limits: Int32[Array, " B"]
    length_penalty: ArrayLike
    begin: int
    end: int
    forbidden: Sequence[int]

    def advance(self, room: int, state: _State) -> _State:
        """The state one token later, in a cache with that room."""
        position, beam, limits = state.length, state.live.logprobs.shape[1], self.limits
        given, beam_slots = _step_inputs(state.live, position, self.begin)
        logits, new_cache = self.step(given, position, _ancestry_mask(beam_slots[:, :, :room], position), state.cache)
        candidates = _extend(state.live.logprobs, logits, self.forbidden)
        length = position + 1
        tokens = _descend(state.live.tokens, candidates.parents).at[:, :, position].set(candidates.tokens)
        closed = (candidates.tokens == self.end) | (length >= limits)[:, None]
        closed &= (jnp.arange(2 * beam) < beam) & (candidates.logprobs > -jnp.inf)
        best = _update_best(state.best, tokens, jnp.where(closed, candidates.logprobs, -jnp.inf), length, self.length_penalty)
        num_finished = state.num_finished + jnp.sum(closed, axis=1)

        # top_k keeps the order of equals.
        logprobs, kept = jax.lax.top_k(jnp.where(candidates.tokens == self.end, -jnp.inf, candidates.logprobs), beam)
        attainable = logprobs[:, 0] / limits.astype(jnp.float32) ** self.length_penalty
        done = (length >= limits) | (num_finished >= beam) | (best.scores >= attainable)
        live = _Live(
            _descend(tokens, kept),
            jnp.where(done[:, None], -jnp.inf, logprobs),
            _descend(beam_slots, jnp.take_along_axis(candidates.parents, kept, axis=1)),
        )
        return _State(length, live, best, num_finished, new_cache)


def _step_inputs(live: _Live, position: Int32[Array, ""], begin: int) -> tuple[Int32[Array, "B K"], Int32[Array, "B K T"]]:
    """The token that each hypothesis gives to the step at `position`, and its new `beam_slots`."""
    last = jax.lax.dynamic_index_in_dim(live.tokens, jnp.maximum(position - 1, 0), axis=2, keepdims=False)
    beam_slots = live.beam_slots.at[:, :, position].set(jnp.arange(live.beam_slots.shape[1]))
    return jnp.where(position == 0, begin, last), beam_slots


def _ancestry_mask(beam_slots: Int32[Array, "B K T"], position: Int32[Array, ""]) -> Bool[Array, "B K T K"]:
    beam, max_length = beam_slots.shape[1:]
    return (beam_slots[:, :, :, None] == jnp.arange(beam)) & (jnp.arange(max_length) <= position)[:, None]


def _extend(logprobs: Float32[Array, "B K"], logits: Float32[Array, "B K V"], forbidden: Sequence[int]) -> _Candidates:
    """The 2 K best of all K V continuations, by value and then by index.

    They are in the 2 K chunks of the vocabulary with the largest maxima. Finding maxima is much
    cheaper than sorting, or than writing K V sums: the log-probability so far is added only to the
    maxima of chunks, and to the chosen chunks.
    """
    batch_size, beam, vocab_size = logits.shape
    allowed = jnp.ones((vocab_size,), bool).at[jnp.asarray(forbidden, jnp.int32)].set(False)
    before = (logprobs - jax.nn.logsumexp(logits, axis=-1))[:, :, None]
    count, padding = 2 * beam, -vocab_size % _CHUNK
    # The last chunk is padded with -inf.
    following = jnp.pad(jnp.where(allowed, logits, -jnp.inf), ((0, 0), (0, 0), (0, padding)), constant_values=-jnp.inf)
    chunks = following.reshape(batch_size, -1, _CHUNK)
    per_hypothesis = chunks.shape[1] // beam
    largest = before + chunks.max(axis=2).reshape(batch_size, beam, per_hypothesis)
    _, chosen = jax.lax.top_k(largest.reshape(batch_size, -1), min(count, chunks.shape[1]))
    chosen = jnp.sort(chosen, axis=1)  # so that equal candidates keep their order
    near = jnp.take_along_axis(chunks, chosen[:, :, None], axis=1)
    near += jnp.take_along_axis(before, (chosen // per_hypothesis)[:, :, None], axis=1)
    best, places = jax.lax.top_k(near.reshape(batch_size, -1), count)
    places = jnp.take_along_axis(chosen, places // _CHUNK, axis=1) * _CHUNK + places % _CHUNK
    # Where K is larger than V, some are of the padding, which no model has embeddings of.
    tokens = jnp.minimum(places % (vocab_size + padding), vocab_size - 1)
    return _Candidates(places // (vocab_size + padding), tokens, best)


def _descend(histories: Int32[Array, "B K T"], parents: Int32[Array, "B C"]) -> Int32[Array, "B C T"]:
    return jnp.take_along_axis(histories, parents[:, :, None], axis=1)


def _update_best(
    best: BestHypotheses,
    tokens: Int32[Array, "B C T"],
    logprobs: Float32[Array, "B C"],
    length: Int32[Array, ""],
    length_penalty: ArrayLike,
) -> BestHypotheses:
    """The best so far, or of those that finish at `length` (-inf: none); of equals the shorter."""
    first = jnp.argmax(logprobs, axis=1)
    score = jnp.take_along_axis(logprobs, first[:, None], axis=1)[:, 0] / length.astype(jnp.float32) ** length_penalty
    wins = score > best.scores
    winner = jnp.take_along_axis(tokens, first[:, None, None], axis=1)[:, 0]
    return BestHypotheses(
        jnp.where(wins[:, None], winner, best.tokens), jnp.where(wins, length, best.lengths), jnp.where(wins, score, best.scores)
    )
