"""The batch and the outputs of every model, and the stacks of its layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import numpy as np
from jaxtyping import Array, Float

from mhsh.config.schema import ModelConfig

Batch = Mapping[str, Array | np.ndarray]  # numpy where nothing is compiled yet


class Outputs(NamedTuple):
    """The outputs of a model for a batch; logits are fp32."""

    # [B,P,V] at the predicted positions (mlm) or at all of them (clm, translation); [B,C] of a row
    # (classification); [B,2,T] of the first and the last token of an answer (span)
    logits: Float[Array, "B *predicted V"]
    next_sentence: Float[Array, "B 2"] | None  # class 1: the second segment really follows the first


# The sublayers of one layer by stack, in the order of the residual stream. Both name the parameters
# too: params[stack]["layers"][sublayer] are the sublayer's, [sublayer + "_residual"] those of its
# residual scheme.
SUBLAYERS = {
    "encoder": ("attention", "feed_forward"),
    "decoder": ("self_attention", "cross_attention", "feed_forward"),
}


Value = TypeVar("Value")


def sort_stacks(by_stack: Mapping[str, Value]) -> dict[str, Value]:
    """`by_stack` with the encoder first: jax returns dictionaries in the order of their names."""
    return {stack: by_stack[stack] for stack in SUBLAYERS if stack in by_stack}


@dataclasses.dataclass(frozen=True)
class Stack:
    """The encoder or the decoder of a model, as far as the residual schemes need to know it. Layers
    are counted as a token passes them: with model.loops each of them so many times.
    """

    name: str  # a key of SUBLAYERS
    num_layers: int
    decoder_layers: int  # of the decoder that reads this stack, or 0

    @property
    def num_sublayers(self) -> int:
        """The sublayers of all layers of the stack."""
        return self.num_layers * len(SUBLAYERS[self.name])


def encoder_stack(config: ModelConfig) -> Stack:
    """The encoder of a model; without a decoder it is the whole model."""
    return Stack("encoder", config.loops * config.num_layers, config.loops * config.num_decoder_layers)


def decoder_stack(config: ModelConfig) -> Stack:
    """The decoder of a model with the translation objective."""
    return Stack("decoder", config.loops * config.num_decoder_layers, 0)
