"""Fused attention against its plain form, in value and in every gradient: segments, padding, causal
masks, dropout, blocks.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mhsh.kernels import attention
from mhsh.kernels.attention import AttentionSettings, attend, attend_plain
from mhsh.kernels.rows import VmemBudget
from tests.kernels.comparing import (
    ALLOWED,
    ALONE,
    TARGETS,
    alone,
    in_float32,
    largest_error,
    normals,
    place_of,
    value_and_gradients,
)


def segments_of(seed, batch, length):
    """Segments in order, then padding; row 0 is padding alone."""
    generator = np.random.default_rng(seed)
    segments = np.sort(generator.integers(1, 4, (batch, length)), axis=1)
    segments[np.arange(length) >= generator.integers(0, length + 1, (batch, 1))] = 0
    segments[0] = 0
    return jnp.asarray(segments, jnp.int32)


def case(batch, length, source_length, heads, head_dim, dtype="float32", seed=0):
    """Queries, keys, values; segments of both; a gradient by the result."""
    draw = normals(seed)
    shapes = [(batch, length), (batch, source_length), (batch, source_length), (batch, length)]
    query, key, value, gradient = (draw(*shape, heads, head_dim).astype(dtype) for shape in shapes)
    query = query / jnp.asarray(head_dim**0.5, dtype)
    source_segments = segments_of(seed, batch, source_length)
    segments = source_segments if length == source_length else segments_of(seed + 1, batch, length)
    return (query, key, value), (segments, source_segments), gradient


def compared(operands, segments, gradient, options, key, place=ALONE):
    """The fused form, and the plain one in fp32."""
    fused = value_and_gradients(lambda *each: attend(*each, *segments, key, options, place), operands, gradient)
    plain = value_and_gradients(
        lambda *each: attend_plain(*each, *segments, key, options), in_float32(operands), in_float32(gradient)
    )
    return fused, plain


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=8, derandomize=True, deadline=None)
@given(
    batch=st.integers(1, 3),
    length=st.integers(1, 24),
    more=st.sampled_from([0, 0, 7]),
    heads=st.sampled_from([1, 3]),
    causal=st.booleans(),
    rate=st.sampled_from([0.0, 0.1, 0.5]),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    seed=st.integers(0, 2**16),
)
def test_equals_its_plain_form(target, batch, length, more, heads, causal, rate, dtype, seed):
    operands, segments, gradient = case(batch, length, length + more, heads, 8, dtype, seed)
    found, expected = compared(
        operands, segments, gradient, AttentionSettings(heads, causal, rate), jax.random.key(seed), alone(target)
    )
    assert largest_error(found, expected) < ALLOWED[dtype]


@pytest.mark.parametrize("causal", [False, True])
def test_blocks_of_queries(monkeypatch, causal):
    """Three blocks of 128 queries, the last one cut short; two sequences in a row."""
    monkeypatch.setattr(attention, "onchip", lambda *_: VmemBudget(200_000, 0))
    operands, segments, gradient = case(2, 300, 300, 2, 4)
    found, expected = compared(operands, segments, gradient, AttentionSettings(2, causal, 0.2), jax.random.key(0))
    assert largest_error(found, expected) < ALLOWED["float32"]


@pytest.mark.parametrize("causal", [False, True])
def test_blocks_on_a_gpu(causal):
    """Six blocks of queries and seven of keys, the last ones cut short."""
    operands, segments, gradient = case(2, 180, 210, 2, 24)
    found, expected = compared(operands, segments, gradient, AttentionSettings(2, causal, 0.2), jax.random.key(0), alone("gpu"))
    assert largest_error(found, expected) < ALLOWED["float32"]


@pytest.mark.parametrize("target", TARGETS)
def test_a_row_of_padding_is_finite_and_looks_everywhere(target):
    (query, key, value), segments, _ = case(2, 6, 6, 1, 4)
    out = attend(query, key, value, *segments, None, AttentionSettings(1, False, 0.5), alone(target))
    np.testing.assert_allclose(out[0], jnp.broadcast_to(value[0].mean(axis=0), out[0].shape), atol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_what_may_not_be_seen_has_no_gradient(target):
    operands, segments, gradient = case(3, 12, 12, 2, 4)
    (_, by_query, _, _), _ = compared(operands, segments, gradient, AttentionSettings(2, True, 0.0), None, alone(target))
    assert not by_query[0].any()
    assert by_query[1:].any()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mesh", [(4, 1), (2, 2)])
def test_shards_are_one_device(target, mesh):
    operands, segments, gradient = case(8, 10, 10, 2, 4)
    options = AttentionSettings(2, False, 0.3)
    one, plain = compared(operands, segments, gradient, options, jax.random.key(2), alone(target))
    shards, _ = compared(operands, segments, gradient, options, jax.random.key(2), place_of(*mesh, target))
    assert largest_error(shards, one) < 1e-6
    assert largest_error(shards, plain) < ALLOWED["float32"]
