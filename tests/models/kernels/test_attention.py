"""Attention's kernels against a plain form in fp64, and their dropout mask element by element."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mhsh.models.dropout import dropout
from mhsh.models.kernels.attention import attention
from mhsh.models.transformer import REMAT_POLICIES
from tests.models.kernels.compiled import NO_COMPILER, registers

SEED = jnp.array([3, 9], jnp.uint32)
RATE = 0.25


def shape(rows, queries, keys, num_heads, kv_heads, head_dim):
    return (rows, queries, num_heads, head_dim), (rows, keys, kv_heads, head_dim)


# Rows of one block, as one array and causal; of several, with heads of keys that are shared; and
# queries and keys of other lengths. None is a power of two, and so are not all heads.
WHOLE = dict(shapes=shape(2, 21, 21, 2, 2, 24), causal=True, joint=True)
BLOCKS = dict(shapes=shape(2, 70, 70, 4, 2, 72), causal=False, joint=False)
CASES = [
    pytest.param(WHOLE, id="whole"),
    pytest.param(BLOCKS, id="blocks"),
    *(
        pytest.param(dict(shapes=shapes, causal=causal, joint=joint), id=name, marks=pytest.mark.slow)
        for name, shapes, causal, joint in (
            ("causal-blocks", shape(1, 150, 150, 4, 2, 16), True, False),
            ("joint-blocks", shape(1, 200, 200, 2, 2, 16), False, True),
            ("wide-causal-blocks", shape(1, 150, 150, 1, 1, 80), True, False),
            ("few-queries", shape(1, 13, 200, 2, 2, 16), False, False),
            ("few-keys", shape(1, 200, 13, 2, 2, 16), False, False),
            ("long", shape(1, 513, 513, 1, 1, 64), False, True),
        )
    ),
]


def segments(length, packed):
    """Of two rows: packed and padded, or all one."""
    lengths = ((length // 3, length - length // 3 - 3, 3), (length - 5, 0, 5)) if packed else ((length, 0, 0),) * 2
    return np.stack([np.repeat((1, 2, 0), parts) for parts in lengths]).astype(np.int32)


@functools.cache
def kernels(causal, joint, rate, scale):
    """Compiled once for all that a case asks: the output, and the gradients of queries, keys and
    values from that of the output.
    """

    def run(query, key, value, gradient, of_queries, of_keys):
        def out(*heads):
            heads = (jnp.concatenate(heads, axis=2),) if joint else heads
            return attention(heads, (of_queries, of_keys), SEED, rate=rate, causal=causal, scale=scale)

        out, backward = jax.vjp(out, query, key, value)
        return out, *backward(gradient)

    return jax.jit(run)


def arguments(case, dtype=jnp.float32):
    """Random queries, keys, values and a gradient that is 0 at padding."""
    queries, keys = case["shapes"]
    of_queries, of_keys = (segments(one[1], True)[: one[0]] for one in case["shapes"])
    drawn = [jax.random.normal(jax.random.key(i), one, dtype) for i, one in enumerate((queries, keys, keys, queries))]
    drawn[3] *= (of_queries > 0)[:, :, None, None]
    return *drawn, of_queries, of_keys


def dropped(ones, rate):
    """XLA's mask, on the scale of its weights."""
    return np.asarray(dropout(jnp.ones(ones), rate, SEED), np.float64)


def plain(causal, rate, scale, query, key, value, gradient, of_queries, of_keys):
    """All that `kernels` gives, in fp64."""
    query, key, value, gradient = (np.asarray(one, np.float64) for one in (query, key, value, gradient))
    readers = query.shape[2] // key.shape[2]
    keys, values = (np.repeat(one, readers, axis=2) for one in (key, value))
    visible = (of_queries[:, :, None] == of_keys[:, None]) & (of_keys > 0)[:, None]
    if causal:
        visible = visible & np.tri(visible.shape[1], dtype=bool)
    exps = np.exp(scale * np.einsum("BTNH,BSNH->BNTS", query, keys)) * visible[:, None]
    weights = exps / np.maximum(exps.sum(-1, keepdims=True), 1e-300)
    mask = dropped(weights.shape, rate)
    of_weights = mask * np.einsum("BTNH,BSNH->BNTS", gradient, values)
    of_scores = scale * weights * (of_weights - (weights * of_weights).sum(-1, keepdims=True))

    def shared(heads):
        return heads.reshape(*key.shape[:3], readers, -1).sum(3)

    return (
        np.einsum("BNTS,BSNH->BTNH", mask * weights, values),
        np.einsum("BNTS,BSNH->BTNH", of_scores, keys),
        shared(np.einsum("BNTS,BTNH->BSNH", of_scores, query)),
        shared(np.einsum("BNTS,BTNH->BSNH", mask * weights, gradient)),
    )


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_the_plain_form(case, error):
    scale = case["shapes"][0][-1] ** -0.5
    given = arguments(case)
    computed = kernels(case["causal"], case["joint"], RATE, scale)(*given)
    expected = plain(case["causal"], RATE, scale, *given)
    for actual, one in zip(computed, expected, strict=True):
        assert error(actual, one) < 3e-6
    assert not np.asarray(computed[0])[given[4] == 0].any(), "padding attends to nothing"


@pytest.mark.parametrize("case", [WHOLE, BLOCKS], ids=["whole", "blocks"])
def test_the_mask_is_that_of_xla_element_by_element(case):
    """Values that are a unit matrix show what queries read, such gradients what keys are told."""
    queries, keys = case["shapes"]
    zeros = jnp.zeros(queries), jnp.zeros(keys)
    units = [jnp.broadcast_to(jnp.eye(one[1], one[3])[None, :, None], one) for one in (keys, queries)]
    alike = [segments(one[1], False) for one in (queries, keys)]
    run = kernels(case["causal"], case["joint"], RATE, case["shapes"][0][-1] ** -0.5)
    out, _, _, of_value = run(*zeros, *units, *alike)
    rows, length, num_heads, _ = queries
    mask = dropped((rows, num_heads, length, length), RATE) > 0
    mask &= np.tri(length, dtype=bool) if case["causal"] else True
    np.testing.assert_array_equal(np.einsum("BTNS->BNTS", out)[..., :length] > 0, mask)
    readers = num_heads // keys[2]
    told = np.einsum("BSGT->BGTS", of_value)[:, :, :length]
    np.testing.assert_array_equal(told > 0, mask.reshape(rows, keys[2], readers, length, length).any(2))


@pytest.mark.parametrize(("case", "count"), [(WHOLE, 1), (BLOCKS, 2)], ids=["whole", "blocks"])
def test_projections_save_all_that_the_backward_pass_reads(case, count, capsys):
    """Of the kernel's own results: the output, and of longer rows the sums of each query."""
    *heads, _, of_queries, of_keys = map(jnp.asarray, arguments(case))

    def loss(*heads):
        return jnp.square(attention(heads, (of_queries, of_keys), SEED, rate=RATE)).sum()

    jax.ad_checkpoint.print_saved_residuals(jax.checkpoint(loss, policy=REMAT_POLICIES["projections"]), *heads)
    saved = [line for line in capsys.readouterr().out.splitlines() if "from a constant" not in line]
    assert len(saved) == 3 + count and sum("named 'context'" in line for line in saved) == count


@pytest.mark.slow
@pytest.mark.parametrize("case", [WHOLE, BLOCKS], ids=["whole", "blocks"])
def test_bf16_is_as_exact_as_xla(case, error):
    scale = case["shapes"][0][-1] ** -0.5
    given = arguments(case, jnp.bfloat16)
    expected = plain(case["causal"], 0.0, scale, *given)
    query, key, value, gradient, of_queries, of_keys = given
    visible = (of_queries[:, :, None] == of_keys[:, None]) & (of_keys > 0)[:, None]
    visible = visible & np.tri(visible.shape[1], dtype=bool) if case["causal"] else visible

    def by_xla(query, key, value):
        keys, values = (jnp.repeat(one, query.shape[2] // key.shape[2], axis=2) for one in (key, value))
        scores = (jnp.einsum("BTNH,BSNH->BNTS", query, keys) * scale).astype(jnp.float32)
        weights = jax.nn.softmax(jnp.where(visible[:, None], scores, -1e38)).astype(jnp.bfloat16)
        return jnp.einsum("BNTS,BSNH->BTNH", weights, values) * (of_queries > 0)[:, :, None, None]

    out, backward = jax.vjp(by_xla, query, key, value)
    for ours, xlas, one in zip(
        kernels(case["causal"], case["joint"], 0.0, scale)(*given), (out, *backward(gradient)), expected, strict=True
    ):
        assert error(ours, one) < max(0.01, 1.2 * error(xlas, one))


@pytest.mark.gpu_compile
@pytest.mark.skipif(NO_COMPILER, reason="XLA's CUDA plugin is not installed (pip install -e '.[gpu-compile]')")
@pytest.mark.parametrize(
    ("length", "num_heads", "kv_heads", "head_dim", "causal"),
    [
        (128, 1, 1, 64, False),
        (128, 16, 16, 64, True),
        (128, 2, 2, 128, False),
        (100, 4, 2, 32, True),
        (512, 16, 16, 64, False),
        (2048, 4, 2, 64, True),
        (513, 2, 1, 128, True),
    ],
)
def test_the_registers_of_an_h200_hold_the_blocks(length, num_heads, kv_heads, head_dim, causal):
    joint = num_heads == kv_heads
    shapes = shape(2, length, length, 3 * num_heads if joint else num_heads, kv_heads, head_dim)
    heads = [jax.ShapeDtypeStruct(one, jnp.bfloat16) for one in ((shapes[0],) if joint else (shapes[0], shapes[1], shapes[1]))]

    def both(heads, segments, seed, gradient):
        def out(heads):
            return attention(heads, (segments, segments), seed, rate=0.1, causal=causal, scale=head_dim**-0.5)

        out, backward = jax.vjp(out, heads)
        return out, backward(gradient)

    gradient = jax.ShapeDtypeStruct((2, length, num_heads, head_dim), jnp.bfloat16)
    whole = length <= 128 and joint and head_dim <= 64
    used = registers(
        both, tuple(heads), jax.ShapeDtypeStruct((2, length), jnp.int32), jax.ShapeDtypeStruct((2,), jnp.uint32), gradient
    )
    if not used:
        pytest.skip("without a device this release of XLA does not compile kernels to the end")
    assert {name: spilled for name, (_, spilled) in used.items()} == {
        "attention_forward": 0,
        "attention_whole" if whole else "attention_blocks": 0,
    }, used
