"""Lines to lines: with a decoder that says its source again, what is in must come out; with a
model, what the model says.
"""

from __future__ import annotations

import math

import hypothesis
import jax
import numpy as np
import pytest
import scipy.special
from hypothesis import strategies

from mhsh.data.pairs import clean_text
from mhsh.data.subword import BOS_ID, EOS_ID, PAD_ID
from mhsh.errors import UserError
from mhsh.evaluation.beam_search import BestHypotheses
from mhsh.evaluation.translation import length_limit, model_decoder, translate_lines
from mhsh.models.build import forward
from tests.evaluation.small_translation import MAX_POSITIONS, random_params, small_model, small_tokenizer

LINES = ["the in a", "", "sich", "der und die und das mit den", " \t", "zu of to to is a", "Straße 😀"]


class Echo:
    """A decoder whose translation is the source; it keeps the shapes that it was given."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, int]] = []

    def __call__(self, batch, limits, max_length):
        tokens, segmentation = np.asarray(batch["inputs"]), np.asarray(batch["inputs_segmentation"])
        rows, length = tokens.shape
        self.shapes.append((rows, length))
        lengths = segmentation.sum(axis=1)
        for row, count in enumerate(lengths):
            assert (tokens[row, count:] == PAD_ID).all()
            assert count == 0 or tokens[row, count - 1] == EOS_ID
            assert limits[row] == (length_limit(int(count), MAX_POSITIONS) if count else 0)
        np.testing.assert_array_equal(batch["inputs_position"], np.where(segmentation, np.arange(length), 0))
        assert limits.max() <= max_length <= MAX_POSITIONS
        padded = np.pad(tokens, ((0, 0), (0, max_length - length)))
        return BestHypotheses(padded, lengths.astype(np.int32), np.where(lengths, 0.0, -np.inf).astype(np.float32))


def translate(lines, decoder, batch_tokens=64, cut_overlong=False):
    return translate_lines(
        lines, small_tokenizer(), decoder, max_positions=MAX_POSITIONS, batch_tokens=batch_tokens, cut_overlong=cut_overlong
    )


@hypothesis.settings(max_examples=50)
@hypothesis.given(
    strategies.lists(strategies.text(strategies.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=7)),
    strategies.integers(1, 200),
)
def test_every_line_comes_back_in_its_place(lines, batch_tokens):
    echo = Echo()
    translated = translate(lines, echo, batch_tokens)
    assert translated.lines == [clean_text(line) for line in lines]
    assert translated.num_cut == 0
    assert all(rows == 1 or rows * length <= batch_tokens for rows, length in echo.shapes)


def test_a_thousand_lines_have_one_shape_a_length():
    generator = np.random.default_rng(0)
    lines = [" ".join(generator.choice(["der", "the", "sich"], generator.integers(0, 30))) for _ in range(1000)]
    echo = Echo()
    assert translate(lines, echo, batch_tokens=512).lines == lines
    assert set(echo.shapes) == {(64, 8), (32, 16), (16, 32)}
    assert len(echo.shapes) < 60  # half as many again as the tokens alone would fill
    translate(["der"], alone := Echo(), batch_tokens=4096)
    assert alone.shapes == [(1, 8)]


def test_overlong_lines_are_named_or_cut():
    fits, overlong = " ".join(["der"] * (MAX_POSITIONS - 1)), " ".join(["der"] * MAX_POSITIONS)
    message = f"line 3 has {MAX_POSITIONS + 1} tokens with its end mark, more than model.max_positions = {MAX_POSITIONS}; split it"
    with pytest.raises(UserError, match=message):
        translate([fits, "", overlong], Echo())
    translated = translate([overlong, "die", fits, overlong], Echo(), cut_overlong=True)
    assert translated.lines == [fits, "die", fits, fits]
    assert translated.num_cut == 2


def test_a_line_break_in_a_translation_ends_no_line():
    tokens = np.append(small_tokenizer().encode_batch(["der\ndie\u2028das\r"])[0], EOS_ID).astype(np.int32)

    def decode(batch, limits, max_length):
        rows = len(limits)
        found = np.zeros((rows, max_length), np.int32)
        found[:, : len(tokens)] = tokens
        return BestHypotheses(found, np.full(rows, len(tokens), np.int32), np.zeros(rows, np.float32))

    assert translate(["the in a of", ""], decode).lines == ["der die das", ""]


def test_a_model_that_diverged_is_named():
    def decode(batch, limits, max_length):
        rows = len(limits)
        return BestHypotheses(np.zeros((rows, max_length), np.int32), np.zeros(rows, np.int32), np.full(rows, -np.inf, np.float32))

    with pytest.raises(UserError, match="probabilities are not finite at line 2: its run diverged"):
        translate(["", "der"], decode)
    nan = {**random_params(0), "embeddings": {"token": random_params(0)["embeddings"]["token"] * np.nan}}
    with pytest.raises(UserError, match="not finite at line 1"):
        translate(["der"], model_decoder(small_model(), nan, num_hypotheses=1, length_penalty=0.6))


@jax.jit
def uncached_logits(params, batch):
    return forward(small_model(), params, batch, None).logits


def uncached_logprobs(line: str, given: list[int]) -> np.ndarray:
    """What follows each of the given target tokens [T,V], by the whole forward pass of training."""
    batch: dict[str, np.ndarray] = {}
    source = [*small_tokenizer().encode_batch([line])[0], EOS_ID]
    for tokens, name, prefix in ((source, "inputs", "inputs"), (given, "decoder_inputs", "targets")):
        batch[name] = np.zeros((1, MAX_POSITIONS), np.int32)
        batch[name][0, : len(tokens)] = tokens
        batch[f"{prefix}_position"] = np.arange(MAX_POSITIONS, dtype=np.int32)[None]
        batch[f"{prefix}_segmentation"] = (np.arange(MAX_POSITIONS) < len(tokens)).astype(np.int32)[None]
    logits = np.float64(uncached_logits(random_params(0), batch)[0, : len(given)])
    return logits - scipy.special.logsumexp(logits, axis=-1, keepdims=True)


def uncached_greedy(line: str) -> list[int]:
    limit = length_limit(len(small_tokenizer().encode_batch([line])[0]) + 1, MAX_POSITIONS)
    given = [BOS_ID]
    while len(given) <= limit and given[-1] != EOS_ID:
        following = uncached_logprobs(line, given)[-1]
        following[[PAD_ID, BOS_ID]] = -np.inf
        given.append(int(following.argmax()))
    return given[1:]


def found_of(lines: list[str], beam: int) -> list[tuple[list[int], float]]:
    """The tokens and the score of each line, which must be given longest first; every line is a
    batch.
    """
    decode = model_decoder(small_model(), random_params(0), num_hypotheses=beam, length_penalty=0.6)
    found: list[tuple[list[int], float]] = []

    def watched(batch, limits, max_length):
        decoded = decode(batch, limits, max_length)
        found.append((decoded.tokens[0, : decoded.lengths[0]].tolist(), float(decoded.scores[0])))
        return decoded

    translate(lines, watched, batch_tokens=1)
    return found


LONGEST_FIRST = ["Straße", "der und die und das mit den", "the in a", "sich"]


def test_a_beam_of_one_is_greedy_without_a_cache():
    found = [tokens for tokens, _ in found_of(LONGEST_FIRST, beam=1)]
    assert found == [uncached_greedy(line) for line in LONGEST_FIRST]
    assert len(set(map(tuple, found))) == len(found)


def test_the_scores_are_those_without_a_cache():
    """Hypotheses of a beam change places all the time; what is read of the cache must be their own
    past.
    """
    for line, (tokens, score) in zip(LONGEST_FIRST, found_of(LONGEST_FIRST, beam=4), strict=True):
        logprobs = uncached_logprobs(line, [BOS_ID, *tokens[:-1]])
        expected = logprobs[np.arange(len(tokens)), tokens].sum() / len(tokens) ** 0.6
        assert math.isclose(score, expected, rel_tol=1e-4)


@pytest.mark.parametrize("beam", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_other_batches_give_the_same_translations(beam):
    decode = model_decoder(small_model(), random_params(0), num_hypotheses=beam, length_penalty=0.6)
    whole = translate(LINES, decode, batch_tokens=256).lines
    alone = translate(LINES, decode, batch_tokens=1).lines
    backwards = translate(LINES[::-1], decode, batch_tokens=64).lines
    assert whole == alone == backwards[::-1]
    assert whole[1] == whole[4] == ""
    assert len({line for line in whole if line}) >= 3
