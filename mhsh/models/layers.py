"""The parts every sublayer shares: initialisers with logical axis names, LayerNorm, dropout, and
the feed-forward sublayer.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Initializer
from jaxtyping import Array, Float

from mhsh.config.schema import ModelConfig
from mhsh.kernels.activations import ACTIVATIONS
from mhsh.kernels.dropout import DropoutKey, dropout, subkeys
from mhsh.kernels.feed_forward import FeedForwardSettings, FeedForwardWeights, feed_forward
from mhsh.kernels.residual_norm import Norm, normalised
from mhsh.kernels.rows import KernelTarget

BERT_STDDEV = 0.02


def kernel_init(config: ModelConfig, names: Sequence[str], num_inputs: int, gain: float = 1.0) -> Initializer:
    """The initialiser of a kernel whose first `num_inputs` axes are contracted and whose others are
    produced.

    `bert`: normal of deviation 0.02 truncated at two deviations (Devlin et al. 2018). `xavier`:
    uniform in +-gain * sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010), as fairseq's
    Transformer.
    """
    if config.init == "bert":
        init = truncated_normal(BERT_STDDEV * gain)
    else:
        init = nn.initializers.variance_scaling(
            gain**2, "fan_avg", "uniform", in_axis=range(num_inputs), out_axis=range(num_inputs, len(names))
        )
    return nn.with_logical_partitioning(init, tuple(names))


def embedding_init(config: ModelConfig, names: Sequence[str]) -> Initializer:
    """Embedding tables: as the kernels for `bert`; normal of deviation D^-1/2 for `xavier`, as
    fairseq's.
    """
    if config.init == "bert":
        init = truncated_normal(BERT_STDDEV)
    else:
        init = nn.initializers.normal(config.embed_dim**-0.5)
    return nn.with_logical_partitioning(init, tuple(names))


def truncated_normal(stddev: float) -> Initializer:
    """A normal cut at two of its deviations and not rescaled afterwards: what BERT's
    `initializer_range` means.
    """
    return nn.initializers.truncated_normal(stddev, lower=-2.0, upper=2.0)


def bias_init(names: Sequence[str]) -> Initializer:
    """Zeros, with logical axis names."""
    return nn.with_logical_partitioning(nn.initializers.zeros, tuple(names))


class LayerNorm(nn.Module):
    """LayerNorm (Ba et al. 2016) whose statistics are fp32 whatever comes in, and which returns the
    residual stream's dtype.
    """

    config: ModelConfig

    def setup(self) -> None:
        width = (self.config.embed_dim,)
        self.scale = jnp.asarray(self.param("scale", nn.with_logical_partitioning(nn.initializers.ones, ("embed",)), width))
        self.bias = self.param("bias", bias_init(("embed",)), width)

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        normed = _normalised(x.astype(jnp.float32), self.config.layer_norm_epsilon)
        return (normed * self.scale + self.bias).astype(self.config.residual_dtype)

    def with_omega(self, omega: Float[Array, " D"] | float) -> Norm:
        """The parameters of LN(omega * x + f(x)), as the fused kernels take them."""
        return Norm(jnp.broadcast_to(jnp.asarray(omega, jnp.float32), self.scale.shape), self.scale, self.bias)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _normalised(x: Float[Array, "*rows D"], epsilon: float) -> Float[Array, "*rows D"]:
    """Each row minus its mean, over its deviation. The backward pass is written out: of what JAX
    would derive from the forward pass a CPU keeps and reads three arrays where one does.
    """
    return _normalised_forward(x, epsilon)[0]


def _normalised_forward(x: Array, epsilon: float) -> tuple[Array, tuple[Array, Array]]:
    normed, inverse = normalised(x, epsilon)
    return normed, (normed, inverse)


def _normalised_backward(epsilon: float, saved: tuple[Array, Array], gradient: Array) -> tuple[Array]:
    del epsilon
    normed, inverse = saved
    along = jnp.mean(gradient * normed, axis=-1, keepdims=True)
    return (inverse * (gradient - jnp.mean(gradient, axis=-1, keepdims=True) - normed * along),)


_normalised.defvjp(_normalised_forward, _normalised_backward)


class FeedForward(nn.Module):
    """Two projections, an activation and dropout between: D -> F -> D (Vaswani et al. 2017, eq. 2),
    then hidden dropout.
    """

    config: ModelConfig
    gain: float = 1.0  # DeepNorm's beta on both kernels

    def setup(self) -> None:
        config = self.config
        width, hidden = config.embed_dim, config.mlp_dim
        self.up_kernel = self.param("up_kernel", kernel_init(config, ("embed", "mlp"), 1, self.gain), (width, hidden))
        self.up_bias = self.param("up_bias", bias_init(("mlp",)), (hidden,))
        self.down_kernel = self.param("down_kernel", kernel_init(config, ("mlp", "embed"), 1, self.gain), (hidden, width))
        self.down_bias = self.param("down_bias", bias_init(("embed",)), (width,))

    def __call__(self, x: Float[Array, "B T D"], dropout_key: DropoutKey) -> Float[Array, "B T D"]:
        config = self.config
        hidden_key, out_key = subkeys(dropout_key, 2)
        dtype = jnp.dtype(config.compute_dtype)
        up, up_bias, down, down_bias = (each.astype(dtype) for each in self._weights())
        hidden = ACTIVATIONS[config.activation](jnp.einsum("BTD,DF->BTF", x.astype(dtype), up) + up_bias)
        hidden = dropout(hidden, config.mlp_dropout, hidden_key)
        return dropout(jnp.einsum("BTF,FD->BTD", hidden, down) + down_bias, config.hidden_dropout, out_key)

    def joined(self, x: Float[Array, "B T D"], norm: Norm, dropout_key: DropoutKey, place: KernelTarget) -> Float[Array, "B T D"]:
        """The sublayer and its join, LN(omega * x + f(x)), in one kernel."""
        config = self.config
        _, out_key = subkeys(dropout_key, 2)
        dtype = jnp.dtype(config.compute_dtype)
        settings = FeedForwardSettings(config.activation, config.hidden_dropout, config.layer_norm_epsilon, dtype)
        return feed_forward(x, self._weights(), norm, out_key, settings, place)

    def _weights(self) -> FeedForwardWeights:
        return FeedForwardWeights(self.up_kernel, self.up_bias, self.down_kernel, self.down_bias)
