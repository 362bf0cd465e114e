"""The feed-forward sublayer and its join on a GPU: forward in one kernel, backward around the
join's.

The backward pass needs the hidden layer in memory, for the gradient by a matrix; so it is XLA's
product there.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

from mhsh.kernels.activations import ACTIVATIONS
from mhsh.kernels.dropout import Seed
from mhsh.kernels.gpu.join import FORWARD_TILE, Walk, is_narrow, join_rows, join_rows_backward, joined_tiles, walk_of
from mhsh.kernels.gpu.tiles import Span, launch, load, most_rows, product, side
from mhsh.kernels.residual_norm import Norm, stacked, unstacked
from mhsh.kernels.rows import KernelTarget, over_shards
from mhsh.kernels.settings import FeedForwardSettings, FeedForwardWeights, JoinSettings


def erf(x: Float32[Array, "*shape"]) -> Float32[Array, "*shape"]:
    """Within 1.5e-7 of it (Abramowitz, Stegun 1964, "Handbook of Mathematical Functions", 7.1.26):
    Pallas has none for Triton.
    """
    size = jnp.abs(x)
    step = 1.0 / (1.0 + 0.3275911 * size)
    series = ((((1.061405429 * step - 1.453152027) * step + 1.421413741) * step - 0.284496736) * step + 0.254829592) * step
    return jnp.sign(x) * (1.0 - series * jnp.exp(-size * size))


# What Triton can compute of the activations; only the forward pass needs them.
IN_TRITON = ACTIVATIONS | {"gelu": lambda x: 0.5 * x * (1.0 + erf(x * math.sqrt(0.5)))}


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def feed_forward(
    x: Float[Array, "B T D"],
    weights: FeedForwardWeights,
    norm: Norm,
    seed: Seed,
    settings: FeedForwardSettings,
    place: KernelTarget,
) -> Float[Array, "B T D"]:
    """LN(omega * x + dropout(activation(x W1 + b1) W2 + b2)); a hidden layer too wide for the chip
    is XLA's product.
    """

    def local(scalars: Array, rows: tuple[Array, ...], whole: tuple[Array, ...]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        (x,), (up, up_bias, down, vectors) = rows, whole
        if is_narrow(up.shape[1], settings.dtype):
            return (_fused(scalars, x, up, up_bias, down, vectors, settings, place),), ()
        hidden = ACTIVATIONS[settings.activation](_before_activation(x, up, up_bias)).astype(settings.dtype)
        return (join_rows(scalars, x, hidden, down, vectors, _join(settings), place),), ()

    return over_shards(local, place, seed, (x,), _whole(weights, norm, settings))[0][0]


def _forward(
    x: Float[Array, "B T D"],
    weights: FeedForwardWeights,
    norm: Norm,
    seed: Seed,
    settings: FeedForwardSettings,
    place: KernelTarget,
) -> tuple[Float[Array, "B T D"], tuple[Array, FeedForwardWeights, Norm, Seed]]:
    return feed_forward(x, weights, norm, seed, settings, place), (x, weights, norm, seed)


def _backward(
    settings: FeedForwardSettings,
    place: KernelTarget,
    saved: tuple[Array, FeedForwardWeights, Norm, Seed],
    gradient: Float[Array, "B T D"],
) -> tuple[Float[Array, "B T D"], FeedForwardWeights, Norm, None]:
    x, weights, norm, seed = saved

    def local(scalars: Array, rows: tuple[Array, ...], whole: tuple[Array, ...]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        (x, gradient), (up, up_bias, down, vectors) = rows, whole
        activated, activation_backward = jax.vjp(ACTIVATIONS[settings.activation], _before_activation(x, up, up_bias))
        hidden = activated.astype(settings.dtype)
        past, by_hidden, by_down, by_vectors = join_rows_backward(
            scalars, x, hidden, gradient, down, vectors, _join(settings), place
        )
        (by_sum,) = activation_backward(by_hidden.astype(jnp.float32))
        by_up_bias = by_sum.sum(axis=(0, 1))
        by_sum = by_sum.astype(settings.dtype)
        by_x = past + product("BTF,DF->BTD", by_sum, up).astype(x.dtype)  # cast first: the product is written in that dtype
        by_up = product("BTD,BTF->DF", x.astype(settings.dtype), by_sum)
        return (by_x,), (by_up, by_up_bias, by_down, by_vectors)

    rows, sums = over_shards(local, place, seed, (x, gradient), _whole(weights, norm, settings))
    by_up, by_up_bias, by_down, by_vectors = sums
    by_norm, by_down_bias = unstacked(by_vectors)
    return rows[0], FeedForwardWeights(by_up, by_up_bias, by_down, by_down_bias), by_norm, None


feed_forward.defvjp(_forward, _backward)


def _whole(weights: FeedForwardWeights, norm: Norm, settings: FeedForwardSettings) -> tuple[Array, ...]:
    up, down = weights.up_kernel.astype(settings.dtype), weights.down_kernel.astype(settings.dtype)
    return up, weights.up_bias, down, stacked(norm, weights.down_bias)


def _join(settings: FeedForwardSettings) -> JoinSettings:
    return JoinSettings(settings.rate, settings.epsilon, settings.dtype)


def _before_activation(x: Float[Array, "B T D"], up: Float[Array, "D F"], up_bias: Float32[Array, " F"]) -> Float32[Array, "B T F"]:
    return product("BTD,DF->BTF", x.astype(up.dtype), up) + up_bias


def _fused(
    scalars: Array,
    x: Float[Array, "B T D"],
    up: Float[Array, "D F"],
    up_bias: Float32[Array, " F"],
    down: Float[Array, "F D"],
    vectors: Float32[Array, "4 D"],
    settings: FeedForwardSettings,
    place: KernelTarget,
) -> Float[Array, "B T D"]:
    flat = x.reshape(-1, x.shape[-1])
    walk = walk_of(flat, _join(settings), narrow=True, tile=FORWARD_TILE)
    (y,) = launch(
        functools.partial(_kernel, walk, settings.activation),
        place,
        (scalars, vectors, flat, up, up_bias[None], down),
        [jax.ShapeDtypeStruct(flat.shape, x.dtype)],
        grid=(walk.num_programs,),
        name="feed_forward",
        num_warps=8,
        num_stages=2,
    )
    return y.reshape(x.shape)


def _kernel(
    walk: Walk, activation: str, scalars: Any, vectors: Any, x_ref: Any, up: Any, up_bias: Any, down: Any, y_ref: Any
) -> None:
    rows, wide = walk.rows(), Span(0, side(up.shape[1]), up.shape[1])
    size = side(walk.width, most_rows(up.dtype))

    def add(step: Any, hidden: Array) -> Array:
        terms = Span(step * size, size, walk.width)
        return hidden + product("RD,DF->RF", load(x_ref, rows, terms).astype(up.dtype), load(up, terms, wide))

    zeros = jnp.zeros((walk.block_rows, wide.size), jnp.float32)
    before = jax.lax.fori_loop(0, -(-walk.width // size), add, zeros) + load(up_bias, Span.at(0), wide)
    hidden = IN_TRITON[activation](before).astype(down.dtype)
    joined_tiles(walk, scalars, vectors, x_ref, lambda columns: product("RF,FD->RD", hidden, load(down, wide, columns)), y_ref)
