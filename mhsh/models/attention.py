"""Multi-head attention with an explicit head width, and the masks it reads. Single-head is N = 1: no branch anywhere."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from mhsh.config import ModelConfig
from mhsh.models.layers import bias_init, kernel_init


class MultiHeadAttention(nn.Module):
    """Sum over heads i of softmax(Q W_i^Q (K W_i^K)^T / sqrt(H)) V W_i^V W_i^O (arXiv 2106.09650, eq. 1), then hidden dropout.

    Every contraction carries the heads N as a batch axis, so one head costs what it computes and nothing else.
    """

    config: ModelConfig
    gain: float = 1.0  # DeepNorm's beta, on the value and output kernels

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], source: Float[Array, "B S D"], mask: Bool[Array, "B 1 T S"], *, deterministic: bool
    ) -> Float[Array, "B T D"]:
        """`x` asks, `source` answers (itself, for self-attention); `mask` is True where a query may look."""
        config = self.config
        dtype = jnp.dtype(config.compute_dtype)
        query = self._project("query", x, 1.0)
        key = self._project("key", source, 1.0)
        value = self._project("value", source, self.gain)
        scores = jnp.einsum("BTNH,BSNH->BNTS", query * config.head_dim**-0.5, key).astype(jnp.float32)
        # The most negative finite number instead of -inf: a row that may look nowhere (padding) stays finite.
        scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
        probabilities = jax.nn.softmax(scores, axis=-1).astype(dtype)
        probabilities = nn.Dropout(config.attention_dropout)(probabilities, deterministic=deterministic)
        context = jnp.einsum("BNTS,BSNH->BTNH", probabilities, value)
        shape = (config.num_heads, config.head_dim, config.embed_dim)
        out_kernel = self.param("out_kernel", kernel_init(config, ("heads", "head_dim", "embed"), 2, self.gain), shape)
        out_bias = self.param("out_bias", bias_init(("embed",)), (config.embed_dim,))
        out = jnp.einsum("BTNH,NHD->BTD", context, out_kernel.astype(dtype)) + out_bias.astype(dtype)
        return nn.Dropout(config.hidden_dropout)(out, deterministic=deterministic)

    def _project(self, name: str, x: Float[Array, "B T D"], gain: float) -> Float[Array, "B T N H"]:
        config = self.config
        dtype = jnp.dtype(config.compute_dtype)
        shape = (config.embed_dim, config.num_heads, config.head_dim)
        kernel = self.param(f"{name}_kernel", kernel_init(config, ("embed", "heads", "head_dim"), 1, gain), shape)
        bias = self.param(f"{name}_bias", bias_init(("heads", "head_dim")), shape[1:])
        return jnp.einsum("BTD,DNH->BTNH", x.astype(dtype), kernel.astype(dtype)) + bias.astype(dtype)


def attention_mask(segmentation: Int[Array, "B T"], *, causal: bool) -> Bool[Array, "B 1 T T"]:
    """True where query t may look at key s: same segment, not padding (segment 0), and s <= t if causal."""
    same_segment = segmentation[:, :, None] == segmentation[:, None, :]
    mask = same_segment & (segmentation > 0)[:, None, :]
    if causal:
        length = segmentation.shape[1]
        mask = mask & jnp.tril(jnp.ones((length, length), bool))[None]
    return mask[:, None]
