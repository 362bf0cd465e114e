"""Linear CKA and cosine: against the kernel form, by hand, and layers that do nothing."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from mhsh.probes import similarity as measured
from mhsh.probes.similarity import similarity

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 6)).astype(np.float32)
Y = (X[:, :4] @ RNG.standard_normal((4, 9)) + RNG.standard_normal((40, 9))).astype(np.float32)
ALL = np.ones(40, bool)


def linear_cka(*arrays):
    return float(measured.linear_cka(*map(jnp.asarray, arrays)))


def mean_cosine(*arrays):
    return float(measured.mean_cosine(*map(jnp.asarray, arrays)))


def plain_cka(x: np.ndarray, y: np.ndarray) -> float:
    """By way of the P x P kernels, HSIC(K, M) / sqrt(HSIC(K, K) HSIC(M, M))."""
    centring = np.eye(len(x)) - 1 / len(x)
    k, m = (centring @ each.astype(float) @ each.T @ centring for each in (x, y))
    return np.trace(k @ m) / np.sqrt(np.trace(k @ k) * np.trace(m @ m))


def test_equals_the_form_with_kernels():
    assert 0.1 < plain_cka(X, Y) < 0.9
    np.testing.assert_allclose(linear_cka(X, Y, ALL), plain_cka(X, Y), rtol=1e-5)
    counts = RNG.random(40) < 0.6
    np.testing.assert_allclose(linear_cka(X, Y, counts), plain_cka(X[counts], Y[counts]), rtol=1e-5)


def test_the_cosine_of_a_token():
    np.testing.assert_allclose(mean_cosine(X, 2 * X, ALL), 1, rtol=1e-6)
    half = np.where(np.arange(40)[:, None] < 10, -X, X)
    np.testing.assert_allclose(mean_cosine(X, half, ALL), 0.5, rtol=1e-6)
    np.testing.assert_allclose(mean_cosine(X, half, np.arange(40) < 10), -1, rtol=1e-6)


def test_a_layer_that_does_nothing_leaves_the_stream_as_it_is(tiny, make_batch, fresh):
    config = tiny(residual="rezero")
    batch = make_batch([[1] * 8, [1, 1, 1, 2, 2, 2, 2, 0]])
    params = fresh(config, batch)
    found = similarity(config, params, batch)["encoder"]
    np.testing.assert_allclose(found["cka"], np.ones(3), rtol=1e-5)
    layers = params["encoder"]["layers"]
    moved = layers | {"attention_residual": {"alpha": np.array([0.0, 1.0, 0.0], np.float32)}}
    found = similarity(config, params | {"encoder": {"layers": moved}}, batch)["encoder"]
    assert found["cka"][1] < 0.99 and found["cosine"][1] < 0.99
    np.testing.assert_allclose([found["cka"][0], found["cka"][2], found["cosine"][2]], 1, rtol=1e-5)


def test_padding_counts_for_nothing(tiny, make_batch, random_params):
    config = tiny()
    params, batch = random_params(config), make_batch([[1] * 8, [1, 1, 1, 0, 0, 0, 0, 0]])
    garbage = batch | {"inputs": np.where(batch["inputs_segmentation"] == 0, 3, batch["inputs"]).astype(np.int32)}
    found, again = (similarity(config, params, each)["encoder"] for each in (batch, garbage))
    for name in ("cka", "cosine"):
        assert found[name] == pytest.approx(again[name], rel=1e-6)


def test_both_stacks_of_a_translation_model(tiny_seq2seq, make_pairs, random_params):
    config = tiny_seq2seq()
    found = similarity(config, random_params(config), make_pairs([[1, 1, 1, 2, 2]], [[1, 1, 2, 2]]))
    assert {stack: len(figures["cka"]) for stack, figures in found.items()} == {"encoder": 2, "decoder": 3}
