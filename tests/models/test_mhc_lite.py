"""mHC-lite against the paper's equations, a token and a permutation at a time."""

from __future__ import annotations

import itertools
import math

import jax
import numpy as np
import pytest
from flax import linen as nn

from mhsh.models.mhc_lite import StreamWeights
from tests.models.plain import SEGMENTS, attention, encoder_errors, feed_forward, library, may_look, norm, run_stack


def join(streams, f, p, epsilon):
    """The R streams [B,T,D] after a sublayer: x_q = sum_r H_qr x_r + post_q f(LN(sum_r pre_r
    x_r)).
    """
    xp, count = library(streams[0]), len(streams)
    weights, rms = p["weights"], 0
    for x in streams:
        rms = rms + (x**2).sum(axis=-1, keepdims=True) / (count * x.shape[-1])
    parts = 0
    for r, x in enumerate(streams):
        parts = parts + x / xp.sqrt(rms + epsilon) * weights["norm_scale"][r] @ weights["mixing_kernel"][r]
    pre, post, permuted = (
        weights["alpha"][i] * parts[..., part] + weights["bias"][part]
        for i, part in enumerate((slice(0, count), slice(count, 2 * count), slice(2 * count, None)))
    )
    exponentials = xp.exp(permuted)
    pre, post = 1 / (1 + xp.exp(-pre)), 2 / (1 + xp.exp(-post))
    y = f(norm(sum(pre[..., r, None] * x for r, x in enumerate(streams)), p["norm"], epsilon))
    mixed = [0] * count
    for place, permutation in enumerate(itertools.permutations(range(count))):
        weight = exponentials[..., place, None] / exponentials.sum(axis=-1, keepdims=True)
        for q, r in enumerate(permutation):
            mixed[q] = mixed[q] + weight * streams[r]
    return [mixed[q] + post[..., q, None] * y for q in range(count)]


def plain_encoder(params, x, count, epsilon):
    look = may_look(SEGMENTS, SEGMENTS)
    sublayers = {"attention": lambda p, x: attention(p, x, x, look), "feed_forward": feed_forward}
    streams = run_stack(params, sublayers, [x] * count, lambda streams, f, p: join(streams, f, p, epsilon))
    return norm(sum(streams), params["final_norm"], epsilon)


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_values_and_gradients_are_those_of_the_equations(tiny, random_like, error, count):
    config = tiny(residual="mhc_lite", residual_streams=count, num_layers=2, activation="relu", layer_norm_epsilon=1e-5)
    assert max(encoder_errors(config, random_like, error, lambda params, x: plain_encoder(params, x, count, 1e-5))) < 1e-4


def test_where_the_weights_start(tiny):
    """With the numbers of the authors' code: almost unmixed, one stream read and written most."""
    x = jax.random.normal(jax.random.key(0), (2, 5, 4, 12))
    chosen = set()
    for seed in range(20):
        found, variables = StreamWeights(tiny()).init_with_output(jax.random.key(seed), x)
        params = nn.unbox(variables)["params"]
        read, write, mixing = (np.asarray(each[0, 0]) for each in found)
        chosen.add(int(read.argmax()))
        np.testing.assert_allclose(sorted(read), [0.268941] * 3 + [0.731059], atol=1e-5)  # of sigmoid(-1) and sigmoid(1)
        np.testing.assert_allclose(write, 2 * read, atol=1e-6)
        # 6 of the 24 permutations leave a stream where it is.
        other = math.exp(-8)
        np.testing.assert_allclose(mixing.diagonal(), (1 + 5 * other) / (1 + 23 * other), atol=1e-6)
        assert not params["mixing_kernel"].any() and (params["alpha"] == 0.01).all()
    assert chosen == {0, 1, 2, 3}
