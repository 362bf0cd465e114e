"""The feed-forward sublayer and its join in one kernel: the F-wide hidden layer never leaves the
chip.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from mhsh.kernels.activations import ACTIVATIONS
from mhsh.kernels.dropout import Seed, seed_of
from mhsh.kernels.gpu import feed_forward as gpu
from mhsh.kernels.residual_norm import Norm, joined, joined_backward, joined_plain, stacked, unstacked, vectors_of
from mhsh.kernels.rows import MIB, Block, KernelTarget, Result, VmemBudget, add_to, only, over_rows, product
from mhsh.kernels.settings import FeedForwardSettings, FeedForwardWeights


def feed_forward_plain(
    x: Float[Array, "B T D"], weights: FeedForwardWeights, norm: Norm, key: Key[Array, ""] | None, settings: FeedForwardSettings
) -> Float[Array, "B T D"]:
    """LN(omega * x + dropout(activation(x W1 + b1) W2 + b2)), the definition; without a key nothing
    is dropped.
    """
    up, up_bias, down, down_bias = (each.astype(settings.dtype) for each in weights)
    hidden = ACTIVATIONS[settings.activation](jnp.einsum("BTD,DF->BTF", x.astype(settings.dtype), up) + up_bias)
    branch = jnp.einsum("BTF,FD->BTD", hidden, down) + down_bias
    return joined_plain(x, branch, norm, epsilon=settings.epsilon, rate=settings.rate, key=key)


def feed_forward(
    x: Float[Array, "B T D"],
    weights: FeedForwardWeights,
    norm: Norm,
    key: Key[Array, ""] | None,
    settings: FeedForwardSettings,
    place: KernelTarget,
) -> Float[Array, "B T D"]:
    """`feed_forward_plain` in one kernel, with the same elements dropped for the same key, on any
    mesh.

    Everything between two products is fp32. The backward pass is one kernel as well: it keeps `x`
    and computes the rest again.
    """
    settings = settings if key is not None else dataclasses.replace(settings, rate=0.0)
    seed = jnp.zeros((2,), jnp.uint32) if key is None else seed_of(key)
    fused = gpu.feed_forward if place.target == "gpu" else _fused
    return fused(x, weights, norm, seed, settings, place)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _fused(
    x: Float[Array, "B T D"],
    weights: FeedForwardWeights,
    norm: Norm,
    seed: Seed,
    settings: FeedForwardSettings,
    place: KernelTarget,
) -> Float[Array, "B T D"]:
    num_inputs, num_hidden = weights.up_kernel.shape
    (y,), _ = over_rows(
        functools.partial(_forward_kernel, settings),
        place,
        seed,
        [x],
        _whole(weights, norm, settings),
        [Result(num_inputs, x.dtype)],
        name="feed_forward",
        flops_per_row=4 * num_inputs * num_hidden,
        transcendentals_per_row=num_hidden + 1,
        onchip=onchip(num_inputs, num_hidden, x.dtype, settings.dtype),
    )
    return y


def _forward(
    x: Float[Array, "B T D"],
    weights: FeedForwardWeights,
    norm: Norm,
    seed: Seed,
    settings: FeedForwardSettings,
    place: KernelTarget,
) -> tuple[Float[Array, "B T D"], tuple[Array, FeedForwardWeights, Norm, Seed]]:
    return _fused(x, weights, norm, seed, settings, place), (x, weights, norm, seed)


def _backward(
    settings: FeedForwardSettings,
    place: KernelTarget,
    saved: tuple[Array, FeedForwardWeights, Norm, Seed],
    gradient: Float[Array, "B T D"],
) -> tuple[Float[Array, "B T D"], FeedForwardWeights, Norm, None]:
    x, weights, norm, seed = saved
    num_inputs, num_hidden = weights.up_kernel.shape
    shapes = ((num_inputs, num_hidden), (1, num_hidden), (num_hidden, num_inputs), (4, num_inputs))
    (by_x,), (by_up, by_up_bias, by_down, by_vectors) = over_rows(
        functools.partial(_backward_kernel, settings),
        place,
        seed,
        [x, gradient],
        _whole(weights, norm, settings),
        [Result(num_inputs, x.dtype)],
        [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes],
        name="feed_forward_backward",
        flops_per_row=12 * num_inputs * num_hidden,
        transcendentals_per_row=2 * num_hidden + 1,
        onchip=onchip(num_inputs, num_hidden, x.dtype, settings.dtype),
    )
    by_norm, by_down_bias = unstacked(by_vectors)
    return by_x, FeedForwardWeights(by_up, by_up_bias[0], by_down, by_down_bias), by_norm, None


_fused.defvjp(_forward, _backward)


def onchip(num_inputs: int, num_hidden: int, residual_dtype: Any, dtype: Any) -> VmemBudget:
    """What the backward pass takes, which is more than the forward pass does.

    A row: x and both gradients, each one in use and one on its way, and the fp32 values in between.
    Besides: the weights, their gradients, and a block's part of these.
    """
    residual, factor = jnp.dtype(residual_dtype).itemsize, jnp.dtype(dtype).itemsize
    return VmemBudget(num_inputs * (6 * residual + 32) + num_hidden * 32, 2 * num_inputs * num_hidden * (factor + 8) + 4 * MIB)


def _whole(weights: FeedForwardWeights, norm: Norm, settings: FeedForwardSettings) -> list[Array]:
    up, down = weights.up_kernel.astype(settings.dtype), weights.down_kernel.astype(settings.dtype)
    return [up, weights.up_bias[None], down, stacked(norm, weights.down_bias)]


def _forward_kernel(
    settings: FeedForwardSettings,
    block: Block,
    scalars: Any,
    x_ref: Any,
    up: Any,
    up_bias: Any,
    down: Any,
    vectors: Any,
    y_ref: Any,
) -> None:
    x = x_ref[...]
    hidden = ACTIVATIONS[settings.activation](product("RD,DF->RF", x.astype(settings.dtype), up[...]) + up_bias[...])
    branch = product("RF,FD->RD", hidden.astype(settings.dtype), down[...])
    kept = block.kept(scalars, x.shape[1], settings.rate)
    y = joined(x.astype(jnp.float32), branch, vectors_of(vectors), kept, epsilon=settings.epsilon, rate=settings.rate)
    y_ref[...] = y.astype(y_ref.dtype)


def _backward_kernel(
    settings: FeedForwardSettings,
    block: Block,
    scalars: Any,
    x_ref: Any,
    gradient_ref: Any,
    up: Any,
    up_bias: Any,
    down: Any,
    vectors: Any,
    by_x: Any,
    by_up: Any,
    by_up_bias: Any,
    by_down: Any,
    by_vectors: Any,
) -> None:
    valid, dtype = block.valid(), settings.dtype
    x, gradient = only(x_ref[...], valid), only(gradient_ref[...], valid)
    factor = x.astype(dtype)
    activated, activation_backward = jax.vjp(ACTIVATIONS[settings.activation], product("RD,DF->RF", factor, up[...]) + up_bias[...])
    hidden = activated.astype(dtype)
    branch = product("RF,FD->RD", hidden, down[...])
    past, by_branch, block_vectors = joined_backward(
        gradient.astype(jnp.float32),
        x.astype(jnp.float32),
        branch,
        vectors_of(vectors),
        block.kept(scalars, x.shape[1], settings.rate),
        epsilon=settings.epsilon,
        rate=settings.rate,
    )
    by_out = by_branch.astype(dtype)
    (by_sum,) = activation_backward(product("RD,FD->RF", by_out, down[...]))
    by_hidden = by_sum.astype(dtype)
    by_x[...] = (past + product("RF,DF->RD", by_hidden, up[...])).astype(by_x.dtype)
    add_to(by_up, product("RD,RF->DF", factor, by_hidden))
    add_to(by_up_bias, jnp.sum(by_sum, axis=0, keepdims=True))
    add_to(by_down, product("RF,RD->FD", hidden, by_out))
    add_to(by_vectors, block_vectors)
