"""Beam search against all sequences there are, and against a beam search in plain Python; of one
hypothesis, that is greedy decoding.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mhsh.evaluation.beam_search import BestHypotheses, _extend, beam_search

BEGIN, END, FORBIDDEN = 2, 3, (0, 2)
LENGTH = 4  # T
# Most tests have as many sentences and tokens as these, so that they share what is compiled.
VOCAB_SIZE, LIMITS = 9, [4, 2, 4, 3, 4, 4, 1, 4]
History = tuple[int, ...]


class RandomModel:
    """Logits that depend on every token of the history, its order and the sentence; the cache
    holds what the step was given.
    """

    def __init__(self, seed: int, num_sentences: int, vocab_size: int, end_bias: float = 0.0) -> None:
        generator = np.random.default_rng(seed)
        self.phases = generator.uniform(0, 6.28, (num_sentences, vocab_size)).astype(np.float32)
        self.weights = generator.uniform(0.5, 2.5, (LENGTH, vocab_size)).astype(np.float32)
        self.end_bias = np.where(np.arange(vocab_size) == END, np.float32(end_bias), np.float32(0))

    def logprobs(self, sentence: int, history: History) -> np.ndarray:
        given = np.array((BEGIN, *history), np.float64)
        logits = 2 * np.sin(self.phases[sentence] + given @ self.weights[: len(given)]) + self.end_bias
        return logits - np.log(np.exp(logits).sum())

    def logprob(self, sentence: int, tokens: History) -> float:
        return sum(float(self.logprobs(sentence, tokens[:i])[token]) for i, token in enumerate(tokens))


def step(tokens, position, ancestry_mask, cache):
    """The model as a decoding step; its parameters are in the cache, so that models share what is
    compiled.
    """
    given, phases, weights, end_bias = cache
    weights = weights[: given.shape[2]]
    given = given.at[:, :, position].set(tokens)
    history = jnp.einsum("BKTJ,BJT->BKT", ancestry_mask, given)
    turns = history[..., None] * weights * (jnp.arange(given.shape[2]) <= position)[:, None]
    logits = 2.0 * jnp.sin(phases[:, None] + turns.sum(axis=2)) + end_bias
    return logits.astype(jnp.float32), (given, *cache[1:])


def extend_cache(cache, length):
    given = cache[0]
    return (jnp.pad(given, ((0, 0), (0, 0), (0, length - given.shape[2]))), *cache[1:])


@functools.partial(jax.jit, static_argnames=("beam", "cache_buckets"))
def compiled(cache: Any, limits: jax.Array, beam: int, alpha: jax.Array, cache_buckets: tuple[int, ...]) -> BestHypotheses:
    marks: dict[str, Any] = {"begin": BEGIN, "end": END, "forbidden": FORBIDDEN}
    return beam_search(
        step, extend_cache, cache, limits, num_hypotheses=beam, cache_buckets=cache_buckets, length_penalty=alpha, **marks
    )


def search(model: RandomModel, limits: list[int], beam: int, alpha: float) -> BestHypotheses:
    given = jnp.zeros((len(limits), beam, 0), jnp.int32)
    cache = (given, model.phases, model.weights, model.end_bias)
    return jax.device_get(compiled(cache, jnp.asarray(limits, jnp.int32), beam, jnp.float32(alpha), (1, 2, LENGTH)))


def tokens_of(decoded: BestHypotheses, sentence: int) -> History:
    length = int(decoded.lengths[sentence])
    assert not decoded.tokens[sentence, length:].any()
    return tuple(decoded.tokens[sentence, :length].tolist())


def all_sequences(vocab_size: int, limit: int) -> list[History]:
    going_on = [token for token in range(vocab_size) if token != END and token not in FORBIDDEN]
    ended = [(*start, END) for length in range(limit) for start in itertools.product(going_on, repeat=length)]
    return ended + list(itertools.product(going_on, repeat=limit))


def plain_beam_search(model: RandomModel, sentence: int, limit: int, beam: int, alpha: float, vocab_size: int) -> History:
    """Without early stopping, so that stopping early is shown to lose nothing; K finished
    hypotheses end it, as the rule says.
    """
    live: list[tuple[float, History]] = [(0.0, ())]
    finished: list[tuple[float, History]] = []
    while live and len(finished) < beam:
        candidates = [
            (logprob + float(model.logprobs(sentence, tokens)[token]), (*tokens, token))
            for logprob, tokens in live
            for token in range(vocab_size)
            if token not in FORBIDDEN
        ]
        candidates = sorted(candidates, key=lambda candidate: -candidate[0])[: 2 * beam]
        at_limit = len(candidates[0][1]) == limit
        closed = [c for c in candidates[:beam] if c[1][-1] == END or at_limit]
        finished += [(logprob / len(tokens) ** alpha, tokens) for logprob, tokens in closed]
        live = [] if at_limit else [c for c in candidates if c[1][-1] != END][:beam]
    return max(finished)[1]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
def test_a_beam_that_holds_everything_finds_the_best_of_all_sequences(alpha):
    vocab_size, limits = 6, [4, 3, 4, 1]
    for seed, end_bias in ((0, 0.0), (1, -2.0), (2, 1.0)):
        model = RandomModel(seed, len(limits), vocab_size, end_bias)
        decoded = search(model, limits, beam=128, alpha=alpha)
        for sentence, limit in enumerate(limits):
            scores = {s: model.logprob(sentence, s) / len(s) ** alpha for s in all_sequences(vocab_size, limit)}
            best = max(scores, key=lambda sequence: scores[sequence])
            assert tokens_of(decoded, sentence) == best
            assert math.isclose(float(decoded.scores[sentence]), scores[best], rel_tol=1e-5)


@pytest.mark.parametrize("beam", [1, 2, 3])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
def test_a_small_beam_is_that_of_plain_python(beam, alpha):
    lengths = set()
    for seed, end_bias in ((3, -1.0), (4, 0.0), (5, 1.5)):
        model = RandomModel(seed, len(LIMITS), VOCAB_SIZE, end_bias)
        decoded = search(model, LIMITS, beam, alpha)
        for sentence, limit in enumerate(LIMITS):
            expected = plain_beam_search(model, sentence, limit, beam, alpha, VOCAB_SIZE)
            assert tokens_of(decoded, sentence) == expected
            assert math.isclose(
                float(decoded.scores[sentence]), model.logprob(sentence, expected) / len(expected) ** alpha, rel_tol=1e-5
            )
            lengths.add(len(expected))
    assert lengths == {1, 2, 3, 4}  # sentences of one batch end at different steps


def test_a_sentence_with_limit_0_is_left_out():
    model = RandomModel(7, len(LIMITS), VOCAB_SIZE)
    decoded = search(model, [0, 4, 0, 4, 4, 4, 4, 4], beam=2, alpha=1.0)
    assert decoded.lengths[[0, 2]].tolist() == [0, 0]
    assert decoded.scores[[0, 2]].tolist() == [-np.inf, -np.inf]
    assert (decoded.lengths[[1, 3, 4, 5, 6, 7]] > 0).all()


def of_one_step(end_logit: float, limits: list[int], beam: int, cache_buckets: list[int]) -> tuple[BestHypotheses, list[int]]:
    """With logits 0 but for the end mark: what is decoded, and the positions that were computed."""
    calls: list[int] = []

    def step(tokens, position, ancestry_mask, cache):
        del ancestry_mask
        jax.debug.callback(lambda place: calls.append(int(place)), position)
        return jnp.zeros((*tokens.shape, 7), jnp.float32).at[:, :, END].set(end_logit), cache

    marks: dict[str, Any] = {"begin": BEGIN, "end": END, "forbidden": FORBIDDEN}
    buckets: dict[str, Any] = {"num_hypotheses": beam, "cache_buckets": cache_buckets, "length_penalty": 1.0}
    decoded = beam_search(step, lambda cache, length: cache, (), jnp.array(limits), **buckets, **marks)
    jax.effects_barrier()
    return decoded, calls


@pytest.mark.parametrize("beam", [1, 3])
def test_of_equals_the_lower_token_is_taken(beam):
    decoded, _ = of_one_step(-1.0, [4, 2], beam, [LENGTH])
    assert [tokens_of(decoded, sentence) for sentence in (0, 1)] == [(1, 1, 1, 1), (1, 1)]


def test_it_stops_as_soon_as_nothing_can_win():
    """The end mark is all but certain at once: one step for every sentence, whatever its limit."""
    decoded, calls = of_one_step(50.0, [50, 20], 4, [13, 25, 50])
    assert decoded.lengths.tolist() == [1, 1] and calls == [0]


def test_candidates_of_a_large_vocabulary_are_those_of_top_k():
    """Logits with many equals, so that their order is tried too."""
    vocab_size, beam, forbidden = 700, 3, (0, 2)
    generator = np.random.default_rng(0)
    logits = generator.integers(0, 8, (5, beam, vocab_size)).astype(np.float32)
    logits[1] = 1.0
    logits[2, :, 650:] = 20.0
    logprobs = np.zeros((5, beam), np.float32)
    logprobs[3:, 2] = -np.inf
    candidates = jax.jit(lambda p, x: _extend(p, x, forbidden))(logprobs, logits)
    # Summed in the same order: the rounding decides which candidates are equal.
    totals = (logprobs - jax.nn.logsumexp(logits, axis=-1))[:, :, None] + logits
    totals = totals.at[:, :, np.array(forbidden)].set(-np.inf).reshape(5, -1)
    best, places = jax.lax.top_k(totals, 2 * beam)
    np.testing.assert_array_equal(candidates.logprobs, best)
    np.testing.assert_array_equal(candidates.parents, places // vocab_size)
    np.testing.assert_array_equal(candidates.tokens, places % vocab_size)


def test_a_beam_larger_than_the_vocabulary_has_no_token_beyond_it():
    """Such a token has no embedding: the model would give it nan, and it all others."""
    logprobs = np.where(np.arange(8) == 0, 0.0, -np.inf)[None].astype(np.float32)
    candidates = _extend(jnp.asarray(logprobs), jnp.zeros((1, 8, VOCAB_SIZE), jnp.float32), FORBIDDEN)
    assert (candidates.logprobs > -jnp.inf).sum() == VOCAB_SIZE - len(FORBIDDEN) < candidates.tokens.size
    assert candidates.tokens.max() < VOCAB_SIZE
