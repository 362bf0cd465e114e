"""Decoding with the encoder-decoder: one position at a time, its keys and values cached.

B sources, K hypotheses of each, T positions that a cache has room for, S source positions.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mhsh.config.schema import ModelConfig
from mhsh.models.attention import MultiHeadAttention
from mhsh.models.layers import LayerNorm
from mhsh.models.residual import Stream
from mhsh.models.seq2seq import Seq2Seq, SharedEmbeddings
from mhsh.models.transformer import DecoderLayer
from mhsh.models.types import Batch


class KVCache(NamedTuple):
    """Keys and values of one attention, in the layouts that a CPU multiplies fastest."""

    key: Float[Array, "... N H S"]
    value: Float[Array, "... N S H"]


class EncoderMemory(NamedTuple):
    """What the decoder reads of the sources; the K hypotheses of a source share it."""

    layers: tuple[KVCache, ...]  # of the cross-attention of every decoder layer
    real: Bool[Array, "B S"]  # False at padding


def encode(model: Seq2Seq, params: Any, batch: Batch) -> EncoderMemory:
    """Encodes sources, one sentence a row.

    Args:
      batch: inputs, inputs_position and inputs_segmentation [B,S].
    """
    source = cast(Array, model.apply({"params": params}, batch, None, None, method=Seq2Seq.encode))
    layer: Any = DecoderLayer(model.config, model.residual)

    def project(params: Any) -> KVCache:
        return layer.apply({"params": params}, method=lambda layer: project_kv(layer.cross_attention, source))

    layers = jax.lax.map(project, params["decoder"]["layers"])
    return EncoderMemory(_unstack(layers, model.config.num_decoder_layers), jnp.asarray(batch["inputs_segmentation"]) > 0)


def decoding_params(config: ModelConfig, params: Any) -> Any:
    """The parameters as `decode_step` reads them, with a tree for each decoder layer.

    Unstack them once: in a scan over layers every step would copy every layer's slice.
    """
    decoder = params["decoder"]
    return params | {"decoder": decoder | {"layers": _unstack(decoder["layers"], config.num_decoder_layers)}}


def empty_caches(config: ModelConfig, batch_size: int, num_hypotheses: int, max_length: int) -> tuple[KVCache, ...]:
    """The self-attention cache of every decoder layer, with room for T = max_length positions.

    The K hypotheses of one position are adjacent: S = T*K.
    """
    rows, places = (batch_size, config.num_heads), max_length * num_hypotheses
    key = jnp.zeros((*rows, config.head_dim, places), config.compute_dtype)
    value = jnp.zeros((*rows, places, config.head_dim), config.compute_dtype)
    return (KVCache(key, value),) * config.num_decoder_layers


def extend_caches(caches: tuple[KVCache, ...], num_hypotheses: int, max_length: int) -> tuple[KVCache, ...]:
    """The same keys and values with room for T = max_length positions, at least as many as now."""
    added = (0, max_length * num_hypotheses - caches[0].key.shape[3])
    key_pads, value_pads = ((0, 0), (0, 0), (0, 0), added), ((0, 0), (0, 0), added, (0, 0))
    return tuple(KVCache(jnp.pad(key, key_pads), jnp.pad(value, value_pads)) for key, value in caches)


def decode_step(
    model: Seq2Seq,
    params: Any,
    tokens: Int[Array, "B K"],
    position: Int[Array, ""],
    ancestry_mask: Bool[Array, "B K T K"],
    caches: tuple[KVCache, ...],
    memory: EncoderMemory,
) -> tuple[Float[Array, "B K V"], tuple[KVCache, ...]]:
    """The logits that follow `tokens` at `position` (from 0), and the caches with these tokens.

    Args:
      params: from `decoding_params`.
      ancestry_mask: [b,k,t,j] is True where hypothesis k attends to what was written as hypothesis
        j at position t <= `position`. So hypotheses can be reordered while the caches stay.
    """
    embeddings: Any = SharedEmbeddings(model.config)
    table = {"params": params["embeddings"]}
    x = embeddings.apply(table, tokens, position, None, method=SharedEmbeddings.target)
    cross_mask = jnp.broadcast_to(memory.real[:, None, None, :], (len(tokens), 1, tokens.shape[1], memory.real.shape[1]))
    layer: Any = DecoderLayer(model.config, model.residual)
    stream = model.residual.start(x, jnp.ones(tokens.shape, bool))
    new_caches = []
    for layer_params, cache, source in zip(params["decoder"]["layers"], caches, memory.layers, strict=True):
        arguments = (stream, cache, source, position, ancestry_mask, cross_mask)
        stream, new_cache = layer.apply({"params": layer_params}, *arguments, method=_layer_step)
        new_caches.append(new_cache)
    x = stream.x
    if model.residual.final_norm:
        final_norm: Any = LayerNorm(model.config)
        x = final_norm.apply({"params": params["decoder"]["final_norm"]}, x)
    return embeddings.apply(table, x, method=SharedEmbeddings.logits), tuple(new_caches)


def project_kv(attention: MultiHeadAttention, source: Float[Array, "B S D"]) -> KVCache:
    """The keys and values of `source`."""
    key, value = attention.project_key(source), attention.project_value(source)
    return KVCache(jnp.einsum("BSNH->BNHS", key), jnp.einsum("BSNH->BNSH", value))


def attend_cached(
    attention: MultiHeadAttention, x: Float[Array, "B K D"], cache: KVCache, mask: Bool[Array, "B 1 K S"]
) -> Float[Array, "B K D"]:
    """Attention of `x` to cached keys and values, without dropout."""
    key, value = jnp.einsum("BNHS->BSNH", cache.key), jnp.einsum("BNSH->BSNH", cache.value)
    return attention.attend(attention.project_query(x), key, value, mask, None)


def extend_cache(attention: MultiHeadAttention, x: Float[Array, "B K D"], cache: KVCache, position: Int[Array, ""]) -> KVCache:
    """The cache with the keys and values of `x` at `position`.

    XLA writes them in place, because the cache is read only afterwards and is never reshaped.
    """
    new, place = project_kv(attention, x), position * x.shape[1]
    key = jax.lax.dynamic_update_slice_in_dim(cache.key, new.key, place, axis=3)
    return KVCache(key, jax.lax.dynamic_update_slice_in_dim(cache.value, new.value, place, axis=2))


def _layer_step(
    layer: DecoderLayer,
    stream: Stream,
    cache: KVCache,
    source: KVCache,
    position: Int[Array, ""],
    ancestry_mask: Bool[Array, "B K T K"],
    cross_mask: Bool[Array, "B 1 K S"],
) -> tuple[Stream, KVCache]:
    """As DecoderLayer.__call__, for one new position of K hypotheses instead of T positions."""
    self_mask = ancestry_mask.reshape(*ancestry_mask.shape[:2], -1)[:, None]
    new_caches = []

    def self_attention(x: Float[Array, "B K D"]) -> Float[Array, "B K D"]:
        new_caches.append(extend_cache(layer.self_attention, x, cache, position))
        return attend_cached(layer.self_attention, x, new_caches[0], self_mask)

    stream = layer.self_attention_residual(stream, self_attention)
    stream = layer.cross_attention_residual(stream, lambda x: attend_cached(layer.cross_attention, x, source, cross_mask))
    stream = layer.feed_forward_residual(stream, lambda x: layer.feed_forward(x, None))
    return stream, new_caches[0]


def _unstack(stacked: Any, num_layers: int) -> tuple[Any, ...]:
    """A pytree for each layer, of one whose leaves have the layers on axis 0."""
    return tuple(jax.tree.map(operator.itemgetter(layer), stacked) for layer in range(num_layers))
