"""How the output of a sublayer is added to the residual stream: what all residual schemes have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from mhsh.config.schema import ModelConfig
from mhsh.models.kernels.residual import add_and_norm, has_copy, join_obstacle
from mhsh.models.kernels.select import takes_kernels
from mhsh.models.layers import LayerNorm
from mhsh.models.sublayer import ModuleSublayer, Sublayer
from mhsh.models.types import Stack


class Stream(NamedTuple):
    """The state between two sublayers: the stream, and what a scheme carries besides."""

    x: Float[Array, "B T *streams D"]
    carried: Any  # a pytree


class Residual(nn.Module):
    """A residual scheme: `__call__` adds one sublayer f to the stream. `add_residual` gives it its
    name; nothing else names it.
    """

    config: ModelConfig
    stack: Stack  # of the sublayer
    sublayer: str  # its name in SUBLAYERS
    fused: ClassVar[bool] = False  # whether kernels add to the stream; a derived class says so itself
    final_norm: ClassVar[bool] = False  # whether a LayerNorm follows the last layer
    head_norms: ClassVar[bool] = False  # whether queries, keys and values have one
    decayed: ClassVar[Mapping[str, bool]] = {}  # whether each parameter but a LayerNorm's has weight decay

    @classmethod
    def start(cls, config: ModelConfig, stack: Stack, x: Float[Array, "B T D"], real: Bool[Array, "B T"]) -> Stream:
        """The stream as it enters the first sublayer."""
        return Stream(x, None)

    @classmethod
    def is_fused(cls, config: ModelConfig) -> bool:
        """Whether kernels add to the stream (mhsh/models/kernels)."""
        return takes_kernels(config) and not cls.kernel_obstacle(config)

    @classmethod
    def kernel_obstacle(cls, config: ModelConfig) -> str:
        """The reason why no kernel adds to the stream of a model with this scheme; empty: a kernel
        does.
        """
        return join_obstacle(config) if vars(cls).get("fused") else f"model.residual = {config.residual} has no kernel"

    @classmethod
    def finish(cls, config: ModelConfig, stack: Stack, stream: Stream) -> Float[Array, "B T D"]:
        """The output of the last sublayer, before the final LayerNorm. It may have parameters: it
        is called in a compact method of the stack.
        """
        return stream.x

    @classmethod
    def total(cls, stream: Stream) -> Float[Array, "B T *streams D"]:
        """The stream as a probe sees it, with all that sublayers have added."""
        return stream.x

    @classmethod
    def skip_layer(cls, config: ModelConfig, stack: Stack, before: Stream, after: Stream) -> Stream:
        """The stream after a layer that it passes by; `after` is the one that it would leave."""
        return Stream(before.x, after.carried)

    @classmethod
    def init_gain(cls, stack: Stack) -> float:
        """The factor on the initial value, output and feed-forward kernels of a stack."""
        return 1.0

    @classmethod
    def product_flops(cls, config: ModelConfig, stack: Stack) -> int:
        """FLOPs of the matrix products with which a token's stream is added up in a whole stack."""
        return 0

    @classmethod
    def layer_scales(cls, config: ModelConfig) -> tuple[float, float] | None:
        """The optimizer's factors on the layers' gradients and on their updates; None: none."""
        return None


class Weights(nn.Module):
    """Weights, computed from the stream, with which a scheme adds up its parts. With them held
    constant a stream is linear in what sublayers add to it.
    """


class NormedSum(Residual):
    """LN(w * x + f(x)), w a number or [D]. The next sublayer reads the copy that a kernel makes."""

    @classmethod
    def start(cls, config: ModelConfig, stack: Stack, x: Float[Array, "B T D"], real: Bool[Array, "B T"]) -> Stream:
        return Stream(x, x.astype(config.compute_dtype) if cls.is_fused(config) and has_copy(config) else None)

    @classmethod
    def fixed_weight(cls, stack: Stack) -> float | None:
        """w; None: it is omega, a vector that is trained."""
        return 1.0

    def setup(self) -> None:
        self.norm = LayerNorm(self.config)

    def __call__(self, stream: Stream, sublayer: Sublayer) -> Stream:
        weight = self.fixed_weight(self.stack)
        assert weight is not None, "a scheme that trains omega says so itself"
        return self.add_sublayer(weight, stream, sublayer)

    def add_sublayer(self, weight: Float[Array, " D"] | float, stream: Stream, sublayer: Sublayer) -> Stream:
        """The stream after a sublayer."""
        x, norm, config = stream.x, self.norm, self.config
        if not self.is_fused(config):
            return Stream(norm(jnp.asarray(weight, x.dtype) * x + sublayer(x).astype(x.dtype)), None)
        assert isinstance(sublayer, ModuleSublayer), "only training has kernels"
        read = stream.carried if has_copy(config) else x
        y, copy = add_and_norm(config, x, read, sublayer.branch(read), norm.scale, norm.bias, weight, normed_stream=True)
        return Stream(y, copy if has_copy(config) else None)
