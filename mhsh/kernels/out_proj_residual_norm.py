"""Attention's output projection and its join in one kernel: what the projection makes never leaves
the chip.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Key

from mhsh.kernels.dropout import Seed, seed_of
from mhsh.kernels.gpu import join as gpu
from mhsh.kernels.residual_norm import Norm, joined, joined_backward, joined_plain, stacked, unstacked, vectors_of
from mhsh.kernels.rows import MIB, Block, KernelTarget, Result, VmemBudget, add_to, only, over_rows, product
from mhsh.kernels.settings import JoinSettings, OutWeights


def project_and_join_plain(
    x: Float[Array, "B T D"],
    context: Float[Array, "B T N H"],
    weights: OutWeights,
    norm: Norm,
    key: Key[Array, ""] | None,
    settings: JoinSettings,
) -> Float[Array, "B T D"]:
    """LN(omega * x + dropout(context W + b)), the definition; without a key nothing is dropped."""
    kernel, bias = (each.astype(settings.dtype) for each in weights)
    branch = jnp.einsum("BTNH,NHD->BTD", context, kernel) + bias
    return joined_plain(x, branch, norm, epsilon=settings.epsilon, rate=settings.rate, key=key)


def out_proj_residual_norm(
    x: Float[Array, "B T D"],
    context: Float[Array, "B T N H"],
    weights: OutWeights,
    norm: Norm,
    key: Key[Array, ""] | None,
    settings: JoinSettings,
    place: KernelTarget,
) -> Float[Array, "B T D"]:
    """`project_and_join_plain` in one kernel, with the same elements dropped for the same key, on
    any mesh.

    Everything after the product is fp32. The backward pass is one kernel as well: it keeps `x` and
    `context`, which are there anyway, and computes the rest again.
    """
    settings = settings if key is not None else dataclasses.replace(settings, rate=0.0)
    seed = jnp.zeros((2,), jnp.uint32) if key is None else seed_of(key)
    *_, num_heads, head_dim = context.shape
    flat = context.reshape(*context.shape[:2], num_heads * head_dim)
    kernel = weights.out_kernel.reshape(num_heads * head_dim, -1)
    fused = gpu.out_proj_residual_norm if place.target == "gpu" else _fused
    return fused(x, flat, kernel, weights.out_bias, norm, seed, settings, place)


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7))
def _fused(
    x: Float[Array, "B T D"],
    context: Float[Array, "B T C"],
    kernel: Float32[Array, "C D"],
    bias: Float32[Array, " D"],
    norm: Norm,
    seed: Seed,
    settings: JoinSettings,
    place: KernelTarget,
) -> Float[Array, "B T D"]:
    num_inputs, num_outputs = kernel.shape
    (y,), _ = over_rows(
        functools.partial(_forward_kernel, settings),
        place,
        seed,
        [x, context],
        [kernel.astype(settings.dtype), stacked(norm, bias)],
        [Result(num_outputs, x.dtype)],
        name="out_proj_residual_norm",
        flops_per_row=2 * num_inputs * num_outputs,
        transcendentals_per_row=1,
        onchip=onchip(num_inputs, num_outputs, x.dtype, settings.dtype),
    )
    return y


def _forward(
    x: Float[Array, "B T D"],
    context: Float[Array, "B T C"],
    kernel: Float32[Array, "C D"],
    bias: Float32[Array, " D"],
    norm: Norm,
    seed: Seed,
    settings: JoinSettings,
    place: KernelTarget,
) -> tuple[Float[Array, "B T D"], tuple[Array, Array, Array, Array, Norm, Seed]]:
    return _fused(x, context, kernel, bias, norm, seed, settings, place), (x, context, kernel, bias, norm, seed)


def _backward(
    settings: JoinSettings,
    place: KernelTarget,
    saved: tuple[Array, Array, Array, Array, Norm, Seed],
    gradient: Float[Array, "B T D"],
) -> tuple[Float[Array, "B T D"], Float[Array, "B T C"], Float32[Array, "C D"], Float32[Array, " D"], Norm, None]:
    x, context, kernel, bias, norm, seed = saved
    num_inputs, num_outputs = kernel.shape
    (by_x, by_context), (by_kernel, by_vectors) = over_rows(
        functools.partial(_backward_kernel, settings),
        place,
        seed,
        [x, context, gradient],
        [kernel.astype(settings.dtype), stacked(norm, bias)],
        [Result(num_outputs, x.dtype), Result(num_inputs, context.dtype)],
        [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((num_inputs, num_outputs), (4, num_outputs))],
        name="project_and_join_backward",
        flops_per_row=6 * num_inputs * num_outputs,
        transcendentals_per_row=1,
        onchip=onchip(num_inputs, num_outputs, x.dtype, settings.dtype),
    )
    by_norm, by_bias = unstacked(by_vectors)
    return by_x, by_context, by_kernel, by_bias, by_norm, None


_fused.defvjp(_forward, _backward)


def onchip(num_inputs: int, num_outputs: int, residual_dtype: Any, dtype: Any) -> VmemBudget:
    """What the backward pass takes, which is more than the forward pass does.

    A row: x, the context and their gradients, each one in use and one on its way, and the fp32
    values in between. Besides: the weights, their gradients, and a block's part of these.
    """
    residual, factor = jnp.dtype(residual_dtype).itemsize, jnp.dtype(dtype).itemsize
    return VmemBudget(
        num_outputs * (6 * residual + 32) + num_inputs * (4 * factor + 8), num_inputs * num_outputs * (factor + 8) + 4 * MIB
    )


def _forward_kernel(
    settings: JoinSettings, block: Block, scalars: Any, x_ref: Any, context: Any, kernel: Any, vectors: Any, y_ref: Any
) -> None:
    x = x_ref[...].astype(jnp.float32)
    branch = product("RC,CD->RD", context[...], kernel[...])
    kept = block.kept(scalars, x.shape[1], settings.rate)
    y = joined(x, branch, vectors_of(vectors), kept, epsilon=settings.epsilon, rate=settings.rate)
    y_ref[...] = y.astype(y_ref.dtype)


def _backward_kernel(
    settings: JoinSettings,
    block: Block,
    scalars: Any,
    x_ref: Any,
    context_ref: Any,
    gradient_ref: Any,
    kernel: Any,
    vectors: Any,
    by_x: Any,
    by_context: Any,
    by_kernel: Any,
    by_vectors: Any,
) -> None:
    valid = block.valid()
    x, context, gradient = (only(each[...], valid) for each in (x_ref, context_ref, gradient_ref))
    past, by_branch, block_vectors = joined_backward(
        gradient.astype(jnp.float32),
        x.astype(jnp.float32),
        product("RC,CD->RD", context, kernel[...]),
        vectors_of(vectors),
        block.kept(scalars, x.shape[1], settings.rate),
        epsilon=settings.epsilon,
        rate=settings.rate,
    )
    by_out = by_branch.astype(settings.dtype)
    by_x[...] = past.astype(by_x.dtype)
    by_context[...] = product("RD,CD->RC", by_out, kernel[...]).astype(by_context.dtype)
    add_to(by_kernel, product("RC,RD->CD", context, by_out))
    add_to(by_vectors, block_vectors)
