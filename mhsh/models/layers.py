"""The parts every sublayer shares: initialisers with logical axis names, LayerNorm, dropout, and the feed-forward sublayer."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.typing import Initializer
from jaxtyping import Array, Float

from mhsh.config import ModelConfig

BERT_STDDEV = 0.02

ACTIVATIONS = {
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
}


def kernel_init(config: ModelConfig, names: Sequence[str], num_inputs: int, gain: float = 1.0) -> Initializer:
    """The initialiser of a kernel whose first `num_inputs` axes are contracted and whose others are produced.

    `bert`: normal of deviation 0.02 truncated at two deviations (Devlin et al. 2018). `xavier`: uniform in
    +-gain * sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010), as fairseq's Transformer.
    """
    if config.init == "bert":
        init = truncated_normal(BERT_STDDEV * gain)
    else:
        init = nn.initializers.variance_scaling(
            gain**2, "fan_avg", "uniform", in_axis=range(num_inputs), out_axis=range(num_inputs, len(names))
        )
    return nn.with_logical_partitioning(init, tuple(names))


def embedding_init(config: ModelConfig, names: Sequence[str]) -> Initializer:
    """Embedding tables: as the kernels for `bert`; normal of deviation D^-1/2 for `xavier`, as fairseq's."""
    if config.init == "bert":
        init = truncated_normal(BERT_STDDEV)
    else:
        init = nn.initializers.normal(config.embed_dim**-0.5)
    return nn.with_logical_partitioning(init, tuple(names))


def truncated_normal(stddev: float) -> Initializer:
    """A normal cut at two of its deviations and not rescaled afterwards: what BERT's `initializer_range` means."""
    return nn.initializers.truncated_normal(stddev, lower=-2.0, upper=2.0)


def bias_init(names: Sequence[str]) -> Initializer:
    """Zeros, with logical axis names."""
    return nn.with_logical_partitioning(nn.initializers.zeros, tuple(names))


def layer_norm(config: ModelConfig, name: str | None) -> nn.LayerNorm:
    """LayerNorm whose statistics are fp32 whatever comes in, and which returns the residual stream's dtype."""
    return nn.LayerNorm(
        epsilon=config.layer_norm_epsilon,
        dtype=jnp.dtype(config.residual_dtype),
        # The mean is subtracted before squaring: E[x^2] - E[x]^2 loses digits once omega * x dominates the sum.
        use_fast_variance=False,
        scale_init=nn.with_logical_partitioning(nn.initializers.ones, ("embed",)),
        bias_init=bias_init(("embed",)),
        name=name,
    )


class FeedForward(nn.Module):
    """Two projections, an activation and dropout between: D -> F -> D (Vaswani et al. 2017, eq. 2), then hidden dropout."""

    config: ModelConfig
    gain: float = 1.0  # DeepNorm's beta on both kernels

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], *, deterministic: bool) -> Float[Array, "B T D"]:
        config = self.config
        embed_dim, mlp_dim = config.embed_dim, config.mlp_dim
        dtype = jnp.dtype(config.compute_dtype)
        up = self.param("up_kernel", kernel_init(config, ("embed", "mlp"), 1, self.gain), (embed_dim, mlp_dim))
        up_bias = self.param("up_bias", bias_init(("mlp",)), (mlp_dim,))
        down = self.param("down_kernel", kernel_init(config, ("mlp", "embed"), 1, self.gain), (mlp_dim, embed_dim))
        down_bias = self.param("down_bias", bias_init(("embed",)), (embed_dim,))
        hidden = jnp.einsum("BTD,DF->BTF", x.astype(dtype), up.astype(dtype)) + up_bias.astype(dtype)
        hidden = ACTIVATIONS[config.activation](hidden)
        hidden = nn.Dropout(config.mlp_dropout, name="mlp_dropout")(hidden, deterministic=deterministic)
        out = jnp.einsum("BTF,FD->BTD", hidden, down.astype(dtype)) + down_bias.astype(dtype)
        return nn.Dropout(config.hidden_dropout)(out, deterministic=deterministic)
