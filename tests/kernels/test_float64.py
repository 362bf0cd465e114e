"""Kernels against the same sublayers written once more in fp64, where nothing rounds: interpreted,
or on a GPU (-m gpu).
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mhsh.kernels.attention import AttentionSettings, attend
from mhsh.kernels.dropout import dropout
from mhsh.kernels.feed_forward import FeedForwardSettings, feed_forward
from mhsh.kernels.out_proj_residual_norm import JoinSettings, out_proj_residual_norm
from mhsh.kernels.rows import KernelTarget
from tests.kernels.comparing import ALLOWED, alone, largest_error, value_and_gradients
from tests.kernels.test_attention import case as attention_case
from tests.kernels.test_feed_forward import case as feed_forward_case
from tests.kernels.test_out_proj_residual_norm import case as join_case

# The shapes that a GPU compiles are those of a layer of 384L1H, with rows that fill no block; the
# interpreter's are small.
SIZES = {"small": (2, 37, 48, 24, 2, 16), "384l1h": (9, 500, 1024, 256, 1, 64), "24l16h": (3, 500, 1024, 4096, 16, 64)}
HERE = [pytest.param(alone("tpu"), "small", id="tpu"), pytest.param(alone("gpu"), "small", id="gpu interpreted")]
ON_A_GPU = [pytest.param(KernelTarget(target="gpu"), size, id=size, marks=pytest.mark.gpu) for size in ("384l1h", "24l16h")]
RATE, EPSILON = 0.3, 1e-12
KEY = jax.random.key(5)


def in_float64(function, operands, gradient):
    """Its value and gradients on the CPU."""
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        wide = jax.tree.map(lambda each: jnp.asarray(np.asarray(each, np.float64)), (operands, gradient))
        return [np.asarray(each) for each in value_and_gradients(function, *wide)]


def factors(*shape):
    """What dropout multiplies ones by."""
    return np.asarray(dropout(jnp.ones(shape), RATE, KEY), np.float64)


def joined(x, branch, norm, kept):
    """LN(omega * x + kept * branch)."""
    summed = norm.omega * x + kept * branch
    centred = summed - summed.mean(-1, keepdims=True)
    return centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON) * norm.scale + norm.bias


@pytest.mark.parametrize(("place", "size"), [*HERE, *ON_A_GPU])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_feed_forward(place, size, dtype):
    batch, length, width, hidden, *_ = SIZES[size]
    operands, gradient = feed_forward_case(batch, length, width, hidden, 11.0, dtype)
    kept = factors(batch, length, width)

    def exact(x, weights, norm):
        before = x @ weights.up_kernel + weights.up_bias
        activated = before * 0.5 * (1 + jax.scipy.special.erf(before / math.sqrt(2)))
        return joined(x, activated @ weights.down_kernel + weights.down_bias, norm, kept)

    options = FeedForwardSettings("gelu", RATE, EPSILON, dtype)
    found = value_and_gradients(lambda *each: feed_forward(*each, KEY, options, place), operands, gradient)
    assert largest_error(found, in_float64(exact, operands, gradient)) < ALLOWED[dtype]


@pytest.mark.parametrize(("place", "size"), [*HERE, *ON_A_GPU])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_join(place, size, dtype):
    batch, length, width, _, heads, head_dim = SIZES[size]
    operands, gradient = join_case(batch, length, width, heads, head_dim, 11.0, dtype, dtype)
    kept = factors(batch, length, width)

    def exact(x, context, weights, norm):
        branch = jnp.einsum("BTNH,NHD->BTD", context, weights.out_kernel) + weights.out_bias
        return joined(x, branch, norm, kept)

    options = JoinSettings(RATE, EPSILON, dtype)
    found = value_and_gradients(lambda *each: out_proj_residual_norm(*each, KEY, options, place), operands, gradient)
    assert largest_error(found, in_float64(exact, operands, gradient)) < ALLOWED[dtype]


@pytest.mark.parametrize(("place", "size"), [*HERE, *ON_A_GPU])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True])
def test_attention(place, size, dtype, causal):
    batch, length, _, _, heads, head_dim = SIZES[size]
    operands, segments, gradient = attention_case(batch, length, length, heads, head_dim, dtype)
    kept, numbers = factors(batch, heads, length, length), np.asarray(segments[0])
    visible = (numbers[:, :, None] == numbers[:, None, :]) & (numbers > 0)[:, None, :]
    visible = visible & np.tril(np.ones((length, length), bool)) if causal else visible

    def exact(query, key, value):
        scores = jnp.einsum("BTNH,BSNH->BNTS", query, key)
        probabilities = jax.nn.softmax(jnp.where(visible[:, None], scores, -1e300), axis=-1)
        return jnp.einsum("BSNH,BNTS->BTNH", value, kept * probabilities)

    options = AttentionSettings(heads, causal, RATE)
    found = value_and_gradients(lambda *each: attend(*each, *segments, KEY, options, place), operands, gradient)
    assert largest_error(found, in_float64(exact, operands, gradient)) < ALLOWED[dtype]
