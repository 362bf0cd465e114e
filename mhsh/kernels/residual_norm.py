"""How a branch joins the residual stream, LN(omega * x + dropout(branch)), for rows of any array:
plain, and inside kernels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Key

from mhsh.kernels.dropout import dropout, threshold


class Norm(NamedTuple):
    """The parameters of the join, fp32: omega is ones for `post_ln`, DeepNorm's constant alpha, or
    Admin's.
    """

    omega: Float32[Array, " D"]
    scale: Float32[Array, " D"]
    bias: Float32[Array, " D"]


class Vectors(NamedTuple):
    """What a kernel reads as one array [4, D]: the join's parameters and the bias of the projection
    before it.
    """

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
    """LN(omega * x + dropout(branch)) in the dtype of `x`, the statistics of LayerNorm in fp32 (two
    passes over a row).
    """
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
    """Rows of mean 0 and variance 1, and what they were multiplied by. The mean is taken off before
    squaring: E[x^2] - E[x]^2 loses digits once omega * x dominates the sum.
    """
    centred = summed - jnp.mean(summed, axis=-1, keepdims=True)
    inverse = jax.lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + epsilon)
    return centred * inverse, inverse


def dropped(values: Float32[Array, "R C"], kept: Bool[Array, "R C"] | None, rate: float) -> Float32[Array, "R C"]:
    """Dropout by a mask that is already made; None keeps all."""
    return values if kept is None else jnp.where(kept, values * (2**32 / (2**32 - threshold(rate))), 0.0)


def summed(
    x: Float32[Array, "R C"], branch: Float32[Array, "R C"], vectors: Vectors, kept: Bool[Array, "R C"] | None, rate: float
) -> Float32[Array, "R C"]:
    """Inside a kernel: omega * x + dropout(branch), for any columns of the rows; `branch` lacks its
    bias.
    """
    return vectors.omega * x + dropped(branch + vectors.branch_bias, kept, rate)


def gradients_by(
    gradient: Float32[Array, "R C"],
    x: Float32[Array, "R C"],
    normed: Float32[Array, "R C"],
    by_summed: Float32[Array, "R C"],
    vectors: Vectors,
    kept: Bool[Array, "R C"] | None,
    rate: float,
) -> tuple[Float32[Array, "R C"], Float32[Array, "R C"], tuple[Float32[Array, "R C"], ...]]:
    """Inside a kernel: of the gradient by `summed`, those by `x` (past the branch) and `branch`,
    and by the vectors, row by row.
    """
    by_branch = dropped(by_summed, kept, rate)
    return vectors.omega * by_summed, by_branch, (by_summed * x, gradient * normed, gradient, by_branch)


def through_norm(
    by_normed: Float32[Array, "R C"],
    normed: Float32[Array, "R C"],
    inverse: Float32[Array, "R 1"],
    mean: Float32[Array, "R 1"],
    along: Float32[Array, "R 1"],
) -> Float32[Array, "R C"]:
    """The gradient by what LayerNorm was given: `mean` is that of a row of `by_normed`, `along`
    that of `by_normed * normed`.
    """
    return inverse * (by_normed - mean - normed * along)


def joined(
    x: Float32[Array, "R D"],
    branch: Float32[Array, "R D"],
    vectors: Vectors,
    kept: Bool[Array, "R D"] | None,
    *,
    epsilon: float,
    rate: float,
) -> Float32[Array, "R D"]:
    """Inside a kernel that has whole rows: what `joined_plain` says, all in fp32; `branch` lacks
    its bias.
    """
    normed, _ = normalised(summed(x, branch, vectors, kept, rate), epsilon)
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
    """Inside a kernel that has whole rows: the gradients of `joined` by `x` (past the branch),
    `branch` and the vectors, the last summed over rows.
    """
    normed, inverse = normalised(summed(x, branch, vectors, kept, rate), epsilon)
    by_normed = gradient * vectors.scale
    mean, along = (jnp.mean(each, axis=-1, keepdims=True) for each in (by_normed, by_normed * normed))
    by_summed = through_norm(by_normed, normed, inverse, mean, along)
    past, by_branch, rows = gradients_by(gradient, x, normed, by_summed, vectors, kept, rate)
    return past, by_branch, jnp.concatenate([jnp.sum(each, axis=0, keepdims=True) for each in rows])
