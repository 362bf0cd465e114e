"""The tensors of a Hugging Face BERT, and the parameters that they are here."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from mhsh.config.schema import ModelConfig
from mhsh.errors import UserError
from mhsh.interop import tensors
from mhsh.interop.tensors import LAYERS, Parameter, kernel_parameter, plain_parameter
from mhsh.models.parameters import KERNELS

# Before every tensor of the body (embeddings, encoder, pooler), unless the checkpoint is a body
# alone.
BODY_PREFIX = "bert."
# Tied to the token table and to cls.predictions.bias: no numbers of their own.
TIED_KERNEL, TIED_BIAS = "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"
OUTPUT_BIAS, TOKEN_TABLE = "cls.predictions.bias", "embeddings.word_embeddings.weight"
# By the first part of a parameter's path: what the tensors of a head begin with. The pooler belongs
# to the body.
HEADS = {
    "prediction": "cls.predictions.",
    "next_sentence": "cls.seq_relationship.",
    "classification": "classifier.",
    "span": "qa_outputs.",
}
POOLER = "pooler."
# Numbers that follow from the shapes; older versions of transformers saved them.
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")


def full_name(name: str) -> str:
    """The name with BODY_PREFIX where the tensor belongs to the body."""
    return name if name.startswith(tuple(HEADS.values())) else BODY_PREFIX + name


def parameters(model: ModelConfig) -> tuple[Parameter, ...]:
    """Every parameter of a Post-LN BERT with learned positions and token types, in the order of
    computation.

    Hugging Face numbers the two classes of the next-sentence head the other way: its 0 says that
    the second segment follows, here 1 does.
    """
    d = model.embed_dim
    sides = {name: weights.sides(model) for name, weights in KERNELS.items()}
    attention, layer = LAYERS + "attention/", "encoder.layer.{}."
    rows = [
        plain_parameter("embeddings/token", TOKEN_TABLE, model.vocab_size, d),
        plain_parameter("embeddings/position", "embeddings.position_embeddings.weight", model.max_positions, d),
        plain_parameter("embeddings/token_type", "embeddings.token_type_embeddings.weight", model.num_token_types, d),
        *_norm("embeddings/norm", "embeddings.LayerNorm", d),
        *_linear(attention + "query_", layer + "attention.self.query", *sides["query_kernel"]),
        *_linear(attention + "key_", layer + "attention.self.key", *sides["key_kernel"]),
        *_linear(attention + "value_", layer + "attention.self.value", *sides["value_kernel"]),
        *_linear(attention + "out_", layer + "attention.output.dense", *sides["out_kernel"]),
        *_norm(LAYERS + "attention_residual/norm", layer + "attention.output.LayerNorm", d),
        *_linear(LAYERS + "feed_forward/up_", layer + "intermediate.dense", *sides["up_kernel"]),
        *_linear(LAYERS + "feed_forward/down_", layer + "output.dense", *sides["down_kernel"]),
        *_norm(LAYERS + "feed_forward_residual/norm", layer + "output.LayerNorm", d),
    ]
    of_heads = {
        "prediction": [
            *_linear("prediction/", "cls.predictions.transform.dense", (d,), (d,)),
            *_norm("prediction/norm", "cls.predictions.transform.LayerNorm", d),
            plain_parameter("prediction/output_bias", OUTPUT_BIAS, model.vocab_size),
        ],
        "pooler": _linear("pooler/", "pooler.dense", (d,), (d,)),
        "next_sentence": [row._replace(is_flipped=True) for row in _linear("next_sentence/", "cls.seq_relationship", (d,), (2,))],
        "classification": _linear("classification/", "classifier", (d,), (model.num_classes,)),
        "span": _linear("span/", "qa_outputs", (d,), (2,)),
    }
    return (*rows, *(row for head in heads_of(model) for row in of_heads[head]))


def heads_of(model: ModelConfig) -> tuple[str, ...]:
    """The heads on the encoder, the pooler included, by their names in the parameter tree."""
    if model.objective == "mlm":
        return ("prediction", "pooler", "next_sentence") if model.next_sentence else ("prediction",)
    return {"classification": ("pooler", "classification"), "span": ("span",)}[model.objective]


def to_tensors(model: ModelConfig, params: Any) -> dict[str, np.ndarray]:
    """All tensors of a Post-LN BERT by name, none tied to another, of its parameter tree."""
    return {full_name(name): values for name, values in tensors.to_tensors(model, parameters(model), params).items()}


def canonical_names(names: Iterable[str]) -> dict[str, str]:
    """{name as `Parameter.name` has it: name in the file}: without BODY_PREFIX, LayerNorm's gamma
    and beta (of TensorFlow's checkpoints) as weight and bias; buffers are left out. Raises
    UserError where two tensors have one name.
    """
    canonical: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name.removeprefix(BODY_PREFIX))
        plain = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", plain)
        if plain in canonical:
            raise UserError(
                f"the checkpoint holds {canonical[plain]} and {name}, two tensors for one parameter; remove one of them"
            )
        if plain not in _BUFFERS:
            canonical[plain] = name
    return canonical


def _linear(path: str, name: str, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> list[Parameter]:
    return [kernel_parameter(path, name, inputs, outputs), plain_parameter(path + "bias", name + ".bias", *outputs)]


def _norm(path: str, name: str, width: int) -> list[Parameter]:
    return [plain_parameter(path + "/scale", name + ".weight", width), plain_parameter(path + "/bias", name + ".bias", width)]
