"""Parameters and FLOPs of a model, from its config alone."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
from flax import linen as nn

from mhsh.config.entries import SCHEMES, UPDATE_RULES
from mhsh.config.schema import Config, DataConfig, ModelConfig, TranslationDataConfig
from mhsh.config.shapes import feed_forward_kernels
from mhsh.models.build import boxed_parameters
from mhsh.models.parameters import parameter_path
from mhsh.models.types import SUBLAYERS, decoder_stack, encoder_stack

# Dense bf16 peak by jax's device_kind, FLOP/s, from the vendors' public data sheets. Where a kind
# is absent, no MFU is shown.
PEAK_FLOPS = {
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA B200": 2250e12,
    "NVIDIA GB200": 2500e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU7x": 1153.5e12,  # half a chip
}

# A backward pass costs twice a forward pass; recomputation is not counted.
STEP_OVER_FORWARD = 3


class Flops(NamedTuple):
    """Forward FLOPs of one row: matrix products only, a multiply and an add counted as two."""

    attention_projections: int
    attention_scores: int
    feed_forward: int
    residual: int  # of schemes that weigh several streams or blocks
    heads: int

    @property
    def total(self) -> int:
        """The FLOPs of layers and heads."""
        return sum(self)


def forward_flops(model: ModelConfig, length: int, predicted: int) -> Flops:
    """FLOPs of one row of `length` tokens, with logits at `predicted` positions.

    For translation: `length` source tokens and `predicted` target tokens. A causal mask saves
    nothing, as all scores are computed.
    """
    source, target, width, kv_width = length, predicted, model.num_heads * model.head_dim, model.kv_heads * model.head_dim
    encoder, decoder = model.loops * model.num_layers, model.loops * model.num_decoder_layers
    # A decoder layer projects targets four times in self-attention and twice in cross-attention,
    # the sources twice.
    projections = encoder * source * 2 * (width + kv_width) + decoder * (target * 6 + source * 2) * width
    pairs = encoder * source * source + decoder * target * (target + source)
    scheme, stacks = SCHEMES[model.residual].residual, [(encoder_stack(model), source)]
    stacks += [(decoder_stack(model), target)] if decoder else []
    return Flops(
        attention_projections=projections * 2 * model.embed_dim,
        attention_scores=pairs * 2 * 2 * width,  # a query times a key, and the weighted value
        feed_forward=(encoder * source + decoder * target) * feed_forward_kernels(model) * 2 * model.embed_dim * model.mlp_dim,
        residual=sum(scheme.product_flops(model, stack) * tokens for stack, tokens in stacks),
        heads=_head_flops(model, length, predicted),
    )


def _head_flops(model: ModelConfig, length: int, predicted: int) -> int:
    d = model.embed_dim
    pooler, vocabulary = 2 * d * d, 2 * d * model.vocab_size
    if model.objective == "classification":
        return pooler + 2 * d * model.num_classes
    if model.objective == "span":
        return length * 2 * d * 2
    if model.objective == "translation" or model.head != "bert":
        return predicted * vocabulary
    return predicted * (2 * d * d + vocabulary) + (pooler + 2 * d * 2 if model.next_sentence else 0)


def row_flops(config: Config) -> Flops:
    """Forward FLOPs of one training row (of both sides, in translation)."""
    data = config.data
    masked = isinstance(data, DataConfig) and config.model.objective == "mlm"
    return forward_flops(config.model, data.sequence_length, data.max_predictions if masked else data.sequence_length)


def row_tokens(config: Config) -> int:
    """Positions of one training row, counting both sides of a translation."""
    return config.data.sequence_length * (2 if isinstance(config.data, TranslationDataConfig) else 1)


def step_flops(config: Config) -> int:
    """FLOPs of one optimiser step over the global batch, without recomputation."""
    update = UPDATE_RULES[config.optimizer.name].flops(config)
    return STEP_OVER_FORWARD * row_flops(config).total * config.train.batch_size + update


class RunCost(NamedTuple):
    """The figures of one run of train.num_steps steps."""

    parameters: int  # all of them, omega included
    tokens: int  # positions in its training rows, padding included, of both sides in translation
    flops: int  # forward and backward, without recomputation and validation


def run_cost(config: Config) -> RunCost:
    """The cost of one run of `config`, computed from the config alone."""
    steps = config.train.num_steps
    return RunCost(
        parameters=parameter_counts(config.model)["total"],
        tokens=steps * config.train.batch_size * row_tokens(config),
        flops=steps * step_flops(config),
    )


def parameter_shapes(model: ModelConfig) -> Any:
    """The parameter tree as shapes and dtypes; nothing is allocated."""
    return nn.unbox(boxed_parameters(model))


def parameter_counts(model: ModelConfig) -> dict[str, int]:
    """Parameters by part.

    `encoder` and `decoder`: weights, biases and LayerNorms. `omega`: Admin's, of both.
    `embeddings`: with the token table, also where it is the output matrix. `heads`: all others.
    `total`: the sum.
    """
    counts = dict.fromkeys((*SUBLAYERS, "omega", "embeddings", "heads"), 0)
    for path, leaf in jax.tree_util.tree_leaves_with_path(parameter_shapes(model)):
        part, *_, name = parameter_path(path).split("/")
        kind = "omega" if name == "omega" else part
        counts[kind if kind in counts else "heads"] += math.prod(leaf.shape)
    return counts | {"total": sum(counts.values())}
