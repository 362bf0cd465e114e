"""What a stack of layers is: where it stands in the model, how deep it is, and which sublayers its
layers have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TypeVar

from mhsh.config.schema import ModelConfig

# The sublayers of one layer, in the order in which the residual stream meets them, by stack; both
# also name the parameters: params[stack]["layers"][sublayer] is the sublayer, [sublayer +
# "_residual"] what joins it to the stream.
SUBLAYERS = {
    "encoder": ("attention", "feed_forward"),
    "decoder": ("self_attention", "cross_attention", "feed_forward"),
}


Value = TypeVar("Value")


def in_stack_order(by_stack: Mapping[str, Value]) -> dict[str, Value]:
    """The same, the encoder before the decoder: a pytree's dictionaries come back from jax in the
    order of their names.
    """
    return {stack: by_stack[stack] for stack in SUBLAYERS if stack in by_stack}


@dataclasses.dataclass(frozen=True)
class Stack:
    """The encoder or the decoder of a model, as the residual schemes need to know it."""

    name: str  # a key of SUBLAYERS
    num_layers: int
    decoder_layers: int  # of the decoder that reads this stack; 0 where none does

    @property
    def num_sublayers(self) -> int:
        """Over all layers of the stack."""
        return self.num_layers * len(SUBLAYERS[self.name])


def encoder_stack(config: ModelConfig) -> Stack:
    """The encoder of a model; with mlm and clm it is the whole model."""
    return Stack("encoder", config.num_layers, config.num_decoder_layers)


def decoder_stack(config: ModelConfig) -> Stack:
    """The decoder of a model with the translation objective."""
    return Stack("decoder", config.num_decoder_layers, 0)
