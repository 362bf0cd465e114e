"""mHC-lite: several residual streams, mixed by doubly stochastic matrices."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from mhsh.config.entries import add_residual
from mhsh.config.schema import ModelConfig
from mhsh.models.layers import LayerNorm, normalize
from mhsh.models.residual import Residual, Stream, Weights
from mhsh.models.sublayer import Sublayer
from mhsh.models.types import Stack

# Of the authors' code (see MHCLite).
_SCALE = 0.01  # on what depends on the stream
_CHOSEN, _OTHER = 1.0, -1.0  # of the read and write weights, before their sigmoid
_NOT_IDENTITY = -8.0  # of the permutations, before their softmax; 0 for the identity


@add_residual(
    "mhc_lite",
    label="mHC-lite",
    growth="O(log n)",
    source="as Pre-LN's: the streams are mixed, and none is scaled (arXiv 2601.05732)",
)
class MHCLite(Residual):
    """H x + post f(LN(pre . x)), x of n streams; H [n,n] a convex combination of all n! permutation
    matrices, so that its rows and columns sum to 1; pre and post [n]. All three depend on the token
    (mHC-lite: Yang and Gao 2026, arXiv 2601.05732). A stack's input is every stream; their sum goes
    to a final LayerNorm.

    Numbers are those of the authors' FFTYYY/mhc-lite at ea19775, hyper_conn/mhc_lite.py, lines 261
    to 302 and 345 to 387: with a kernel of 0 the streams start almost unmixed, and a sublayer reads
    and writes one of them, drawn at random, more than the others. Their model.py normalises each
    stream before the sum (lines 227 to 229); here the sum is normalised, as in Hyper-Connections
    (Zhu et al. 2024, arXiv 2409.19606), so that logits start as large as those of other schemes.

    model.residual_streams has n.
    """

    final_norm: ClassVar[bool] = True
    decayed: ClassVar[Mapping[str, bool]] = {"norm_scale": False, "alpha": False}

    @classmethod
    def start(cls, config: ModelConfig, stack: Stack, x: Float[Array, "B T D"], real: Bool[Array, "B T"]) -> Stream:
        rows, length, width = x.shape
        return Stream(jnp.broadcast_to(x[:, :, None], (rows, length, config.residual_streams, width)), None)

    @classmethod
    def finish(cls, config: ModelConfig, stack: Stack, stream: Stream) -> Float[Array, "B T D"]:
        return stream.x.sum(axis=2)

    @classmethod
    def product_flops(cls, config: ModelConfig, stack: Stack) -> int:
        n, d = config.residual_streams, config.embed_dim
        weights = n * d * (2 * n + math.factorial(n)) + math.factorial(n) * n * n
        return 2 * stack.num_sublayers * (weights + n * d + n * n * d)  # one stream is read, all are mixed

    @nn.compact
    def __call__(self, stream: Stream, sublayer: Sublayer) -> Stream:
        x = stream.x
        read, write, mixing = (each.astype(x.dtype) for each in StreamWeights(self.config, name="weights")(x))
        branch = sublayer(LayerNorm(self.config, name="norm")(jnp.einsum("BTR,BTRD->BTD", read, x)))
        mixed = jnp.einsum("BTQR,BTRD->BTQD", mixing, x)
        return Stream(mixed + write[..., None] * branch.astype(x.dtype)[:, :, None], None)


class StreamWeights(Weights):
    """The weights with which a sublayer reads, writes and mixes the R streams of each token, from
    the RMSNorm of all of them together; fp32.
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, x: Float[Array, "B T R D"]) -> tuple[Float[Array, "B T R"], Float[Array, "B T R"], Float[Array, "B T R R"]]:
        streams, width = x.shape[2:]
        sizes = (streams, streams, math.factorial(streams))
        scale = self._param("norm_scale", nn.initializers.ones, ("streams", "embed"), (streams, width))
        kernel = self._param("mixing_kernel", nn.initializers.zeros, ("streams", "embed", "mixing"), (streams, width, sum(sizes)))
        alpha = self._param("alpha", nn.initializers.constant(_SCALE), ("mixing",), (len(sizes),))
        bias = self._param("bias", functools.partial(_mixing_bias, streams), ("mixing",), (sum(sizes),))
        normed, _ = normalize(x.astype(jnp.float32).reshape(*x.shape[:2], -1), self.config.layer_norm_epsilon, centre=False)
        parts = jnp.tensordot(normed.reshape(x.shape) * scale, kernel, 2)  # over R and D
        logits = jnp.repeat(alpha, jnp.array(sizes), total_repeat_length=sum(sizes)) * parts + bias
        read, write, weights = jnp.split(logits, [streams, 2 * streams], axis=-1)
        mixing = jnp.einsum("BTP,PQR->BTQR", jax.nn.softmax(weights, axis=-1), permutation_matrices(streams))
        return jax.nn.sigmoid(read), 2 * jax.nn.sigmoid(write), mixing

    def _param(self, name: str, init: Any, names: tuple[str, ...], shape: tuple[int, ...]) -> Array:
        return jnp.asarray(self.param(name, nn.with_logical_partitioning(init, names), shape))


def permutation_matrices(size: int) -> Float[np.ndarray, "permutations size size"]:
    """All permutations of `size` elements as matrices, the identity first."""
    return np.eye(size, dtype=np.float32)[list(itertools.permutations(range(size)))]


def _mixing_bias(streams: int, key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """An initialiser of the bias that is added to the logits."""
    weights = jnp.full(streams, _OTHER).at[jax.random.randint(key, (), 0, streams)].set(_CHOSEN)
    permutations = jnp.full(shape[0] - 2 * streams, _NOT_IDENTITY).at[0].set(0.0)
    return jnp.concatenate([weights, weights, permutations]).astype(dtype)
