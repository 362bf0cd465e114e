"""The vectorised attention against its two plain forms, and the masks as literal matrices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from msgspec.structs import replace

from mhsh.config.entries import SCHEMES
from mhsh.models.attention import MultiHeadAttention, attention_mask, cross_attention_mask
from mhsh.models.kernels.select import allow_interpreter
from tests.models.plain import attention as sum_of_heads
from tests.models.plain import head

TOLERANCE = 1e-5

# (N, H, D, mask): one head and several; with N H = D and without; projected jointly (3 N H <= D)
# and apart. "causal" is packed and padded as well; a query at padding may look nowhere.
CASES = [(1, 4, 12, "causal"), (2, 6, 12, "causal"), (2, 8, 12, "cross"), (5, 2, 32, "padding")]
SEGMENTS = np.array([[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 0, 0]], np.int32)


def loop_and_concatenate(params, x, source, look):
    """Heads one after another, laid side by side, then one output matrix [N H, D]."""
    num_heads, head_dim, width = params["out_kernel"].shape
    heads = [head(params, i, x, source, look) for i in range(num_heads)]
    return jnp.concatenate(heads, axis=-1) @ params["out_kernel"].reshape(num_heads * head_dim, width) + params["out_bias"]


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


def fresh_module(random_like, config, length=6, norms=False):
    """A module, its random parameters, and inputs of self-attention."""
    module, x = MultiHeadAttention(config, norms=norms), jax.random.normal(jax.random.key(0), (2, length, config.embed_dim))
    mask = attention_mask(jnp.ones((2, length), jnp.int32), causal=False)
    return module, random_like(jax.eval_shape(lambda: module.init(jax.random.key(1), x, None, mask, None))["params"]), x


@pytest.mark.parametrize(("num_heads", "head_dim", "embed_dim", "masked"), CASES)
def test_equals_both_plain_forms(tiny, random_like, error, num_heads, head_dim, embed_dim, masked):
    if masked == "cross":
        mask = cross_attention_mask(jnp.ones((2, 6), jnp.int32), jnp.array([[1, 1, 1, 0], [1, 1, 0, 0]]))
    else:
        mask = attention_mask(jnp.asarray(SEGMENTS), causal=masked == "causal")
    module, params, x = fresh_module(random_like, tiny(num_heads=num_heads, head_dim=head_dim, embed_dim=embed_dim))
    source = jax.random.normal(jax.random.key(1), (2, 4, embed_dim)) if masked == "cross" else x

    def vectorised(params, x, source, _):
        return module.apply({"params": params}, x, source, mask, None)

    def of_itself(params, x, source, _):
        """Self-attention, whose gradient is by both inputs of a plain form."""
        return module.apply({"params": params}, x + source - jax.lax.stop_gradient(x), None, mask, None)

    for form in (vectorised,) if masked == "cross" else (vectorised, of_itself):
        out, gradients = values_and_gradients(form, params, x, source, mask.dense[:, 0])
        for plain in (loop_and_concatenate, sum_of_heads):
            expected_out, expected = values_and_gradients(plain, params, x, source, mask.dense[:, 0])
            if form is of_itself:
                whole = expected[1] + expected[2]
                expected = (expected[0], whole, whole)
            assert error(out, expected_out) < TOLERANCE
            assert error(gradients, expected) < TOLERANCE


@pytest.mark.parametrize(
    ("segmentation", "causal", "expected"),
    [
        ([1, 1, 2, 2, 0], False, ["11000", "11000", "00110", "00110", "00000"]),
        ([1, 1, 2, 2, 0], True, ["10000", "11000", "00100", "00110", "00000"]),
    ],
)
def test_masks(segmentation, causal, expected):
    """Of a row among others."""
    other = [3] + [0] * (len(segmentation) - 1)
    mask = attention_mask(jnp.array([other, segmentation]), causal=causal)
    assert mask.dense.shape == (2, 1, len(segmentation), len(segmentation)) and mask.dense[0].sum() == 1
    np.testing.assert_array_equal(mask.dense[1, 0], np.array([list(map(int, row)) for row in expected], bool))


@pytest.mark.parametrize(("num_heads", "head_dim"), [(1, 4), (3, 6)])  # joint and separate projections
def test_normalised_queries_and_keys_are_those_of_flax(tiny, random_like, error, num_heads, head_dim):
    config = tiny(num_heads=num_heads, head_dim=head_dim, embed_dim=12, qk_norm=True, layer_norm_epsilon=1e-6)
    mask = attention_mask(jnp.asarray(SEGMENTS), causal=True)
    ours, params, x = fresh_module(random_like, config)
    flax = nn.MultiHeadDotProductAttention(num_heads=num_heads, qkv_features=num_heads * head_dim, normalize_qk=True)
    theirs = {name: {part: params[f"{name}_{part}"] for part in ("kernel", "bias")} for name in ("query", "key", "value", "out")}
    theirs |= {"query_ln": params["query_norm"], "key_ln": params["key_norm"]}
    real = SEGMENTS > 0

    def out(params):
        return ours.apply({"params": params}, x, None, mask, None)

    assert error(out(params)[real], flax.apply({"params": theirs}, x, mask=mask.dense)[real]) < TOLERANCE
    # Queries and keys of any length are alike.
    longer = params | {"query_kernel": 7 * params["query_kernel"], "query_bias": 7 * params["query_bias"]}
    assert error(out(longer), out(params)) < TOLERANCE


def test_hybrid_norm_normalises_the_values_too(tiny, random_like, error):
    mask = attention_mask(jnp.asarray(SEGMENTS), causal=False)
    ours, params, x = fresh_module(random_like, tiny(), norms=SCHEMES["hybrid_norm"].residual.head_norms)
    assert {name for name in params if name.endswith("norm")} == {"query_norm", "key_norm", "value_norm"}
    longer = params | {name: 7 * params[name] for part in ("query", "key", "value") for name in (f"{part}_kernel", f"{part}_bias")}
    outs = [ours.apply({"params": each}, x, None, mask, None) for each in (params, longer)]
    assert error(outs[1], outs[0]) < TOLERANCE


@pytest.mark.parametrize("masked", ["joint", "cross"])
def test_kernels_compute_what_xla_computes(tiny, random_like, error, masked):
    """In value and all gradients, with the same elements dropped, in Pallas's interpreter."""
    shared = {} if masked == "joint" else {"num_kv_heads": 1}
    config = tiny(num_heads=2, head_dim=4, embed_dim=24, attention_dropout=0.3, hidden_dropout=0.2, **shared)
    _, params, x = fresh_module(random_like, config)
    mask, source = attention_mask(jnp.asarray(SEGMENTS), causal=True), None
    if masked == "cross":
        mask = cross_attention_mask(jnp.asarray(SEGMENTS), jnp.array([[1, 2, 2, 0], [1, 1, 0, 0]]))
        source = jax.random.normal(jax.random.key(1), (2, 4, 24))
    seeds = jnp.arange(4, dtype=jnp.uint32).reshape(2, 2)

    def by(kernels):
        module = MultiHeadAttention(replace(config, kernels=kernels))

        def weighted(params, x, source):
            out = module.apply({"params": params}, x, source, mask, seeds) * (SEGMENTS > 0)[:, :, None]
            return (out * jnp.cos(out)).sum(), out

        with allow_interpreter():
            return jax.jit(jax.grad(weighted, argnums=(0, 1), has_aux=True))(params, x, source)

    assert error(by("fused"), by("xla")) < TOLERANCE
