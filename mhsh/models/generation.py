"""One token at a time, with the keys and values of earlier tokens cached: translations by the
encoder-decoder (beam search is in mhsh/evaluation), and text by a causal language model.

B rows, K hypotheses of a source, S places in a cache.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from mhsh.config.schema import ModelConfig
from mhsh.models.attention import MultiHeadAttention
from mhsh.models.bert import Bert, Embeddings, PredictionHead
from mhsh.models.devices import current_platform
from mhsh.models.layers import Rotation, rotate, rotation
from mhsh.models.residual import Residual, Stream
from mhsh.models.seq2seq import Seq2Seq, SharedEmbeddings
from mhsh.models.transformer import Layer, end_of_stack
from mhsh.models.types import SUBLAYERS, Batch, Stack, decoder_stack, encoder_stack

# In a scan over layers a CPU copies the weights of each layer before it multiplies by them. Where
# that copy does not stay in its cache, a program for each layer is faster, though slower to compile
# (docs/performance.md).
_CACHE_BYTES = 8 * 10**6
_MOST_PROGRAMS = 48


class KVCache(NamedTuple):
    """Keys (rotated, if positions are rotary) and values of one attention, of the G heads of each
    row, in the layouts that a CPU multiplies fastest.

    Rows and heads are one axis. With two XLA would write each token twice: into the cache, and into
    a copy of it in which they are one.
    """

    key: Float[Array, "... BG H S"]
    value: Float[Array, "... BG S H"]


def empty_cache(config: ModelConfig, rows: int, places: int, *layers: int) -> KVCache:
    """A cache with S = `places` of one layer; of several, stacked on axis 0, with their number."""
    shape = (*layers, rows * config.kv_heads)
    key = jnp.zeros((*shape, config.head_dim, places), config.compute_dtype)
    return KVCache(key, jnp.zeros((*shape, places, config.head_dim), config.compute_dtype))


def _project_cache(attention: MultiHeadAttention, source: Float[Array, "B S D"], turns: Rotation | None = None) -> KVCache:
    """The keys and values of `source`."""
    key, value = rotate(attention.project_key(source), turns), attention.project_value(source)
    rows, places, heads, width = key.shape
    key, value = jnp.einsum("BSGH->BGHS", key), jnp.einsum("BSGH->BGSH", value)
    return KVCache(key.reshape(rows * heads, width, places), value.reshape(rows * heads, places, width))


def _attend(
    attention: MultiHeadAttention,
    x: Float[Array, "B T D"],
    cache: KVCache,
    mask: Bool[Array, "B 1 T S"],
    turns: Rotation | None = None,
) -> Float[Array, "B T D"]:
    """Attention of `x` to cached keys and values, without dropout."""
    key, value = (one.reshape(len(x), -1, *one.shape[1:]) for one in cache)
    key, value = jnp.einsum("BGHS->BSGH", key), jnp.einsum("BGSH->BSGH", value)
    return attention.attend(rotate(attention.project_query(x), turns), key, value, mask, None).output(0.0)


def _cached_layer(
    layer: Layer,
    stream: Stream,
    cache: KVCache,
    place: Int[Array, ""],
    mask: Bool[Array, "B 1 T S"],
    turns: Rotation | None = None,
    source: KVCache | None = None,
    source_mask: Bool[Array, "B 1 T source"] | None = None,
) -> tuple[Stream, KVCache]:
    """`Layer.__call__` with the keys and values of earlier tokens cached, and those of the source;
    and the cache with those of these tokens from `place` on.

    XLA writes them in place, because the cache is read only afterwards and is never reshaped.
    """
    extended = cache

    def run(name: str, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        nonlocal extended
        module = getattr(layer, name)
        if name == "feed_forward":
            return module(x, None)
        if name == "cross_attention":
            assert source is not None and source_mask is not None, "only a decoder has it"
            return _attend(module, x, source, source_mask)
        new = _project_cache(module, x, turns)
        key = jax.lax.dynamic_update_slice_in_dim(cache.key, new.key, place, axis=2)
        extended = KVCache(key, jax.lax.dynamic_update_slice_in_dim(cache.value, new.value, place, axis=1))
        return _attend(module, x, extended, mask, turns)

    for name in SUBLAYERS[layer.stack.name]:
        stream = getattr(layer, f"{name}_residual")(stream, functools.partial(run, name))
    return stream, extended


class _End(nn.Module):
    """The end of a stack, with the parameters of that stack."""

    config: ModelConfig
    residual: type[Residual]
    stack: Stack

    @nn.compact
    def __call__(self, stream: Stream) -> Float[Array, "B T D"]:
        return end_of_stack(self.residual, self.config, self.stack, stream)


class EncoderMemory(NamedTuple):
    """The encoded sources as the decoder reads them; the K hypotheses of a source share it."""

    layers: tuple[KVCache, ...]  # of the cross-attention of every decoder layer
    real: Bool[Array, "B S"]  # False at padding


def encode(model: Seq2Seq, params: Any, batch: Batch) -> EncoderMemory:
    """Encodes sources, one sentence a row: a `batch` of inputs, inputs_position and
    inputs_segmentation [B,S].
    """
    source = cast(Array, model.apply({"params": params}, batch, None, None, method=Seq2Seq.encode))
    layer: Any = Layer(model.config, model.residual, decoder_stack(model.config))

    def project(params: Any) -> KVCache:
        return layer.apply({"params": params}, method=lambda layer: _project_cache(layer.cross_attention, source))

    layers = jax.lax.map(project, params["decoder"]["layers"])
    return EncoderMemory(_unstack(layers, model.config.num_decoder_layers), jnp.asarray(batch["inputs_segmentation"]) > 0)


def decoding_params(config: ModelConfig, params: Any) -> Any:
    """The parameters as `decode_step` and an unrolled `advance` read them, with a tree for each
    layer of the last stack.

    Unstack them once: in a scan over layers every step would copy every layer's slice.
    """
    name, layers = ("decoder", config.num_decoder_layers) if "decoder" in params else ("encoder", config.num_layers)
    return params | {name: params[name] | {"layers": _unstack(params[name]["layers"], layers)}}


def extend_caches(caches: tuple[KVCache, ...], num_hypotheses: int, max_length: int) -> tuple[KVCache, ...]:
    """The caches with room for T = max_length positions, which are no fewer than they have now."""
    added = (0, max_length * num_hypotheses - caches[0].key.shape[2])
    key_pads, value_pads = ((0, 0), (0, 0), added), ((0, 0), added, (0, 0))
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
    rows, beam = tokens.shape
    source_mask = jnp.broadcast_to(memory.real[:, None, None, :], (rows, 1, beam, memory.real.shape[1]))
    mask = ancestry_mask.reshape(rows, beam, -1)[:, None]
    stack = decoder_stack(model.config)
    layer: Any = Layer(model.config, model.residual, stack)
    stream = model.residual.start(model.config, stack, x, jnp.ones(tokens.shape, bool))
    new_caches = []
    layers = [*zip(params["decoder"]["layers"], memory.layers, strict=True)] * model.config.loops
    for (layer_params, source), cache in zip(layers, caches, strict=True):
        arguments = (stream, cache, position * beam, mask, None, source, source_mask)
        stream, new_cache = layer.apply({"params": layer_params}, *arguments, method=_cached_layer)
        new_caches.append(new_cache)
    end: Any = _End(model.config, model.residual, stack)
    x = end.apply({"params": params["decoder"]}, stream)
    return embeddings.apply(table, x, method=SharedEmbeddings.logits), tuple(new_caches)


def _unstack(stacked: Any, num_layers: int) -> tuple[Any, ...]:
    """A pytree for each layer, of one whose leaves have the layers on axis 0."""
    return tuple(jax.tree.map(operator.itemgetter(layer), stacked) for layer in range(num_layers))


class Sampling(NamedTuple):
    """The rule by which the next token is drawn."""

    temperature: Float[Array, ""]  # 0: the likeliest token
    key: Array
    allowed: Bool[Array, " V"]  # the tokens that may be drawn, the end mark among them


class Continuation(NamedTuple):
    """The continuation of each prompt: the first `lengths` of `tokens`. The end mark is not
    counted.
    """

    tokens: Int[Array, "B room"]  # -1 where the model's logits are not numbers
    lengths: Int[Array, " B"]


def generate(
    model: Bert, params: Any, batch: Batch, sampling: Sampling, *, room: int, end: int | None, top_k: int = 0
) -> Continuation:
    """The tokens after each prompt, until the token `end` is drawn or the limit is reached.

    Prompts are padded on the right to T tokens. What follows them has the places after the padding,
    which nothing attends to.

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
    caches = empty_cache(model.config, rows, length + room, model.config.loops, model.config.num_layers)
    positions = jnp.broadcast_to(jnp.arange(length), (rows, length))
    causal = jnp.broadcast_to(places <= jnp.arange(length)[:, None], (rows, length, length + room))
    hidden, caches = advance(model, params, prompts, positions, jnp.int32(0), causal, caches)
    if unrolls(model.config, params):
        params, caches = decoding_params(model.config, params), split_caches(model.config, caches)
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
    return Continuation(written, counts)


def unrolls(config: ModelConfig, params: Any) -> bool:
    """Whether `generate` writes tokens without a scan over layers."""
    layer = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params["encoder"]["layers"])) / config.num_layers
    return current_platform() == "cpu" and layer > _CACHE_BYTES and config.loops * config.num_layers <= _MOST_PROGRAMS


def split_caches(config: ModelConfig, caches: KVCache) -> tuple[KVCache, ...]:
    """The cache of each layer, in the order in which a token passes them."""
    return tuple(cache for once in _unstack(caches, config.loops) for cache in _unstack(once, config.num_layers))


def _draw(logits: Float[Array, "B V"], sampling: Sampling, keys: Array, top_k: int) -> Int[Array, " B"]:
    """A token for each row, by the key of the row; -1 where a logit is not a number."""
    is_broken = jnp.isnan(logits).any(axis=-1)
    logits = jnp.where(sampling.allowed, logits, -jnp.inf)
    if top_k:
        logits = jnp.where(logits >= jax.lax.top_k(logits, top_k)[0][:, -1:], logits, -jnp.inf)
    is_drawn = sampling.temperature > 0
    drawn = jax.vmap(jax.random.categorical)(keys, logits / jnp.where(is_drawn, sampling.temperature, 1.0))
    token = jnp.where(is_drawn, drawn, jnp.argmax(logits, axis=-1))
    return jnp.where(is_broken, -1, token).astype(jnp.int32)


def advance(
    model: Bert,
    params: Any,
    tokens: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    place: Int[Array, ""],
    mask: Bool[Array, "B T S"],
    caches: Any,
) -> tuple[Float[Array, "B T D"], Any]:
    """The hidden states of T tokens, and the caches with their keys and values from `place` on.

    Args:
      params: of the model, whose layers run in a scan, or from `decoding_params`, unrolled.
      positions: in the text, from 0.
      mask: True where a token attends to a place of the cache, its own among them.
      caches: stacked, for each pass of model.loops and each of its layers; where the layers are
        unrolled, from `split_caches`.
    """
    batch = {"inputs": tokens, "inputs_position": positions, "token_types": jnp.zeros_like(tokens)}
    embeddings: Any = Embeddings(model.config)
    x = embeddings.apply({"params": params["embeddings"]}, batch, None)
    stack = encoder_stack(model.config)
    layer: Any = Layer(model.config, model.residual, stack)
    turns = rotation(model.config, positions)

    def apply_layer(stream: Stream, layer_state: tuple[Any, KVCache]) -> tuple[Stream, KVCache]:
        layer_params, cache = layer_state
        return layer.apply({"params": layer_params}, stream, cache, place, mask[:, None], turns, method=_cached_layer)

    stream = model.residual.start(model.config, stack, x, jnp.ones(tokens.shape, bool))
    layers = params["encoder"]["layers"]
    if isinstance(layers, tuple):
        extended = []
        for layer_state in zip(layers * model.config.loops, caches, strict=True):
            stream, cache = apply_layer(stream, layer_state)
            extended.append(cache)
        caches = tuple(extended)
    else:
        stream, caches = jax.lax.scan(lambda stream, caches: jax.lax.scan(apply_layer, stream, (layers, caches)), stream, caches)
    end: Any = _End(model.config, model.residual, stack)
    return end.apply({"params": params["encoder"]}, stream), caches


def next_logits(model: Bert, params: Any, hidden: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
    """The logits of the token that follows each."""
    head: Any = PredictionHead(model.config)
    return head.apply({"params": params.get("prediction", {})}, hidden, params["embeddings"]["token"])
