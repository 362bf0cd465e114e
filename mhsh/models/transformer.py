"""The encoder and the decoder: layers in one scan, rematerialised by policy."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from mhsh.config.schema import ModelConfig
from mhsh.config.shapes import attention_weights, feed_forward_weights
from mhsh.errors import UserError
from mhsh.models import scan
from mhsh.models.attention import AttentionMask, MultiHeadAttention, attention_mask
from mhsh.models.devices import current_platform
from mhsh.models.dropout import DropoutKey, Seeds, layer_seeds, split_seeds
from mhsh.models.layers import FeedForward, LayerNorm, Rotation, rotation
from mhsh.models.residual import Residual, Stream
from mhsh.models.streamed import stream_groups
from mhsh.models.sublayer import Branch, ModuleSublayer
from mhsh.models.types import SUBLAYERS, Stack, decoder_stack, encoder_stack
from mhsh.models.vectors import pack, packing, unpack

# What the backward pass finds saved; it recomputes everything else of a layer. `none` saves all.
# `projections` saves what a layer projects its stream to, queries, keys, values and the hidden
# layer of the feed-forward, and the weighted values: all that is narrow where layers are many. No
# array as wide as the stream or as the scores is saved, but what our own kernels normalised: they
# would not be faster at computing it again.
# `groups` also saves the stream only before each group of layers (Chen et al. 2016, arXiv
# 1604.06174), so that memory grows with the root of the depth. With `gathered_groups` a device also
# has the weights of a group only while it computes that group (mhsh/training/shards.py).
# mhsh/training/memory.py resolves `auto` before training; a model that is not differentiated
# ignores all else of the policy.
REMAT_POLICIES: dict[str, Any] = {
    "projections": jax.checkpoint_policies.save_only_these_names("projected", "context", "hidden", "normed"),
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_no_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
    "groups": jax.checkpoint_policies.nothing_saveable,
    "gathered_groups": jax.checkpoint_policies.nothing_saveable,
}
GROUP_POLICIES = frozenset({"groups", "gathered_groups"})

# The weights of a group that is gathered by itself: sending them takes longer than to begin to.
_GROUP_BYTES = 2**26

# Layers in one iteration where `scan_unroll` is 0. A GPU starts each operation by itself; what four
# layers slice and save, they do in one (docs/development/speed.md).
UNROLL = {"cpu": 1, "tpu": 1, "gpu": 4}

# The collections that layers sow into, kept only where a caller makes them mutable.
SOWN = ("omega", "probe")


def layer_groups(config: ModelConfig, num_layers: int) -> tuple[int, int]:
    """Groups, and layers in a group, of one of GROUP_POLICIES. Their sum is the least, as it is the
    number of streams that `groups` keeps. With `gathered_groups` a group is no larger than is worth
    a collective.
    """
    divisors = [size for size in range(1, num_layers + 1) if num_layers % size == 0]
    size = min(divisors, key=lambda size: num_layers // size + size)
    if config.remat_policy == "gathered_groups":
        weights = attention_weights(config) + feed_forward_weights(config)
        needed = _GROUP_BYTES / (weights * jnp.dtype(config.compute_dtype).itemsize)
        size = next(divisor for divisor in divisors if divisor >= min(needed, size))
    return num_layers // size, size


def scan_lengths(owner: nn.Module, config: ModelConfig, num_layers: int) -> tuple[int, ...]:
    """The lengths of the nested scans over the layers of `owner`: one, or groups and layers."""
    return (
        layer_groups(config, num_layers) if config.remat_policy in GROUP_POLICIES and not _is_forward_only(owner) else (num_layers,)
    )


def passes(owner: nn.Module, config: ModelConfig) -> tuple[int, ...]:
    """The length of the scan around those, over the passes of model.loops; none where one is
    enough.
    """
    return (config.loops,) if config.loops > 1 and not owner.is_initializing() else ()


def stack_layers(owner: Encoder | Decoder, config: ModelConfig, stack: Stack, lengths: tuple[int, ...]) -> Any:
    """The module class of all layers, for the submodule `layers` of `owner`: their parameters are
    packed, and gathered group by group where the policy says so.

    The parameters of all layers are stacked on axis 0 (logical axis `layers`), and are the same in
    each pass. It is called with the carry, an argument that is stacked with an axis for each of
    `passes` and `lengths`, and one that is not.
    """
    layer_packing = None if _is_forward_only(owner) else packing(config, owner.get_variable("params", "layers"))
    gathers = config.remat_policy == "gathered_groups" and not _is_forward_only(owner)
    unroll = config.scan_unroll or UNROLL[current_platform()]
    if layer_packing and stack.name == "encoder" and scan.covers(config, owner.residual):
        layers = scan.scan_packed_layers(Layer, layer_packing, lengths[0], unroll)
    else:
        one = nn.map_variables(Layer, "params", functools.partial(unpack, layer_packing)) if layer_packing else Layer
        scans = lengths[1:] if gathers else lengths
        # The layers of a group of one are recomputed as that group.
        policy = None if gathers and scans == (1,) else REMAT_POLICIES.get(config.remat_policy)
        layers = nested_scan(one, scans, policy, unroll)
    if gathers:
        layers = stream_groups(layers)
    layers = _repeat(layers, passes(owner, config))

    def shape_for_scan(variables: Any) -> Any:
        stacked = pack(layer_packing, variables) if layer_packing else variables
        return jax.tree.map(lambda leaf: leaf.reshape(*lengths, *leaf.shape[1:]), stacked)

    return nn.map_variables(layers, "params", shape_for_scan) if layer_packing or len(lengths) > 1 else layers


def nested_scan(layer: Any, lengths: tuple[int, ...], policy: Any, unroll: int) -> Any:
    """The module class of copies of `layer` in nested scans of these lengths, each rematerialised
    by a policy of jax.checkpoint (None: not), the innermost with so many layers in an iteration.
    """
    for depth, length in enumerate(reversed(lengths)):
        if policy is not None:
            layer = nn.remat(layer, policy=policy, prevent_cse=False)
        layer = nn.scan(
            layer,
            variable_axes=dict.fromkeys(("params", *SOWN), 0),
            split_rngs={"params": True},
            in_axes=(0, nn.broadcast),
            length=length,
            unroll=unroll if depth == 0 else 1,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )
    return layer


def _repeat(layers: Any, lengths: tuple[int, ...]) -> Any:
    """The module class of `layers` in scans of these lengths, with the same parameters in each."""
    for length in lengths:
        layers = nn.scan(
            layers,
            variable_broadcast="params",
            variable_axes=dict.fromkeys(SOWN, 0),
            split_rngs={"params": False},
            in_axes=(0, nn.broadcast),
            length=length,
        )
    return layers


def _is_forward_only(owner: nn.Module) -> bool:
    """Whether nothing is differentiated: parameters are initialised, or a pass sows."""
    return owner.is_initializing() or any(map(owner.is_mutable_collection, SOWN))


class Context(NamedTuple):
    """The arrays that the layers of a stack read besides the residual stream."""

    mask: AttentionMask  # of self-attention
    rotation: Rotation | None = None  # of rotary positions
    source: Float[Array, "B S D"] | None = None  # the encoder's output, which a decoder reads
    source_mask: AttentionMask | None = None


class Layer(nn.Module):
    """The sublayers of one layer of a stack (SUBLAYERS), each added to the stream by the residual
    scheme.
    """

    config: ModelConfig
    residual: type[Residual]
    stack: Stack

    def setup(self) -> None:
        config, residual, stack = self.config, self.residual, self.stack
        gain, norms = residual.init_gain(stack), residual.head_norms
        if stack.name == "encoder":
            self.attention = MultiHeadAttention(config, gain, norms)
            self.attention_residual = residual(config, stack, "attention")
        else:
            self.self_attention, self.cross_attention = (MultiHeadAttention(config, gain, norms) for _ in range(2))
            self.self_attention_residual = residual(config, stack, "self_attention")
            self.cross_attention_residual = residual(config, stack, "cross_attention")
        self.feed_forward = FeedForward(config, gain)
        self.feed_forward_residual = residual(config, stack, "feed_forward")

    def __call__(self, stream: Stream, seeds: Seeds, context: Context) -> tuple[Stream, None]:
        names, entered = SUBLAYERS[self.stack.name], stream
        for name, its_seeds in zip(names, split_seeds(seeds, len(names)), strict=True):
            stream = getattr(self, f"{name}_residual")(stream, self._sublayer(name, its_seeds, context))
        return _leave_layer(self.config, entered, stream), None

    def branch(self, name: str, x: Float[Array, "B T D"], seeds: Seeds, context: Context) -> Branch:
        """The output of one sublayer, in parts."""
        return self._sublayer(name, seeds, context).branch(x)

    def _sublayer(self, name: str, seeds: Seeds, context: Context) -> ModuleSublayer:
        if name == "feed_forward":
            arguments = (seeds,)
        elif name == "cross_attention":
            arguments = (context.source, context.source_mask, seeds)
        else:
            arguments = (None, context.mask, seeds, context.rotation)
        return ModuleSublayer(getattr(self, name), arguments, drops=seeds is not None)


class Encoder(nn.Module):
    """L layers, and the final LayerNorm of the residual schemes that have one."""

    config: ModelConfig
    residual: type[Residual]

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        segmentation: Int[Array, "B T"],
        dropout_key: DropoutKey,
        positions: Int[Array, "B T"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Attention stays within a segment (0: padding); in a language model (clm) it is causal.
        Only rotary positions are read.
        """
        mask = attention_mask(segmentation, causal=self.config.objective == "clm")
        context = Context(mask, rotation(self.config, positions))
        return _run_layers(self, encoder_stack(self.config), self.config.num_layers, x, context, segmentation > 0, dropout_key)


class Decoder(nn.Module):
    """The layers of the decoder, and the final LayerNorm of the schemes that have one."""

    config: ModelConfig
    residual: type[Residual]

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], context: Context, real: Bool[Array, "B T"], dropout_key: DropoutKey
    ) -> Float[Array, "B T D"]:
        """`real` is False at padding; only Admin's profiling pass reads it."""
        return _run_layers(self, decoder_stack(self.config), self.config.num_decoder_layers, x, context, real, dropout_key)


def _run_layers(
    owner: Encoder | Decoder, stack: Stack, num_layers: int, x: Array, context: Context, real: Array, dropout_key: DropoutKey
) -> Float[Array, "B T D"]:
    """The output of a stack. Called in the compact method of `owner`, which then has the layers."""
    config, residual = owner.config, owner.residual
    lengths = scan_lengths(owner, config, num_layers)
    layers = stack_layers(owner, config, stack, lengths)(config, residual, stack, name="layers")
    seeds = layer_seeds(dropout_key, (*passes(owner, config), *lengths), len(SUBLAYERS[stack.name]))
    stream, _ = layers(residual.start(config, stack, x, real), seeds, context)
    return end_of_stack(residual, config, stack, stream)


def end_of_stack(residual: type[Residual], config: ModelConfig, stack: Stack, stream: Stream) -> Float[Array, "B T D"]:
    """The output of a stack, of whose compact method this is a part."""
    x = residual.finish(config, stack, stream)
    return LayerNorm(config, name="final_norm")(x) if residual.final_norm else x


def _leave_layer(config: ModelConfig, entered: Stream, stream: Stream) -> Stream:
    """The stream as it leaves a layer, sharded by rows. Raises UserError where it is none that the
    next one could take.
    """
    before, after = (jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", each) for each in (entered, stream))
    if before != after:
        raise UserError(
            f"model.residual = {config.residual!r} makes {after} of {before}; return a Stream of the same shapes and dtypes, as "
            "with .astype(stream.x.dtype)"
        )
    streams = (None,) * (stream.x.ndim - 3)
    return Stream(nn.with_logical_constraint(stream.x, ("batch", "length", *streams, "activation")), stream.carried)
