"""How a branch joins the residual stream, LN(omega * x + dropout(branch)), for rows of any array: plain, and inside kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Key

from mhsh.kernels.dropout import dropout, threshold


class Norm(NamedTuple):
    """The parameters of the join, fp32: omega is ones for `post_ln`, DeepNorm's constant alpha, or Admin's."""

    omega: Float32[Array, " D"]
    scale: Float32[Array, " D"]
    bias: Float32[Array, " D"]


class Vectors(NamedTuple):
    """What a kernel reads as one array [4, D]: the join's parameters and the bias of the projection before it."""

    omega: Float32[Array, "1 D"]
    scale: Float32[Array, "1 D"]
    bias: Float32[Array, "1 D"]
    branch_bias: Float32[Array, "1 D"]


def joined_plain(
    x: Float[Array, "*rows D"],
    branch: Float[Array, "*rows D"],
    norm: Norm,
    *,
    epsilon: float,
    rate: float,
    key: Key[Array, ""] | None,
) -> Float[Array, "*rows D"]:
    """LN(omega * x + dropout(branch)) in the dtype of `x`, the statistics of LayerNorm in fp32 (two passes over a row)."""
    summed = norm.omega.astype(x.dtype) * x + dropout(branch, rate, key).astype(x.dtype)
    normed, _ = normalised(summed.astype(jnp.float32), epsilon)
    return (normed * norm.scale + norm.bias).astype(x.dtype)


def stacked(norm: Norm, branch_bias: Float32[Array, " D"]) -> Float32[Array, "4 D"]:
    """The array that `vectors_of` takes apart."""
    return jnp.stack([*norm, branch_bias])


def unstacked(vectors: Float32[Array, "4 D"]) -> tuple[Norm, Float32[Array, " D"]]:
    """The opposite of `stacked`."""
    return Norm(*vectors[:3]), vectors[3]


def vectors_of(vectors_ref: Any) -> Vectors:
    """The rows of a reference to [4, D]."""
    return Vectors(*(vectors_ref[row : row + 1, :] for row in range(4)))


def normalised(summed: Float32[Array, "*rows D"], epsilon: float) -> tuple[Float32[Array, "*rows D"], Float32[Array, "*rows 1"]]:
    """Rows of mean 0 and variance 1, and what they were multiplied by. The mean is taken off before squaring: E[x^2] - E[x]^2
    loses digits once omega * x dominates the sum.
    """
    centred = summed - jnp.mean(summed, axis=-1, keepdims=True)
    inverse = jax.lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + epsilon)
    return centred * inverse, inverse


def dropped(values: Float32[Array, "R C"], kept: Bool[Array, "R C"] | None, rate: float) -> Float32[Array, "R C"]:
    """Dropout by a mask that is already made; None keeps all."""
    return values if kept is None else jnp.where(kept, values * (2**32 / (2**32 - threshold(rate))), 0.0)


def joined(
    x: Float32[Array, "R D"],
    branch: Float32[Array, "R D"],
    vectors: Vectors,
    kept: Bool[Array, "R D"] | None,
    *,
    epsilon: float,
    rate: float,
) -> Float32[Array, "R D"]:
    """Inside a kernel: what `joined_plain` says, all in fp32; `branch` lacks its bias."""
    normed, _ = normalised(vectors.omega * x + dropped(branch + vectors.branch_bias, kept, rate), epsilon)
    return normed * vectors.scale + vectors.bias


def joined_backward(
    gradient: Float32[Array, "R D"],
    x: Float32[Array, "R D"],
    branch: Float32[Array, "R D"],
    vectors: Vectors,
    kept: Bool[Array, "R D"] | None,
    *,
    epsilon: float,
    rate: float,
) -> tuple[Float32[Array, "R D"], Float32[Array, "R D"], Float32[Array, "4 D"]]:
    """Inside a kernel: the gradients of `joined` by `x` (past the branch), `branch` and the vectors, the last summed over rows."""
    normed, inverse = normalised(vectors.omega * x + dropped(branch + vectors.branch_bias, kept, rate), epsilon)
    by_normed = gradient * vectors.scale
    along = jnp.mean(by_normed * normed, axis=-1, keepdims=True)
    by_sum = inverse * (by_normed - jnp.mean(by_normed, axis=-1, keepdims=True) - normed * along)
    by_branch = dropped(by_sum, kept, rate)
    rows = (by_sum * x, gradient * normed, gradient, by_branch)
    by_vectors = jnp.concatenate([jnp.sum(each, axis=0, keepdims=True) for each in rows])
    return vectors.omega * by_sum, by_branch, by_vectors
