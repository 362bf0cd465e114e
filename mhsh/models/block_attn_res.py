"""Block Attention Residuals: depth as a sequence, which every sublayer attends to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from mhsh.config.entries import add_residual
from mhsh.config.schema import ModelConfig
from mhsh.models.layers import LayerNorm, normalize
from mhsh.models.residual import Residual, Stream, Weights
from mhsh.models.sublayer import Sublayer
from mhsh.models.types import SUBLAYERS, Stack


class History(NamedTuple):
    """The blocks before the one that the stream is the sum of."""

    blocks: Float[Array, "blocks B T D"]  # the stack's input, then whole blocks; zeros where none is yet
    count: Int[Array, ""]  # sublayers that the stream has passed


@add_residual(
    "block_attn_res",
    label="Block AttnRes",
    growth="O(log n)",
    source="as Pre-LN's: equal weights at the start are a factor, which LN does not see (arXiv 2603.15031)",
)
class BlockAttnRes(Residual):
    """b + f(LN(h)), b the sum of the sublayers of this block so far, h = sum_i a_i b_i over the
    stack's input b_0, the earlier blocks and b; a = softmax_i(w . RMSNorm(b_i)) with a trainable w
    [D], 0 at the start. The output is such an h too, with a w of its own, before a final LayerNorm
    (Kimi Team 2026, arXiv 2603.15031, section 3.2, eq. 2 to 6 and figure 2; w = 0: section 5).

    model.residual_blocks has N. A block is n / N of the n sublayers, rounded up. N >= n is the
    paper's full form, where each sublayer is a block. While w is 0 all weights are equal, and the
    model computes what Pre-LN does: a LayerNorm does not see the factor.
    """

    final_norm: ClassVar[bool] = True
    decayed: ClassVar[Mapping[str, bool]] = {"query": False, "norm_scale": False}

    @classmethod
    def start(cls, config: ModelConfig, stack: Stack, x: Float[Array, "B T D"], real: Bool[Array, "B T"]) -> Stream:
        count = -(-stack.num_sublayers // block_size(config, stack))
        return Stream(x, History(jnp.zeros((count, *x.shape), x.dtype), jnp.zeros((), jnp.int32)))

    @classmethod
    def finish(cls, config: ModelConfig, stack: Stack, stream: Stream) -> Float[Array, "B T D"]:
        return _attend_blocks(config, stack, stream, "output_weights")

    @classmethod
    def product_flops(cls, config: ModelConfig, stack: Stack) -> int:
        blocks = -(-stack.num_sublayers // block_size(config, stack))
        # Scores of blocks and stream, and the sum of blocks: for every sublayer, and at the end.
        return 2 * (stack.num_sublayers + 1) * (2 * blocks + 1) * config.embed_dim

    @classmethod
    def total(cls, stream: Stream) -> Float[Array, "B T D"]:
        return stream.carried.blocks.sum(axis=0) + stream.x

    @classmethod
    def skip_layer(cls, config: ModelConfig, stack: Stack, before: Stream, after: Stream) -> Stream:
        """The sublayers add nothing to their blocks."""
        for _ in SUBLAYERS[stack.name]:
            before = _add_output(config, stack, before, jnp.zeros_like(before.x))
        return before

    @nn.compact
    def __call__(self, stream: Stream, sublayer: Sublayer) -> Stream:
        h = _attend_blocks(self.config, self.stack, stream, "weights")
        return _add_output(self.config, self.stack, stream, sublayer(LayerNorm(self.config, name="norm")(h)))


class BlockWeights(Weights):
    """The softmax over the blocks, of which the last is the stream; fp32."""

    config: ModelConfig
    stack: Stack

    @nn.compact
    def __call__(self, stream: Stream) -> Float[Array, "all_blocks B T"]:
        width, history = (self.config.embed_dim,), stream.carried
        query = self.param("query", nn.with_logical_partitioning(nn.initializers.zeros, ("embed",)), width)
        scale = self.param("norm_scale", nn.with_logical_partitioning(nn.initializers.ones, ("embed",)), width)

        def score(block: Float[Array, "*blocks B T D"]) -> Float[Array, "*blocks B T"]:
            key, _ = normalize(block.astype(jnp.float32), self.config.layer_norm_epsilon, centre=False)
            return jnp.einsum("...D,D->...", key, jnp.asarray(query) * jnp.asarray(scale))

        is_complete = jnp.arange(len(history.blocks)) < -(-history.count // block_size(self.config, self.stack))
        earlier = jnp.where(is_complete[:, None, None], score(history.blocks), -jnp.inf)
        return jax.nn.softmax(jnp.concatenate([earlier, score(stream.x)[None]]), axis=0)


def block_size(config: ModelConfig, stack: Stack) -> int:
    """Sublayers in a block; the last one may have fewer."""
    return -(-stack.num_sublayers // min(config.residual_blocks, stack.num_sublayers))


def _attend_blocks(config: ModelConfig, stack: Stack, stream: Stream, name: str) -> Float[Array, "B T D"]:
    """The weighted sum of the blocks, by weights of that name in the module that calls."""
    weights = BlockWeights(config, stack, name=name)(stream).astype(stream.x.dtype)
    return jnp.einsum("NBT,NBTD->BTD", weights[:-1], stream.carried.blocks) + weights[-1][:, :, None] * stream.x


def _add_output(config: ModelConfig, stack: Stack, stream: Stream, output: Float[Array, "B T D"]) -> Stream:
    """The stream after a sublayer with this output. Where one begins a block, the stream is a whole
    block (or the stack's input) and joins the others.
    """
    (blocks, count), size = stream.carried, block_size(config, stack)
    place, begins = count // size, count % size == 0
    block = jnp.where(begins, stream.x, blocks[place])
    blocks = jax.lax.dynamic_update_index_in_dim(blocks, block, place, axis=0)
    x = jnp.where(begins, jnp.zeros_like(stream.x), stream.x) + output.astype(stream.x.dtype)
    return Stream(x, History(blocks, count + 1))
