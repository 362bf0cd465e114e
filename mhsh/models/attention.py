"""Multi-head attention with an explicit head width, and the masks it reads. Single-head is N = 1:
no branch anywhere.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from mhsh.config.schema import ModelConfig
from mhsh.kernels.attention import MASK_VALUE, AttentionSettings, attend
from mhsh.kernels.dropout import DropoutKey, dropout, subkeys
from mhsh.kernels.out_proj_residual_norm import JoinSettings, OutWeights, out_proj_residual_norm
from mhsh.kernels.residual_norm import Norm
from mhsh.kernels.rows import KernelTarget
from mhsh.models.layers import bias_init, kernel_init


class KVCache(NamedTuple):
    """What may be looked at, projected and kept: a matrix a head, each as the products with it read
    it fastest on a CPU.
    """

    key: Float[Array, "... N H S"]
    value: Float[Array, "... N S H"]


class MultiHeadAttention(nn.Module):
    """Sum over heads i of softmax(Q W_i^Q (K W_i^K)^T / sqrt(H)) V W_i^V W_i^O (arXiv 2106.09650,
    eq. 1), then hidden dropout.

    Every contraction carries the heads N as a batch axis, so one head costs what it computes and
    nothing else.
    """

    config: ModelConfig
    gain: float = 1.0  # DeepNorm's beta, on the value and output kernels

    def setup(self) -> None:
        config = self.config
        self.query_kernel, self.query_bias = self._projection("query", 1.0)
        self.key_kernel, self.key_bias = self._projection("key", 1.0)
        self.value_kernel, self.value_bias = self._projection("value", self.gain)
        shape = (config.num_heads, config.head_dim, config.embed_dim)
        self.out_kernel = self.param("out_kernel", kernel_init(config, ("heads", "head_dim", "embed"), 2, self.gain), shape)
        self.out_bias = self.param("out_bias", bias_init(("embed",)), (config.embed_dim,))

    def __call__(
        self, x: Float[Array, "B T D"], source: Float[Array, "B S D"], mask: Bool[Array, "B 1 T S"], dropout_key: DropoutKey
    ) -> Float[Array, "B T D"]:
        """`x` asks, `source` answers (itself, for self-attention); `mask` is True where a query may
        look.
        """
        return self._attend(x, self._key(source), self._value(source), mask, dropout_key)

    def project_kv(self, source: Float[Array, "B S D"]) -> KVCache:
        """The keys and values of `source`, for `attend_cached`."""
        return KVCache(jnp.einsum("BSNH->BNHS", self._key(source)), jnp.einsum("BSNH->BNSH", self._value(source)))

    def attend_cached(self, x: Float[Array, "B T D"], memory: KVCache, mask: Bool[Array, "B 1 T S"]) -> Float[Array, "B T D"]:
        """As `__call__` without dropout, with the `source` that `memory` was made of."""
        key, value = jnp.einsum("BNHS->BSNH", memory.key), jnp.einsum("BNSH->BSNH", memory.value)
        return self._attend(x, key, value, mask, None)

    def step(
        self, x: Float[Array, "B K D"], cache: KVCache, position: Int[Array, ""], seen: Bool[Array, "B K T K"]
    ) -> tuple[Float[Array, "B K D"], KVCache]:
        """Causal self-attention of one new position of K sequences a row, without dropout; returns
        the cache with it in.

        `cache` has room for S = T*K keys and values, those of the K sequences at one position side
        by side. `seen[b, k, t, j]` is True where sequence k may look at what sequence j wrote at
        position t: its own new ones included, as they are written before anything is read. In this
        order, and without a reshape of the cache, XLA writes in place; else it copies the whole
        cache.
        """
        new, place = self.project_kv(x), position * x.shape[1]
        key = jax.lax.dynamic_update_slice_in_dim(cache.key, new.key, place, axis=3)
        value = jax.lax.dynamic_update_slice_in_dim(cache.value, new.value, place, axis=2)
        cache = KVCache(key, value)
        return self.attend_cached(x, cache, seen.reshape(*seen.shape[:2], -1)[:, None]), cache

    def _attend(
        self,
        x: Float[Array, "B T D"],
        key: Float[Array, "B S N H"],
        value: Float[Array, "B S N H"],
        mask: Bool[Array, "B 1 T S"],
        dropout_key: DropoutKey,
    ) -> Float[Array, "B T D"]:
        config = self.config
        probabilities_key, out_key = subkeys(dropout_key, 2)
        scores = jnp.einsum("BTNH,BSNH->BNTS", self._query(x), key).astype(jnp.float32)
        probabilities = self._softmax(jnp.where(mask, scores, MASK_VALUE))
        probabilities = dropout(probabilities, config.attention_dropout, probabilities_key)
        # In this order of the factors: XLA's CPU backend takes three times as long for the other
        # where T is small.
        out = self._out(jnp.einsum("BSNH,BNTS->BTNH", value, probabilities))
        return dropout(out, config.hidden_dropout, out_key)

    def joined(
        self, x: Float[Array, "B T D"], segmentation: Int[Array, "B T"], norm: Norm, dropout_key: DropoutKey, place: KernelTarget
    ) -> Float[Array, "B T D"]:
        """Self-attention within segments and its join, LN(omega * x + f(x)), in two kernels after
        the projections.
        """
        config = self.config
        probabilities_key, out_key = subkeys(dropout_key, 2)
        attending = AttentionSettings(config.num_heads, config.objective == "clm", config.attention_dropout)
        projected = self._query(x), self._key(x), self._value(x)
        context = attend(*projected, segmentation, segmentation, probabilities_key, attending, place)
        joining = JoinSettings(config.hidden_dropout, config.layer_norm_epsilon, jnp.dtype(config.compute_dtype))
        return out_proj_residual_norm(x, context, OutWeights(self.out_kernel, self.out_bias), norm, out_key, joining, place)

    def _query(self, x: Float[Array, "B T D"]) -> Float[Array, "B T N H"]:
        return self._project(x, self.query_kernel, self.query_bias) * self.config.head_dim**-0.5

    def _key(self, x: Float[Array, "B T D"]) -> Float[Array, "B T N H"]:
        return self._project(x, self.key_kernel, self.key_bias)

    def _value(self, x: Float[Array, "B T D"]) -> Float[Array, "B T N H"]:
        return self._project(x, self.value_kernel, self.value_bias)

    def _softmax(self, scores: Float[Array, "*axes S"]) -> Float[Array, "*axes S"]:
        return jax.nn.softmax(scores, axis=-1).astype(self.config.compute_dtype)

    def _out(self, context: Float[Array, "B T N H"]) -> Float[Array, "B T D"]:
        dtype = jnp.dtype(self.config.compute_dtype)
        return jnp.einsum("BTNH,NHD->BTD", context, self.out_kernel.astype(dtype)) + self.out_bias.astype(dtype)

    def _projection(self, name: str, gain: float) -> tuple[Float[Array, "D N H"], Float[Array, "N H"]]:
        config = self.config
        shape = (config.embed_dim, config.num_heads, config.head_dim)
        kernel = self.param(f"{name}_kernel", kernel_init(config, ("embed", "heads", "head_dim"), 1, gain), shape)
        return kernel, self.param(f"{name}_bias", bias_init(("heads", "head_dim")), shape[1:])

    def _project(
        self, x: Float[Array, "B T D"], kernel: Float[Array, "D N H"], bias: Float[Array, "N H"]
    ) -> Float[Array, "B T N H"]:
        dtype = jnp.dtype(self.config.compute_dtype)
        return jnp.einsum("BTD,DNH->BTNH", x.astype(dtype), kernel.astype(dtype)) + bias.astype(dtype)


def attention_mask(segmentation: Int[Array, "B T"], *, causal: bool) -> Bool[Array, "B 1 T T"]:
    """True where query t may look at key s: same segment, not padding (segment 0), and s <= t if
    causal.
    """
    mask = cross_attention_mask(segmentation, segmentation)
    if causal:
        length = segmentation.shape[1]
        mask = mask & jnp.tril(jnp.ones((length, length), bool))[None, None]
    return mask


def cross_attention_mask(segmentation: Int[Array, "B T"], source_segmentation: Int[Array, "B S"]) -> Bool[Array, "B 1 T S"]:
    """True where query t may look at key s: same segment, not padding (segment 0)."""
    same_segment = segmentation[:, :, None] == source_segmentation[:, None, :]
    return (same_segment & (source_segmentation > 0)[:, None, :])[:, None]
