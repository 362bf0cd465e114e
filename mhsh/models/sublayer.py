"""A sublayer as a residual scheme calls it: whole, or in the parts that a kernel puts together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from flax import linen as nn
from jaxtyping import Array, Float

from mhsh.config.schema import ModelConfig
from mhsh.models.dropout import Seed, dropout

# A sublayer f with its dropout.
Sublayer = Callable[[Float[Array, "B T D"]], Float[Array, "B T D"]]


class Branch(NamedTuple):
    """The addition of a sublayer to the stream, in the parts that a kernel puts together."""

    product: Float[Array, "B T D"]  # with the sublayer's last kernel
    bias: Float[Array, " D"]  # as the parameter is
    seed: Seed  # of the dropout that follows; None: nothing is dropped

    def output(self, rate: float) -> Float[Array, "B T D"]:
        """The whole addition, with dropout at this rate."""
        return dropout(self.product + self.bias.astype(self.product.dtype), rate, self.seed)


class SublayerModule(nn.Module):
    """Attention or feed-forward. A derived class computes it in `branch`, of the same arguments."""

    config: ModelConfig

    def __call__(self, *arguments: Any) -> Float[Array, "B T D"]:
        return self.branch(*arguments).output(self.config.hidden_dropout)


@dataclasses.dataclass(frozen=True)
class ModuleSublayer:
    """The sublayer that a module is, with what it reads besides the stream."""

    module: SublayerModule
    arguments: tuple[Any, ...]
    drops: bool  # whether dropout is on

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        return self.module(x, *self.arguments)

    def branch(self, x: Float[Array, "B T D"]) -> Branch:
        """The addition of the sublayer to the stream, in parts."""
        return self.module.branch(x, *self.arguments)
