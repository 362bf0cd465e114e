"""Multi-head attention with an explicit head width, and its masks.

A single head is N = 1; no code treats it as a special case.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from mhsh.config.schema import ModelConfig
from mhsh.models.dropout import Seed, Seeds, dropout, split_seeds
from mhsh.models.kernels import attention as fused
from mhsh.models.kernels.select import takes_kernels
from mhsh.models.layers import HeadNorm, Rotation, linear, rotate
from mhsh.models.saved import mark_saved
from mhsh.models.sublayer import Branch, SublayerModule

# The most negative finite number instead of -inf: a query with no key to attend to (padding) stays
# finite.
MASK_VALUE = float(jnp.finfo(jnp.float32).min)


@struct.dataclass
class AttentionMask:
    """The keys that a query attends to: those of its segment, but not padding (segment 0), and, if
    causal, none behind it. jax also rebuilds this tree with placeholders.
    """

    segments: Int[Array, "B T"] | Any  # of the queries
    source_segments: Int[Array, "B S"] | Any  # of the keys
    dense: Bool[Array, "B 1 T S"] | Any  # True where a query attends to a key
    causal: bool = struct.field(pytree_node=False)


class MultiHeadAttention(SublayerModule):
    """sum_i softmax(Q W_i^Q (K W_i^K)^T / sqrt(H)) V W_i^V W_i^O (arXiv 2106.09650, eq. 1), then
    hidden dropout.

    Every contraction has the heads N as a batch axis, so one head costs no more than it computes.
    Keys and values may have fewer heads, G; each of them is read by N / G heads of queries (Ainslie
    et al. 2023, arXiv 2305.13245).

    With model.qk_norm the queries and keys of each head have a LayerNorm (Dehghani et al. 2023,
    arXiv 2302.05442), with `norms` (hybrid_norm) its values too.
    """

    gain: float = 1.0  # DeepNorm's beta, on the value and output kernels
    norms: bool = False

    def setup(self) -> None:
        config = self.config
        self.query_kernel, self.query_bias = linear(self, "query", config)
        self.key_kernel, self.key_bias = linear(self, "key", config)
        self.value_kernel, self.value_bias = linear(self, "value", config, self.gain)
        self.query_norm, self.key_norm = (HeadNorm(config) if config.qk_norm or self.norms else None for _ in range(2))
        self.value_norm = HeadNorm(config) if self.norms else None
        self.out_kernel, self.out_bias = linear(self, "out", config, self.gain)

    def branch(
        self,
        x: Float[Array, "B T D"],
        source: Float[Array, "B S D"] | None,
        mask: AttentionMask,
        seeds: Seeds,
        rotation: Rotation | None = None,
    ) -> Branch:
        """Queries come from `x`, keys and values from `source`, or from `x` where that is None
        (self-attention).

        `rotation` turns queries and keys of `x`.
        """
        config = self.config
        if not self.is_initializing():  # which traces rows of any length, on any device
            seed, out_seed = split_seeds(seeds, 2)
            if takes_kernels(config) and not fused.attention_obstacle(config):
                return self._out(self._attend_fused(x, source, mask, seed, rotation), out_seed)
        return self.attend(*self._project_all(x, source, rotation), mask.dense, seeds)

    def _attend_fused(
        self,
        x: Float[Array, "B T D"],
        source: Float[Array, "B S D"] | None,
        mask: AttentionMask,
        seed: Seed,
        rotation: Rotation | None,
    ) -> Float[Array, "B T N H"]:
        """The weighted values by kernels, which read the result of a joint product as it is."""
        config = self.config
        if self._projects_jointly(source) and rotation is None and self.query_norm is None:
            heads, scale = (self._project_jointly(x).reshape(*x.shape[:2], -1, config.head_dim),), config.head_dim**-0.5
        else:
            heads, scale = self._project_all(x, source, rotation), 1.0
        segments = (mask.segments, mask.source_segments)
        return fused.attention(heads, segments, seed, rate=config.attention_dropout, causal=mask.causal, scale=scale)

    def attend(
        self,
        query: Float[Array, "B T N H"],
        key: Float[Array, "B S G H"],
        value: Float[Array, "B S G H"],
        mask: Bool[Array, "B 1 T S"],
        seeds: Seeds,
    ) -> Branch:
        """The branch of queries, keys and values that are projected already, always by XLA."""
        config = self.config
        probabilities_seed, out_seed = split_seeds(seeds, 2)
        if config.num_kv_heads:
            key, value = (jnp.repeat(heads, config.num_heads // config.kv_heads, axis=2) for heads in (key, value))
        scores = jnp.einsum("BTNH,BSNH->BNTS", query, key).astype(jnp.float32)
        probabilities = self._softmax(jnp.where(mask, scores, MASK_VALUE))
        probabilities = dropout(probabilities, config.attention_dropout, probabilities_seed)
        # With the factors in the other order XLA's CPU backend takes three times as long where T is
        # small.
        context = jnp.einsum("BSNH,BNTS->BTNH", value, probabilities)
        return self._out(mark_saved(context, "context"), out_seed)

    def project_query(self, x: Float[Array, "B T D"]) -> Float[Array, "B T N H"]:
        """The queries of `x`, divided by sqrt(H)."""
        return _normalize_heads(self.query_norm, self._project(x, self.query_kernel, self.query_bias)) * self.config.head_dim**-0.5

    def project_key(self, source: Float[Array, "B S D"]) -> Float[Array, "B S G H"]:
        """The keys of `source`."""
        return _normalize_heads(self.key_norm, self._project(source, self.key_kernel, self.key_bias))

    def project_value(self, source: Float[Array, "B S D"]) -> Float[Array, "B S G H"]:
        """The values of `source`."""
        return _normalize_heads(self.value_norm, self._project(source, self.value_kernel, self.value_bias))

    def _project_all(
        self, x: Float[Array, "B T D"], source: Float[Array, "B S D"] | None, rotation: Rotation | None
    ) -> tuple[Float[Array, "B T N H"], Float[Array, "B S G H"], Float[Array, "B S G H"]]:
        """Queries of `x`, keys and values of `source` or, where that is None, of `x`; turned."""
        if not self._projects_jointly(source):
            source = x if source is None else source
            query, key, value = self.project_query(x), self.project_key(source), self.project_value(source)
        else:
            norms = (self.query_norm, self.key_norm, self.value_norm)
            parts = jnp.unstack(self._project_jointly(x), axis=2)
            query, key, value = (_normalize_heads(norm, part) for norm, part in zip(norms, parts, strict=True))
            query = query * self.config.head_dim**-0.5
        return rotate(query, rotation), rotate(key, rotation), value

    def _projects_jointly(self, source: Float[Array, "B S D"] | None) -> bool:
        """Whether one product makes queries, keys and values."""
        return source is None and projects_jointly(self.config)

    def _project_jointly(self, x: Float[Array, "B T D"]) -> Float[Array, "B T P N H"]:
        """Queries, keys and values. Their kernels are stacked along an axis of their own, P, so
        that the heads can be sharded.
        """
        dtype = jnp.dtype(self.config.compute_dtype)
        kernels = jnp.stack([self.query_kernel, self.key_kernel, self.value_kernel], axis=1).astype(dtype)
        biases = jnp.stack([self.query_bias, self.key_bias, self.value_bias]).astype(dtype)
        return mark_saved(jnp.einsum("BTD,DPNH->BTPNH", x.astype(dtype), kernels) + biases, "projected")

    def _softmax(self, scores: Float[Array, "*axes S"]) -> Float[Array, "*axes S"]:
        # mhsh/probes/coverage.py intercepts the call.
        return jax.nn.softmax(scores, axis=-1).astype(self.config.compute_dtype)

    def _out(self, context: Float[Array, "B T N H"], seed: Seed) -> Branch:
        dtype = jnp.dtype(self.config.compute_dtype)
        # In the order of the axes: einsum sums over H before N, as letters, and XLA transposes the
        # kernel for that.
        out = jnp.tensordot(context, self.out_kernel.astype(dtype), 2)
        return Branch(out, self.out_bias, seed)

    def _project(
        self, x: Float[Array, "B T D"], kernel: Float[Array, "D N H"], bias: Float[Array, "N H"]
    ) -> Float[Array, "B T N H"]:
        dtype = jnp.dtype(self.config.compute_dtype)
        projected = jnp.einsum("BTD,DNH->BTNH", x.astype(dtype), kernel.astype(dtype)) + bias.astype(dtype)
        return mark_saved(projected, "projected")


def _normalize_heads(norm: HeadNorm | None, projected: Float[Array, "B S N H"]) -> Float[Array, "B S N H"]:
    return projected if norm is None else norm(projected)


def projects_jointly(config: ModelConfig) -> bool:
    """Whether one product makes the queries, keys and values of one source: with as many heads of
    each, and where all three together are no wider than it. So the source is read once, and once
    more for the gradients of all three kernels. Wider ones cost more to stack than they save.
    """
    return config.kv_heads == config.num_heads and 3 * config.num_heads * config.head_dim <= config.embed_dim


def attention_mask(segmentation: Int[Array, "B T"], *, causal: bool) -> AttentionMask:
    """The mask of self-attention."""
    dense, length = cross_attention_mask(segmentation, segmentation).dense, segmentation.shape[1]
    if causal:
        dense = dense & jnp.tril(jnp.ones((length, length), bool))[None, None]
    return AttentionMask(segmentation, segmentation, dense, causal)


def cross_attention_mask(segmentation: Int[Array, "B T"], source_segmentation: Int[Array, "B S"]) -> AttentionMask:
    """The mask of attention to another source."""
    same_segment = segmentation[:, :, None] == source_segmentation[:, None, :]
    dense = (same_segment & (source_segmentation > 0)[:, None, :])[:, None]
    return AttentionMask(segmentation, source_segmentation, dense, False)
