"""The encoder and the decoder: layers under one scan, rematerialised by policy. Who may look where is the masks' affair."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from mhsh.config import ModelConfig
from mhsh.models.attention import KeysValues, MultiHeadAttention
from mhsh.models.layers import FeedForward, layer_norm
from mhsh.models.residual import Residual, Stream, Sublayer
from mhsh.models.stack import decoder_stack, encoder_stack

# What the backward pass finds saved; everything else of a layer is computed again. `none` saves all.
REMAT_POLICIES: dict[str, Any] = {
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_no_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


def over_layers(layer: Any, config: ModelConfig, num_layers: int, in_axes: Mapping[str, Any]) -> Any:
    """The module class of `num_layers` copies of `layer`, one after the other, their parameters stacked on axis 0 (logical axis
    `layers`). `in_axes` says of each method of the layer which arguments after the first, the carry, are stacked as well;
    those of `__call__`, which alone is rematerialised, are two, the second static.
    """
    if config.remat_policy != "none":
        layer = nn.remat(layer, policy=REMAT_POLICIES[config.remat_policy], prevent_cse=False, static_argnums=(3,))
    scan = dict(
        variable_axes={"params": 0, "omega": 0, "diagnosis": 0},
        split_rngs={"params": True, "dropout": True},
        length=num_layers,
        unroll=config.scan_unroll,
        metadata_params={nn.PARTITION_NAME: "layers"},
    )
    return nn.scan(layer, methods={method: scan | {"in_axes": axes} for method, axes in in_axes.items()})


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each joined to the stream by the residual scheme."""

    config: ModelConfig
    residual: type[Residual]

    @nn.compact
    def __call__(self, stream: Stream, mask: Bool[Array, "B 1 T T"], deterministic: bool) -> tuple[Stream, None]:
        stack = encoder_stack(self.config)
        gain = self.residual.init_gain(stack)
        attention = MultiHeadAttention(self.config, gain, name="attention")
        feed_forward = FeedForward(self.config, gain, name="feed_forward")
        stream = self.residual(self.config, stack, name="attention_residual")(
            stream, lambda x: attention(x, x, mask, deterministic=deterministic)
        )
        stream = self.residual(self.config, stack, name="feed_forward_residual")(
            stream, lambda x: feed_forward(x, deterministic=deterministic)
        )
        self.sow("diagnosis", "finite", jnp.isfinite(stream.x).all())  # kept only where somebody asks for `diagnosis`
        x = nn.with_logical_constraint(stream.x, ("batch", "length", "activation"))
        return Stream(x, stream.profile), None


class Encoder(nn.Module):
    """L layers, and what the residual scheme wants after them."""

    config: ModelConfig
    residual: type[Residual]

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], mask: Bool[Array, "B 1 T T"], real: Bool[Array, "B T"], *, deterministic: bool
    ) -> Float[Array, "B T D"]:
        """`mask` says who may look where; `real` is False at padding (read by Admin's profiling pass alone)."""
        config = self.config
        layers = over_layers(EncoderLayer, config, config.num_layers, {"__call__": nn.broadcast})
        stream, _ = layers(config, self.residual, name="layers")(self.residual.start(x, real), mask, deterministic)
        if self.residual.final_norm:
            return layer_norm(config, "final_norm")(stream.x)
        return stream.x


class Context(NamedTuple):
    """What the layers of a decoder read besides the residual stream."""

    source: Float[Array, "B S D"]  # the encoder's output
    self_mask: Bool[Array, "B 1 T T"]
    cross_mask: Bool[Array, "B 1 T S"]


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention, feed-forward, each joined to the stream by the residual scheme."""

    config: ModelConfig
    residual: type[Residual]

    def setup(self) -> None:
        stack = decoder_stack(self.config)
        gain = self.residual.init_gain(stack)
        self.self_attention = MultiHeadAttention(self.config, gain)
        self.cross_attention = MultiHeadAttention(self.config, gain)
        self.feed_forward = FeedForward(self.config, gain)
        self.self_attention_residual = self.residual(self.config, stack)
        self.cross_attention_residual = self.residual(self.config, stack)
        self.feed_forward_residual = self.residual(self.config, stack)

    def __call__(self, stream: Stream, context: Context, deterministic: bool) -> tuple[Stream, None]:
        stream = self._join(
            stream,
            lambda x: self.self_attention(x, x, context.self_mask, deterministic=deterministic),
            lambda x: self.cross_attention(x, context.source, context.cross_mask, deterministic=deterministic),
            deterministic,
        )
        self.sow("diagnosis", "finite", jnp.isfinite(stream.x).all())
        x = nn.with_logical_constraint(stream.x, ("batch", "length", "activation"))
        return Stream(x, stream.profile), None

    def remember(self, source: Float[Array, "B S D"]) -> tuple[Float[Array, "B S D"], KeysValues]:
        """The encoder's output, passed on, and its keys and values for this layer's cross-attention."""
        return source, self.cross_attention.remember(source)

    def step(
        self,
        x: Float[Array, "B K D"],
        cache: KeysValues,
        memory: KeysValues,
        position: Int[Array, ""],
        seen: Bool[Array, "B K T K"],
        cross_mask: Bool[Array, "B 1 K S"],
    ) -> tuple[Float[Array, "B K D"], KeysValues]:
        """One new position of K sequences a row, and the cache with it in; see MultiHeadAttention.step."""
        written = []

        def self_attention(x: Float[Array, "B K D"]) -> Float[Array, "B K D"]:
            out, after = self.self_attention.step(x, cache, position, seen)
            written.append(after)
            return out

        # The K sequences of a row stand where a row's T positions stand in training: these sublayers treat each by itself.
        stream = self._join(Stream(x, None), self_attention, lambda x: self.cross_attention.recall(x, memory, cross_mask), True)
        return stream.x, written[0]

    def _join(self, stream: Stream, self_attention: Sublayer, cross_attention: Sublayer, deterministic: bool) -> Stream:
        stream = self.self_attention_residual(stream, self_attention)
        stream = self.cross_attention_residual(stream, cross_attention)
        return self.feed_forward_residual(stream, lambda x: self.feed_forward(x, deterministic=deterministic))


class Decoder(nn.Module):
    """The layers of the decoder, and what the residual scheme wants after them."""

    config: ModelConfig
    residual: type[Residual]

    def setup(self) -> None:
        in_axes = {"__call__": nn.broadcast, "remember": ()}
        layers = over_layers(DecoderLayer, self.config, self.config.num_decoder_layers, in_axes)
        self.layers = layers(self.config, self.residual)
        if self.residual.final_norm:
            self.final_norm = layer_norm(self.config, None)

    def __call__(
        self, x: Float[Array, "B T D"], context: Context, real: Bool[Array, "B T"], *, deterministic: bool
    ) -> Float[Array, "B T D"]:
        """`real` is False at padding (read by Admin's profiling pass alone)."""
        stream, _ = self.layers(self.residual.start(x, real), context, deterministic)
        return self._finish(stream.x)

    def remember(self, source: Float[Array, "B S D"]) -> KeysValues:
        """The keys [L,B,N,H,S] and values [L,B,N,S,H] that the cross-attention of every layer makes of the encoder's output."""
        _, memory = self.layers.remember(source)
        return memory

    def _finish(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        return self.final_norm(x) if self.residual.final_norm else x


def decoder_step(
    decoder: Decoder,
    params: Mapping[str, Any],
    x: Float[Array, "B K D"],
    caches: Sequence[KeysValues],
    memories: Sequence[KeysValues],
    position: Int[Array, ""],
    seen: Bool[Array, "B K T K"],
    cross_mask: Bool[Array, "B 1 K S"],
) -> tuple[Float[Array, "B K D"], tuple[KeysValues, ...]]:
    """One new position of K sequences a row, and every layer's cache with it in; see MultiHeadAttention.step.

    `params` are the decoder's, except that `layers` has been through `unstack_layers`: in the scan over layers each step would
    copy every layer's slice of the parameters, the caches and the memories.
    """
    layer: Any = DecoderLayer(decoder.config, decoder.residual)
    written = []
    for layer_params, cache, memory in zip(params["layers"], caches, memories, strict=True):
        variables = {"params": layer_params}
        x, after = layer.apply(variables, x, cache, memory, position, seen, cross_mask, method=DecoderLayer.step)
        written.append(after)
    if decoder.residual.final_norm:
        final_norm: Any = layer_norm(decoder.config, None)
        x = final_norm.apply({"params": params["final_norm"]}, x)
    return x, tuple(written)


def unstack_layers(stacked: Any, num_layers: int) -> tuple[Any, ...]:
    """A pytree a layer, of one whose leaves have the layers on axis 0."""
    return tuple(jax.tree.map(operator.itemgetter(layer), stacked) for layer in range(num_layers))
