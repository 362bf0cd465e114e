"""What a compiled kernel is made for, and the parameters that it takes: the same for every
platform.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float32

# The most negative finite number instead of -inf: a row that may look nowhere (padding) stays
# finite.
MASK_VALUE = float(jnp.finfo(jnp.float32).min)


class FeedForwardWeights(NamedTuple):
    """Two projections, D -> F -> D, fp32."""

    up_kernel: Float32[Array, "D F"]
    up_bias: Float32[Array, " F"]
    down_kernel: Float32[Array, "F D"]
    down_bias: Float32[Array, " D"]


@dataclasses.dataclass(frozen=True)
class FeedForwardSettings:
    """What a compiled sublayer is made for."""

    activation: str
    rate: float  # of the dropout before the sum
    epsilon: float  # of LayerNorm
    dtype: Any  # of the products' factors; sums are fp32


class OutWeights(NamedTuple):
    """The output projection, fp32."""

    out_kernel: Float32[Array, "N H D"]
    out_bias: Float32[Array, " D"]


@dataclasses.dataclass(frozen=True)
class JoinSettings:
    """What a compiled join is made for."""

    rate: float  # of the dropout before the sum
    epsilon: float  # of LayerNorm
    dtype: Any  # of the product's factors, that of `context`; sums are fp32


@dataclasses.dataclass(frozen=True)
class AttentionSettings:
    """What a compiled attention is made for."""

    num_heads: int
    causal: bool  # a query looks at no later key
    rate: float  # of the dropout on probabilities
