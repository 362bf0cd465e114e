"""The kernels around a sublayer: what it puts out is added to the residual stream, and the sum
normalised.

    s = weight * x + dropout(product + bias),  y = LN(s)

Forward and backward, each array of a row is read once and written once. Where y is the stream
(Post-LN and its kin), a copy of it in the compute dtype goes to the next sublayer; where s is
(Pre-LN), y itself does. The backward pass adds up the gradients of the vectors over the rows of
each program; XLA adds up those sums.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from mhsh.config.schema import ModelConfig
from mhsh.models.kernels.join import FIRST, Join, Operands, SavedNorm, backward, first_row, forward, make_join
from mhsh.models.kernels.rows import mosaic_obstacle
from mhsh.models.kernels.select import is_interpreted
from mhsh.models.sublayer import Branch


def widest(kernels: str) -> int:
    """The most columns of a row that registers hold, with all that is computed of them."""
    return 1536 if kernels == "mosaic" else 4096


def join_obstacle(config: ModelConfig) -> str:
    """The reason why the kernels cannot add to the stream of this model; empty: they can."""
    if config.embed_dim % 128 or config.embed_dim > widest(config.kernels):
        return f"model.embed_dim = {config.embed_dim} is no multiple of 128 up to {widest(config.kernels)}"
    return mosaic_obstacle() if config.kernels == "mosaic" and not is_interpreted() else ""


def has_copy(config: ModelConfig) -> bool:
    """Whether a stream that is normalised is another array than what the next sublayer reads."""
    return config.residual_dtype != config.compute_dtype


def add_and_norm(
    config: ModelConfig,
    x: Float[Array, "B T D"],
    read: Float[Array, "B T D"],
    branch: Branch,
    scale: Float[Array, " D"],
    bias: Float[Array, " D"],
    weight: Float[Array, " D"] | float,
    *,
    normed_stream: bool,
) -> tuple[Float[Array, "B T D"], Float[Array, "B T D"]]:
    """The stream after a sublayer, and what the next one reads.

    Args:
      read: x as the sublayer read it; the gradient of a weight that is a vector is taken of it.
      branch: what the sublayer puts out.
      normed_stream: whether y is the stream, or s.
    """
    join = make_join(config, weight if isinstance(weight, float) else None, branch.seed is not None, normed_stream)
    rows = [each.reshape(-1, x.shape[-1]) for each in (x, read, branch.product)]
    # In the order of mhsh/models/vectors.py, where they are neighbours: XLA slices them in one.
    vectors = jnp.concatenate([branch.bias, bias, scale, *([] if isinstance(weight, float) else [weight])])[None]
    seed = jnp.zeros(2, jnp.uint32) if branch.seed is None else branch.seed
    stream, copy = _join(join, *rows, vectors, seed, first_row(x))
    return stream.reshape(x.shape), (copy if join.has_copy else stream).reshape(x.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _join(join: Join, x: Array, read: Array, product: Array, vectors: Array, seed: Array, first_row: Array) -> tuple[Array, Array]:
    stream, copy, _ = forward(join, x, product, Operands(vectors, seed, FIRST, FIRST, first_row))
    return stream, copy


def _forward(
    join: Join, x: Array, read: Array, product: Array, vectors: Array, seed: Array, first_row: Array
) -> tuple[tuple[Array, Array], tuple[Any, ...]]:
    operands = Operands(vectors, seed, FIRST, FIRST, first_row)
    stream, copy, norm = forward(join, x, product, operands)
    if join.has_copy:
        copy = checkpoint_name(copy, "normed")
    norm = SavedNorm(*(checkpoint_name(each, "normed") for each in norm))
    return (stream, copy), (read if join.weight is None else None, norm, operands)


def _backward(join: Join, saved: tuple[Any, ...], gradients: tuple[Array, Array]) -> tuple[Array | None, ...]:
    d_stream, d_copy = gradients
    d_x, d_product, sums, _ = backward(join, d_stream, d_copy if join.has_copy else None, *saved)
    return d_x, None, d_product, sums.reshape(join.num_vectors, -1, sums.shape[1]).sum(1).reshape(1, -1), None, None


_join.defvjp(_forward, _backward)
