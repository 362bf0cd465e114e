"""The encoder and the decoder: layers under one scan, rematerialised by policy. Who may look where
is the masks' affair.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from mhsh.config.schema import ModelConfig
from mhsh.kernels.dropout import DropoutKey, layer_keys, subkeys
from mhsh.kernels.residual_norm import Norm
from mhsh.models.attention import KVCache, MultiHeadAttention, attention_mask
from mhsh.models.fusion import fused_here
from mhsh.models.layers import FeedForward, LayerNorm
from mhsh.models.residual import Residual, Stream, Sublayer
from mhsh.models.stack import decoder_stack, encoder_stack

# What the backward pass finds saved; everything else of a layer is computed again. `none` saves
# all. `groups` as well saves the stream before every group of layers alone (Chen et al. 2016, arXiv
# 1604.06174), so that depth costs the root of its memory. `auto` is for training to decide
# (mhsh/training/remat.py); whatever is never differentiated reads none of them.
REMAT_POLICIES: dict[str, Any] = {
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_no_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
    "groups": jax.checkpoint_policies.nothing_saveable,
}


def group_sizes(num_layers: int) -> tuple[int, int]:
    """Groups, and layers of a group, so that their sum, the streams that `groups` keeps at once, is
    least.
    """
    sizes = [(num_layers // size, size) for size in range(1, num_layers + 1) if num_layers % size == 0]
    return min(sizes, key=sum)


def scan_lengths(owner: nn.Module, config: ModelConfig, num_layers: int) -> tuple[int, ...]:
    """The scans that `owner` lays its layers in: one, or groups and layers of a group.

    Where parameters are made, or something is sown, nothing is differentiated, and one does.
    """
    if config.remat_policy != "groups" or owner.is_initializing() or any(map(owner.is_mutable_collection, SOWN)):
        return (num_layers,)
    return group_sizes(num_layers)


def over_layers(layer: Any, config: ModelConfig, lengths: tuple[int, ...], in_axes: Mapping[str, Any]) -> Any:
    """The module class of copies of `layer`, one after the other, in scans of these lengths, their
    parameters stacked on axis 0 (logical axis `layers`). `in_axes` says of each method of the layer
    which arguments after the first, the carry, are stacked as well, on an axis a scan. `__call__`
    alone is rematerialised.
    """
    for length in reversed(lengths):
        if config.remat_policy in REMAT_POLICIES:
            layer = nn.remat(layer, policy=REMAT_POLICIES[config.remat_policy], prevent_cse=False)
        scan = dict(
            variable_axes={"params": 0} | dict.fromkeys(SOWN, 0),
            split_rngs={"params": True},
            length=length,
            unroll=config.scan_unroll if length == lengths[-1] else 1,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
        layer = nn.scan(layer, methods={method: scan | {"in_axes": axes} for method, axes in in_axes.items()})
    if len(lengths) == 1:
        return layer

    def in_groups(params: Any) -> Any:
        return jax.tree.map(lambda stacked: stacked.reshape(*lengths, *stacked.shape[1:]), params)

    return nn.map_variables(layer, "params", in_groups, methods=list(in_axes))


# The collections of figures that layers leave behind, kept only where somebody asks for them.
SOWN = ("omega", "diagnosis", "probe")


class AttentionContext(NamedTuple):
    """Who may look where in the encoder: the mask, and the segments that it was made of, which is
    what fused kernels read.
    """

    mask: Bool[Array, "B 1 T T"]
    segmentation: Int[Array, "B T"]


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each joined to the stream by the residual scheme."""

    config: ModelConfig
    residual: type[Residual]

    @nn.compact
    def __call__(self, stream: Stream, dropout_key: DropoutKey, attention_context: AttentionContext) -> tuple[Stream, None]:
        stack = encoder_stack(self.config)
        attention_key, feed_forward_key = subkeys(dropout_key, 2)
        gain = self.residual.init_gain(stack)
        attention = MultiHeadAttention(self.config, gain, name="attention")
        feed_forward = FeedForward(self.config, gain, name="feed_forward")
        attention_residual = self.residual(self.config, stack, name="attention_residual")
        feed_forward_residual = self.residual(self.config, stack, name="feed_forward_residual")
        fused = fused_here(self.config, *stream.x.shape[:2])

        def fused_attention(x: Float[Array, "B T D"], norm: Norm) -> Float[Array, "B T D"]:
            return attention.joined(x, attention_context.segmentation, norm, attention_key, fused.place)

        def fused_feed_forward(x: Float[Array, "B T D"], norm: Norm) -> Float[Array, "B T D"]:
            return feed_forward.joined(x, norm, feed_forward_key, fused.place)

        stream = attention_residual(
            stream, lambda x: attention(x, x, attention_context.mask, attention_key), fused_attention if fused.attention else None
        )
        stream = feed_forward_residual(
            stream, lambda x: feed_forward(x, feed_forward_key), fused_feed_forward if fused.feed_forward else None
        )
        self.sow("diagnosis", "finite", jnp.isfinite(stream.x).all())
        x = nn.with_logical_constraint(stream.x, ("batch", "length", "activation"))
        return Stream(x, stream.profile), None


class Encoder(nn.Module):
    """L layers, and what the residual scheme wants after them."""

    config: ModelConfig
    residual: type[Residual]

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], segmentation: Int[Array, "B T"], dropout_key: DropoutKey) -> Float[Array, "B T D"]:
        """Attention stays within a segment (0: padding); in a language model (clm) it never looks
        ahead.
        """
        config = self.config
        lengths = scan_lengths(self, config, config.num_layers)
        layers = over_layers(EncoderLayer, config, lengths, {"__call__": (0, nn.broadcast)})
        keys = layer_keys(dropout_key, lengths)
        attention_context = AttentionContext(attention_mask(segmentation, causal=config.objective == "clm"), segmentation)
        start = self.residual.start(x, segmentation > 0)
        stream, _ = layers(config, self.residual, name="layers")(start, keys, attention_context)
        if self.residual.final_norm:
            return LayerNorm(config, name="final_norm")(stream.x)
        return stream.x


class Context(NamedTuple):
    """What the layers of a decoder read besides the residual stream."""

    source: Float[Array, "B S D"]  # the encoder's output
    self_mask: Bool[Array, "B 1 T T"]
    cross_mask: Bool[Array, "B 1 T S"]


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention, feed-forward, each joined to the stream by the residual
    scheme.
    """

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

    def __call__(self, stream: Stream, dropout_key: DropoutKey, context: Context) -> tuple[Stream, None]:
        self_key, cross_key, feed_forward_key = subkeys(dropout_key, 3)
        stream = self._join(
            stream,
            lambda x: self.self_attention(x, x, context.self_mask, self_key),
            lambda x: self.cross_attention(x, context.source, context.cross_mask, cross_key),
            feed_forward_key,
        )
        self.sow("diagnosis", "finite", jnp.isfinite(stream.x).all())
        x = nn.with_logical_constraint(stream.x, ("batch", "length", "activation"))
        return Stream(x, stream.profile), None

    def project_kv(self, source: Float[Array, "B S D"]) -> tuple[Float[Array, "B S D"], KVCache]:
        """The encoder's output, passed on, and its keys and values for this layer's
        cross-attention.
        """
        return source, self.cross_attention.project_kv(source)

    def step(
        self,
        x: Float[Array, "B K D"],
        cache: KVCache,
        memory: KVCache,
        position: Int[Array, ""],
        seen: Bool[Array, "B K T K"],
        cross_mask: Bool[Array, "B 1 K S"],
    ) -> tuple[Float[Array, "B K D"], KVCache]:
        """One new position of K sequences a row, and the cache with it in; see
        MultiHeadAttention.step.
        """
        written = []

        def self_attention(x: Float[Array, "B K D"]) -> Float[Array, "B K D"]:
            out, after = self.self_attention.step(x, cache, position, seen)
            written.append(after)
            return out

        # The K sequences of a row stand where a row's T positions stand in training: these
        # sublayers treat each by itself.
        stream = self._join(
            Stream(x, None), self_attention, lambda x: self.cross_attention.attend_cached(x, memory, cross_mask), None
        )
        return stream.x, written[0]

    def _join(self, stream: Stream, self_attention: Sublayer, cross_attention: Sublayer, dropout_key: DropoutKey) -> Stream:
        stream = self.self_attention_residual(stream, self_attention)
        stream = self.cross_attention_residual(stream, cross_attention)
        return self.feed_forward_residual(stream, lambda x: self.feed_forward(x, dropout_key))


class Decoder(nn.Module):
    """The layers of the decoder, and what the residual scheme wants after them."""

    config: ModelConfig
    residual: type[Residual]

    def setup(self) -> None:
        in_axes = {"__call__": (0, nn.broadcast), "project_kv": ()}
        self.lengths = scan_lengths(self, self.config, self.config.num_decoder_layers)
        layers = over_layers(DecoderLayer, self.config, self.lengths, in_axes)
        self.layers = layers(self.config, self.residual)
        if self.residual.final_norm:
            self.final_norm = LayerNorm(self.config)

    def __call__(
        self, x: Float[Array, "B T D"], context: Context, real: Bool[Array, "B T"], dropout_key: DropoutKey
    ) -> Float[Array, "B T D"]:
        """`real` is False at padding (read by Admin's profiling pass alone)."""
        keys = layer_keys(dropout_key, self.lengths)
        stream, _ = self.layers(self.residual.start(x, real), keys, context)
        return self._finish(stream.x)

    def project_kv(self, source: Float[Array, "B S D"]) -> KVCache:
        """The keys [L,B,N,H,S] and values [L,B,N,S,H] that the cross-attention of every layer makes
        of the encoder's output.
        """
        _, memory = self.layers.project_kv(source)
        return jax.tree.map(lambda stacked: stacked.reshape(-1, *stacked.shape[len(self.lengths) :]), memory)

    def _finish(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        return self.final_norm(x) if self.residual.final_norm else x


def decoder_step(
    decoder: Decoder,
    params: Mapping[str, Any],
    x: Float[Array, "B K D"],
    caches: Sequence[KVCache],
    memories: Sequence[KVCache],
    position: Int[Array, ""],
    seen: Bool[Array, "B K T K"],
    cross_mask: Bool[Array, "B 1 K S"],
) -> tuple[Float[Array, "B K D"], tuple[KVCache, ...]]:
    """One new position of K sequences a row, and every layer's cache with it in; see
    MultiHeadAttention.step.

    `params` are the decoder's, except that `layers` has been through `unstack_layers`: in the scan
    over layers each step would copy every layer's slice of the parameters, the caches and the
    memories.
    """
    layer: Any = DecoderLayer(decoder.config, decoder.residual)
    written = []
    for layer_params, cache, memory in zip(params["layers"], caches, memories, strict=True):
        variables = {"params": layer_params}
        x, after = layer.apply(variables, x, cache, memory, position, seen, cross_mask, method=DecoderLayer.step)
        written.append(after)
    if decoder.residual.final_norm:
        final_norm: Any = LayerNorm(decoder.config)
        x = final_norm.apply({"params": params["final_norm"]}, x)
    return x, tuple(written)


def unstack_layers(stacked: Any, num_layers: int) -> tuple[Any, ...]:
    """A pytree a layer, of one whose leaves have the layers on axis 0."""
    return tuple(jax.tree.map(operator.itemgetter(layer), stacked) for layer in range(num_layers))
