"""Text from a causal language model: one pass over the prompts, then one token at a time, with the
keys and values of all tokens before it cached.

B prompts, S places in a cache. Prompts are padded on the right to T tokens; what follows them has
the places after the padding, which nothing attends to.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mhsh.config.schema import ModelConfig
from mhsh.models.bert import Bert, Embeddings, PredictionHead
from mhsh.models.decoding import KVCache, attend_cached, extend_cache
from mhsh.models.layers import LayerNorm
from mhsh.models.residual import Stream
from mhsh.models.transformer import EncoderLayer
from mhsh.models.types import Batch


class Sampling(NamedTuple):
    """How the next token is drawn."""

    temperature: Float[Array, ""]  # 0: the likeliest token
    key: Array
    allowed: Bool[Array, " V"]  # the tokens that may be drawn, the end mark among them


class Continued(NamedTuple):
    """What follows each prompt: the first `lengths` of `tokens`. The end mark is not counted."""

    tokens: Int[Array, "B room"]
    lengths: Int[Array, " B"]


def generate(
    model: Bert, params: Any, batch: Batch, sampling: Sampling, *, room: int, end: int | None, top_k: int = 0
) -> Continued:
    """The tokens after each prompt, until the token `end` is drawn or the limit is reached.

    Args:
      batch: prompts `inputs` [B,T] and, all [B], `lengths`, the tokens of each, 1 to T; `limits`,
        the most tokens to write, no more than the model has positions for; `row`, the numbers that
        the draws of a prompt depend on.
      room: the largest limit that there can be.
      top_k: draw from the so many likeliest tokens (0: from all).
    """
    prompts, lengths, limits = (jnp.asarray(batch[name]) for name in ("inputs", "lengths", "limits"))
    rows, length = prompts.shape
    places = jnp.arange(length + room)
    caches = empty_caches(model.config, rows, length + room)
    positions = jnp.broadcast_to(jnp.arange(length), (rows, length))
    causal = jnp.broadcast_to(places <= jnp.arange(length)[:, None], (rows, length, length + room))
    hidden, caches = advance(model, params, prompts, positions, jnp.int32(0), causal, caches)
    last = jnp.take_along_axis(hidden, (lengths - 1)[:, None, None], axis=1)
    keys = jax.vmap(functools.partial(jax.random.fold_in, sampling.key))(jnp.asarray(batch["row"]))

    def write(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        step, logits, caches, written, counts, is_open = carry
        step_keys = jax.vmap(lambda key: jax.random.fold_in(key, step))(keys)
        token = _draw(logits[:, 0], sampling, step_keys, top_k)
        if end is not None:
            is_open &= token != end
        written = jax.lax.dynamic_update_slice_in_dim(written, jnp.where(is_open, token, 0)[:, None], step, axis=1)
        counts += is_open
        mask = (places < lengths[:, None]) | ((places >= length) & (places <= length + step))
        hidden, caches = advance(model, params, token[:, None], (lengths + step)[:, None], length + step, mask[:, None], caches)
        return step + 1, next_logits(model, params, hidden), caches, written, counts, is_open & (counts < limits)

    nothing = jnp.zeros((rows, room), jnp.int32), jnp.zeros(rows, jnp.int32), limits > 0
    start = (jnp.int32(0), next_logits(model, params, last), caches, *nothing)
    _, _, _, written, counts, _ = jax.lax.while_loop(lambda carry: carry[-1].any(), write, start)
    return Continued(written, counts)


def _draw(logits: Float[Array, "B V"], sampling: Sampling, keys: Array, top_k: int) -> Int[Array, " B"]:
    """A token for each row, by the key of the row."""
    logits = jnp.where(sampling.allowed, logits, -jnp.inf)
    if top_k:
        logits = jnp.where(logits >= jax.lax.top_k(logits, top_k)[0][:, -1:], logits, -jnp.inf)
    is_drawn = sampling.temperature > 0
    drawn = jax.vmap(jax.random.categorical)(keys, logits / jnp.where(is_drawn, sampling.temperature, 1.0))
    return jnp.where(is_drawn, drawn, jnp.argmax(logits, axis=-1)).astype(jnp.int32)


def empty_caches(config: ModelConfig, rows: int, size: int) -> KVCache:
    """The caches of all layers, stacked on axis 0, with S = `size` places."""
    shape = (config.num_layers, rows, config.num_heads)
    key = jnp.zeros((*shape, config.head_dim, size), config.compute_dtype)
    return KVCache(key, jnp.zeros((*shape, size, config.head_dim), config.compute_dtype))


def advance(
    model: Bert,
    params: Any,
    tokens: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    place: Int[Array, ""],
    mask: Bool[Array, "B T S"],
    caches: KVCache,
) -> tuple[Float[Array, "B T D"], KVCache]:
    """The hidden states of T tokens, and the caches with their keys and values from `place` on.

    Args:
      positions: in the text, from 0, for the position embeddings.
      mask: True where a token attends to a place of the cache, its own among them.
    """
    batch = {"inputs": tokens, "inputs_position": positions, "token_types": jnp.zeros_like(tokens)}
    embeddings: Any = Embeddings(model.config)
    x = embeddings.apply({"params": params["embeddings"]}, batch, None)
    layer: Any = EncoderLayer(model.config, model.residual)

    def through(stream: Stream, of_layer: tuple[Any, KVCache]) -> tuple[Stream, KVCache]:
        layer_params, cache = of_layer
        return layer.apply({"params": layer_params}, stream, cache, place, mask[:, None], method=_layer_step)

    # One scan, for all depths: a program for each layer wrote 24 layers of width 1,024 1.2 times as
    # fast on a CPU, compiled in 20 s instead of 2; for 384 layers it took 190 s, and was slower.
    start = model.residual.start(x, jnp.ones(tokens.shape, bool))
    stream, caches = jax.lax.scan(through, start, (params["encoder"]["layers"], caches))
    if not model.residual.final_norm:
        return stream.x, caches
    final_norm: Any = LayerNorm(model.config)
    return final_norm.apply({"params": params["encoder"]["final_norm"]}, stream.x), caches


def next_logits(model: Bert, params: Any, hidden: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
    """The logits of the token that follows each."""
    head: Any = PredictionHead(model.config)
    return head.apply({"params": params["prediction"]}, hidden, params["embeddings"]["token"])


def _layer_step(
    layer: EncoderLayer, stream: Stream, cache: KVCache, place: Int[Array, ""], mask: Bool[Array, "B 1 T S"]
) -> tuple[Stream, KVCache]:
    """As EncoderLayer.__call__, with the keys and values of earlier tokens cached."""
    caches = []

    def attention(x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        caches.append(extend_cache(layer.attention, x, cache, place))
        return attend_cached(layer.attention, x, caches[0], mask)

    stream = layer.attention_residual(stream, attention)
    stream = layer.feed_forward_residual(stream, lambda x: layer.feed_forward(x, None))
    return stream, caches[0]
