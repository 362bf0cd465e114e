"""LN(omega * x + dropout(branch)), forward and backward, inside kernels that have whole rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32

from mhsh.kernels.dropout import threshold


class NormParams(NamedTuple):
    """The parameters of LN(omega * x + f(x)), fp32.

    omega is ones for `post_ln`, DeepNorm's constant alpha, or Admin's.
    """

    omega: Float32[Array, " D"]
    scale: Float32[Array, " D"]
    bias: Float32[Array, " D"]


class Vectors(NamedTuple):
    """What a kernel reads as one array [4,D]: NormParams, and the bias of the projection before."""

    omega: Float32[Array, "1 D"]
    scale: Float32[Array, "1 D"]
    bias: Float32[Array, "1 D"]
    branch_bias: Float32[Array, "1 D"]


def stack_vectors(norm: NormParams, branch_bias: Float32[Array, " D"]) -> Float32[Array, "4 D"]:
    """The array that `read_vectors` reads."""
    return jnp.stack([*norm, branch_bias])


def unstack_vectors(vectors: Float32[Array, "4 D"]) -> tuple[NormParams, Float32[Array, " D"]]:
    """The inverse of `stack_vectors`."""
    return NormParams(*vectors[:3]), vectors[3]


def read_vectors(vectors_ref: Any) -> Vectors:
    """The rows of a reference to [4,D]."""
    return Vectors(*(vectors_ref[row : row + 1, :] for row in range(4)))


def normalize(x: Float32[Array, "*rows D"], epsilon: float) -> tuple[Float32[Array, "*rows D"], Float32[Array, "*rows 1"]]:
    """Rows of mean 0 and variance 1, and the factor of each row.

    The mean is subtracted before squaring: E[x^2] - E[x]^2 loses digits once omega * x dominates
    the sum.
    """
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    inverse = jax.lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + epsilon)
    return centred * inverse, inverse


def apply_dropout(values: Float32[Array, "R C"], keep_mask: Bool[Array, "R C"] | None, rate: float) -> Float32[Array, "R C"]:
    """Dropout by a given mask; None keeps all."""
    return values if keep_mask is None else jnp.where(keep_mask, values * (2**32 / (2**32 - threshold(rate))), 0.0)


def residual_norm(
    x: Float32[Array, "R D"],
    branch: Float32[Array, "R D"],
    vectors: Vectors,
    keep_mask: Bool[Array, "R D"] | None,
    *,
    epsilon: float,
    rate: float,
) -> Float32[Array, "R D"]:
    """LN(omega * x + dropout(branch)), all in fp32; `branch` lacks its bias."""
    normed, _ = normalize(_residual_sum(x, branch, vectors, keep_mask, rate), epsilon)
    return normed * vectors.scale + vectors.bias


def residual_norm_backward(
    dy: Float32[Array, "R D"],
    x: Float32[Array, "R D"],
    branch: Float32[Array, "R D"],
    vectors: Vectors,
    keep_mask: Bool[Array, "R D"] | None,
    *,
    epsilon: float,
    rate: float,
) -> tuple[Float32[Array, "R D"], Float32[Array, "R D"], Float32[Array, "4 D"]]:
    """The gradients of `residual_norm`: dx_skip, dbranch and dvectors.

    dx_skip is the gradient of `x` along the skip connection alone; dvectors is summed over rows.
    """
    normed, inverse = normalize(_residual_sum(x, branch, vectors, keep_mask, rate), epsilon)
    dnormed = dy * vectors.scale
    mean, projection = (jnp.mean(each, axis=-1, keepdims=True) for each in (dnormed, dnormed * normed))
    dsum = inverse * (dnormed - mean - normed * projection)
    dbranch = apply_dropout(dsum, keep_mask, rate)
    dvectors = [jnp.sum(each, axis=0, keepdims=True) for each in (dsum * x, dy * normed, dy, dbranch)]
    return vectors.omega * dsum, dbranch, jnp.concatenate(dvectors)


def _residual_sum(
    x: Float32[Array, "R D"], branch: Float32[Array, "R D"], vectors: Vectors, keep_mask: Bool[Array, "R D"] | None, rate: float
) -> Float32[Array, "R D"]:
    return vectors.omega * x + apply_dropout(branch + vectors.branch_bias, keep_mask, rate)
