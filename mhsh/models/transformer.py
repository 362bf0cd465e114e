"""The encoder: layers under one scan, rematerialised by policy. Causal or bidirectional is the mask's affair, not its own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from mhsh.config import ModelConfig
from mhsh.models.attention import MultiHeadAttention
from mhsh.models.layers import FeedForward, layer_norm
from mhsh.models.residual import Residual, Stream

# What the backward pass finds saved; everything else of a layer is computed again. `none` saves all.
REMAT_POLICIES: dict[str, Any] = {
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_no_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each joined to the stream by the residual scheme."""

    config: ModelConfig
    residual: type[Residual]

    @nn.compact
    def __call__(self, stream: Stream, mask: Bool[Array, "B 1 T T"], deterministic: bool) -> tuple[Stream, None]:
        gain = self.residual.init_gain(self.config.num_layers)
        attention = MultiHeadAttention(self.config, gain, name="attention")
        feed_forward = FeedForward(self.config, gain, name="feed_forward")
        stream = self.residual(self.config, name="attention_residual")(
            stream, lambda x: attention(x, x, mask, deterministic=deterministic)
        )
        stream = self.residual(self.config, name="feed_forward_residual")(
            stream, lambda x: feed_forward(x, deterministic=deterministic)
        )
        self.sow("diagnosis", "finite", jnp.isfinite(stream.x).all())  # kept only where somebody asks for `diagnosis`
        x = nn.with_logical_constraint(stream.x, ("batch", "length", "activation"))
        return Stream(x, stream.profile), None


class Encoder(nn.Module):
    """L layers, their parameters stacked on axis 0 (logical axis `layers`)."""

    config: ModelConfig
    residual: type[Residual]

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], mask: Bool[Array, "B 1 T T"], real: Bool[Array, "B T"], *, deterministic: bool
    ) -> Float[Array, "B T D"]:
        """`mask` says who may look where; `real` is False at padding (read by Admin's profiling pass alone)."""
        config = self.config
        layer = EncoderLayer
        if config.remat_policy != "none":
            layer = nn.remat(layer, policy=REMAT_POLICIES[config.remat_policy], prevent_cse=False, static_argnums=(3,))
        layers = nn.scan(
            layer,
            variable_axes={"params": 0, "omega": 0, "diagnosis": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=nn.broadcast,
            length=config.num_layers,
            unroll=config.scan_unroll,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )(config, self.residual, name="layers")
        stream, _ = layers(self.residual.start(x, real), mask, deterministic)
        if self.residual.final_norm:
            return layer_norm(config, "final_norm")(stream.x)
        return stream.x
