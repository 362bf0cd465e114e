"""The fused output projection and join against its plain form, in value and in every gradient."""

from __future__ import annotations

import dataclasses

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mhsh.kernels.gpu.join import is_narrow
from mhsh.kernels.out_proj_residual_norm import JoinSettings, OutWeights, out_proj_residual_norm, project_and_join_plain
from tests.kernels.comparing import (
    ALLOWED,
    ALONE,
    TARGETS,
    alone,
    in_float32,
    largest_error,
    norm_of,
    normals,
    place_of,
    value_and_gradients,
)


def case(batch, length, width, heads, head_dim, omega, residual_dtype="float32", dtype="float32", seed=0):
    """The operands, and a gradient by the result."""
    draw = normals(seed)
    weights = OutWeights(draw(heads, head_dim, width, scale=(heads * head_dim) ** -0.5), draw(width))
    x, gradient = (draw(batch, length, width).astype(residual_dtype) for _ in range(2))
    context = draw(batch, length, heads, head_dim).astype(dtype)
    return (x, context, weights, norm_of(draw, width, omega)), gradient


def compared(operands, gradient, options, key, place=ALONE):
    """The fused form, and the plain one with fp32 factors and an fp32 stream."""
    exact = dataclasses.replace(options, dtype="float32")
    fused = value_and_gradients(lambda *each: out_proj_residual_norm(*each, key, options, place), operands, gradient)
    plain = value_and_gradients(lambda *each: project_and_join_plain(*each, key, exact), in_float32(operands), in_float32(gradient))
    return fused, plain


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=6, derandomize=True, deadline=None)
@given(
    batch=st.integers(1, 5),
    length=st.integers(1, 40),
    width=st.sampled_from([24, 40, 64]),
    heads=st.sampled_from([1, 3, 4]),
    omega=st.floats(1.0, 30.0),
    rate=st.sampled_from([0.0, 0.1, 0.5]),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    residual_dtype=st.sampled_from(["float32", "bfloat16"]),
    seed=st.integers(0, 2**16),
)
def test_equals_its_plain_form(target, batch, length, width, heads, omega, rate, dtype, residual_dtype, seed):
    operands, gradient = case(batch, length, width, heads, 8, omega, residual_dtype, dtype, seed)
    found, expected = compared(operands, gradient, JoinSettings(rate, 1e-12, dtype), jax.random.key(seed), alone(target))
    assert largest_error(found, expected) < max(ALLOWED[dtype], ALLOWED[residual_dtype])


@pytest.mark.parametrize("target", TARGETS)
def test_rows_that_fill_no_block(target):
    operands, gradient = case(5, 211, 16, 2, 4, 30.0)
    found, expected = compared(operands, gradient, JoinSettings(0.3, 1e-12, "float32"), jax.random.key(1), alone(target))
    assert largest_error(found, expected) < ALLOWED["float32"]


def test_many_heads_on_a_gpu():
    """Too wide a product for the kernel: it reads the product, its tiles being several in a row and
    the last one cut short.
    """
    operands, gradient = case(3, 25, 600, 6, 24, 11.0)
    assert not is_narrow(144, "float32")
    found, expected = compared(operands, gradient, JoinSettings(0.3, 1e-12, "float32"), jax.random.key(1), alone("gpu"))
    assert largest_error(found, expected) < ALLOWED["float32"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mesh", [(8, 1), (2, 4)])
def test_shards_are_one_device(target, mesh):
    operands, gradient = case(16, 5, 24, 2, 4, 11.0)
    options = JoinSettings(0.3, 1e-12, "float32")
    one, _ = compared(operands, gradient, options, jax.random.key(2), alone(target))
    shards, plain = compared(operands, gradient, options, jax.random.key(2), place_of(*mesh, target))
    assert largest_error(shards, one) < 1e-6
    assert largest_error(shards, plain) < ALLOWED["float32"]
