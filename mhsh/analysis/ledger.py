"""The cost and shape ledger: parameters by part and FLOPs, from the config alone."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
from flax import linen as nn

from mhsh.config import Config, ModelConfig
from mhsh.models.bert import build_model

# Dense bf16 peak by jax's device_kind, FLOP/s, from the vendors' public data sheets. Where a kind is absent, no MFU is shown.
PEAK_FLOPS = {
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
}

# A training step is one forward pass and a backward pass of twice its cost; recomputation is not useful work.
STEP_OVER_FORWARD = 3


class Flops(NamedTuple):
    """Forward FLOPs of one row: matrix products only, a multiply and an add counted as two."""

    attention_projections: int
    attention_scores: int
    feed_forward: int
    heads: int

    @property
    def encoder(self) -> int:
        """The layers without embeddings and heads."""
        return self.attention_projections + self.attention_scores + self.feed_forward

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)


def forward_flops(model: ModelConfig, length: int, predicted: int) -> Flops:
    """FLOPs of one row of `length` tokens of which `predicted` positions are projected on the vocabulary."""
    d, n, h, f, layers = model.embed_dim, model.num_heads, model.head_dim, model.mlp_dim, model.num_layers
    pooler = 2 * d * d + 2 * d * 2 if model.next_sentence else 0
    return Flops(
        attention_projections=layers * length * 4 * 2 * d * n * h,
        attention_scores=layers * length * length * 2 * 2 * n * h,
        feed_forward=layers * length * 2 * 2 * d * f,
        heads=predicted * (2 * d * d + 2 * d * model.vocab_size) + pooler,
    )


def row_flops(config: Config) -> Flops:
    """Forward FLOPs of one training row of this config."""
    length = config.data.sequence_length
    return forward_flops(config.model, length, config.data.max_predictions if config.model.objective == "mlm" else length)


def step_flops(config: Config) -> int:
    """FLOPs of one optimiser step over the global batch, forward and backward, without recomputation."""
    return STEP_OVER_FORWARD * row_flops(config).total * config.train.batch_size


def parameter_shapes(model: ModelConfig) -> Any:
    """The parameter tree as shapes and dtypes; nothing is allocated."""
    batch = {key: jax.ShapeDtypeStruct((1, 1), "int32") for key in _MODEL_INPUTS}
    module = build_model(model)
    variables = jax.eval_shape(lambda batch: module.init(jax.random.key(0), batch, deterministic=True), batch)
    return nn.unbox(variables)["params"]


def parameter_counts(model: ModelConfig) -> dict[str, int]:
    """Parameters by part: `encoder` (weights, biases, LayerNorms), `omega` (Admin's, counted apart), `embeddings`,
    `heads` (prediction and next sentence), `total` (all, omega included).
    """
    params = parameter_shapes(model)
    omega = sum(
        math.prod(leaf.shape)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params["encoder"])
        if getattr(path[-1], "key", None) == "omega"
    )
    counts = {
        "encoder": _size(params["encoder"]) - omega,
        "omega": omega,
        "embeddings": _size(params["embeddings"]),
        "heads": sum(_size(part) for name, part in params.items() if name not in ("encoder", "embeddings")),
    }
    return counts | {"total": sum(counts.values())}


_MODEL_INPUTS = ("inputs", "inputs_position", "inputs_segmentation", "token_types", "targets_position")


def _size(tree: Any) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))
