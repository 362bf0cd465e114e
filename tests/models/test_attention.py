"""The vectorised attention against its two plain forms, and the masks as literal matrices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mhsh.models.attention import MultiHeadAttention, attention_mask

TOLERANCE = 1e-5

# (N, H, D, mask): one head, two, sixteen; with N H = D and without; "causal" is packed and padded
# as well.
CASES = [
    (1, 12, 12, "padding"),
    (1, 4, 12, "causal"),
    (1, 12, 12, "cross"),
    (2, 6, 12, "causal"),
    (2, 8, 12, "padding"),
    (2, 8, 12, "cross"),
    (16, 4, 64, "padding"),
    (16, 3, 20, "causal"),
]
SEGMENTS = np.array([[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 0, 0]], np.int32)


def head(params, i, x, source, mask, head_dim):
    """softmax(Q W_i^Q (K W_i^K)^T / sqrt(H)) V W_i^V for one row, x [T, D] and source [S, D]."""
    query = x @ params["query_kernel"][:, i] + params["query_bias"][None, i]
    key = source @ params["key_kernel"][:, i] + params["key_bias"][None, i]
    value = source @ params["value_kernel"][:, i] + params["value_bias"][None, i]
    scores = jnp.where(mask, query @ key.T / np.sqrt(head_dim), -1e30)
    exponentials = jnp.exp(scores - scores.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True) @ value


def loop_and_concatenate(params, x, source, mask):
    """Heads one after another, laid side by side, then one output matrix [N H, D]."""
    num_heads, head_dim, width = params["out_kernel"].shape
    heads = [head(params, i, x, source, mask, head_dim) for i in range(num_heads)]
    output_matrix = params["out_kernel"].reshape(num_heads * head_dim, width)
    return jnp.concatenate(heads, axis=1) @ output_matrix + params["out_bias"][None]


def sum_of_heads(params, x, source, mask):
    """Every head with its own output matrix [H, D]; the layer is their sum."""
    num_heads, head_dim, _ = params["out_kernel"].shape
    singles = (head(params, i, x, source, mask, head_dim) @ params["out_kernel"][i] for i in range(num_heads))
    return sum(singles, start=jnp.zeros_like(x)) + params["out_bias"][None]


def values_and_gradients(function, params, x, source, mask):
    """The output [B, T, D], and the gradients of a random weighting of it by every parameter and
    both inputs.
    """
    weighting = jax.random.normal(jax.random.key(9), x.shape)

    def weighted(params, x, source):
        out = function(params, x, source, mask)
        return (out * weighting).sum(), out

    gradients, out = jax.jit(jax.grad(weighted, argnums=(0, 1, 2), has_aux=True))(params, x, source)
    return out, gradients


def rows(plain):
    """A reference form over a batch."""
    return lambda params, x, source, mask: jax.vmap(plain, in_axes=(None, 0, 0, 0))(params, x, source, mask[:, 0])


@pytest.mark.parametrize(("num_heads", "head_dim", "embed_dim", "masked"), CASES)
def test_equals_both_plain_forms(tiny, random_like, error, num_heads, head_dim, embed_dim, masked):
    config = tiny(num_heads=num_heads, head_dim=head_dim, embed_dim=embed_dim)
    module = MultiHeadAttention(config)
    batch, length = SEGMENTS.shape
    x = jax.random.normal(jax.random.key(0), (batch, length, embed_dim))
    if masked == "cross":
        source = jax.random.normal(jax.random.key(1), (batch, 4, embed_dim))
        mask = np.broadcast_to(np.array([[1, 1, 1, 0], [1, 1, 0, 0]], bool)[:, None, None, :], (batch, 1, length, 4))
    else:
        source = x
        mask = attention_mask(jnp.asarray(SEGMENTS), causal=masked == "causal")
    mask = jnp.asarray(mask)
    params = random_like(jax.eval_shape(lambda: module.init(jax.random.key(2), x, source, mask, None))["params"])

    def vectorised(params, x, source, mask):
        return module.apply({"params": params}, x, source, mask, None)

    out, gradients = values_and_gradients(vectorised, params, x, source, mask)
    for plain in (loop_and_concatenate, sum_of_heads):
        expected_out, expected_gradients = values_and_gradients(rows(plain), params, x, source, mask)
        assert error(out, expected_out) < TOLERANCE
        assert error(gradients, expected_gradients) < TOLERANCE


def test_a_query_that_may_look_nowhere_stays_finite(tiny):
    module = MultiHeadAttention(tiny())
    x = jax.random.normal(jax.random.key(0), (1, 3, 12))
    mask = jnp.zeros((1, 1, 3, 3), bool)

    def summed(x):
        out, _ = module.init_with_output(jax.random.key(1), x, x, mask, None)
        return out.sum()

    out, gradient = jax.jit(jax.value_and_grad(summed))(x)
    assert np.isfinite(out) and np.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("segmentation", "causal", "expected"),
    [
        pytest.param([1, 1, 1], False, [[1, 1, 1], [1, 1, 1], [1, 1, 1]], id="whole"),
        pytest.param([1, 1, 0], False, [[1, 1, 0], [1, 1, 0], [0, 0, 0]], id="padding"),
        pytest.param([1, 1, 2, 2], False, [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]], id="packed"),
        pytest.param([1, 1, 1], True, [[1, 0, 0], [1, 1, 0], [1, 1, 1]], id="causal"),
        pytest.param([1, 1, 0], True, [[1, 0, 0], [1, 1, 0], [0, 0, 0]], id="causal padding"),
        pytest.param(
            [1, 1, 2, 2, 0],
            True,
            [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 0]],
            id="causal packed",
        ),
    ],
)
def test_masks(segmentation, causal, expected):
    mask = attention_mask(jnp.array([segmentation]), causal=causal)
    np.testing.assert_array_equal(mask, np.array(expected, bool)[None, None])


def test_masks_of_a_batch_are_each_rows_own():
    segments = jnp.asarray(SEGMENTS)
    both = attention_mask(segments, causal=True)
    assert both.shape == (2, 1, 6, 6)
    for row in range(2):
        np.testing.assert_array_equal(both[row : row + 1], attention_mask(segments[row : row + 1], causal=True))
    assert not np.array_equal(both[0], both[1])
