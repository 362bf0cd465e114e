"""Which tensor of a Hugging Face BERT is which parameter here, and how the one is laid out as the
other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from mhsh.config.schema import ModelConfig
from mhsh.errors import UserError

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
_LAYERS = "encoder/layers/"


class Parameter(NamedTuple):
    """One parameter, of one layer where every layer has its own, and the tensor with the same
    numbers.
    """

    path: str  # in the parameter tree
    name: str  # of the tensor, without BODY_PREFIX; {} is the layer's number
    shape: tuple[int, ...]
    num_inputs: int  # axes that are contracted, the first ones: a linear map, whose tensor is [outputs, inputs]; 0: laid out alike
    flipped: bool  # the last axis of the tensor runs the other way

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """The tensor's shape: one axis of all inputs and one of all outputs; a bias has one axis; a
        table is as it is.
        """
        if self.num_inputs:
            return (math.prod(self.shape[self.num_inputs :]), math.prod(self.shape[: self.num_inputs]))
        return self.shape if self.name.endswith("embeddings.weight") else (math.prod(self.shape),)

    @property
    def full_name(self) -> str:
        """The tensor's name with BODY_PREFIX where it belongs to the body."""
        return self.name if self.name.startswith(tuple(HEADS.values())) else BODY_PREFIX + self.name

    @property
    def is_stacked(self) -> bool:
        """Whether there is one in every layer."""
        return self.path.startswith(_LAYERS)

    def to_tensor(self, values: np.ndarray) -> np.ndarray:
        """The parameter as the tensor."""
        values = values[..., ::-1] if self.flipped else values
        if self.num_inputs:
            values = values.reshape(self.tensor_shape[::-1]).T
        return np.ascontiguousarray(values.reshape(self.tensor_shape))

    def from_tensor(self, tensor: np.ndarray) -> np.ndarray:
        """The tensor as the parameter."""
        values = (tensor.T if self.num_inputs else tensor).reshape(self.shape)
        return values[..., ::-1] if self.flipped else values


def parameters(model: ModelConfig) -> tuple[Parameter, ...]:
    """Every parameter of a Post-LN BERT with learned positions and token types, in the order of
    computation.

    Hugging Face numbers the two classes of the next-sentence head the other way: its 0 says that
    the second segment follows, here 1 does.
    """
    d, f, heads = model.embed_dim, model.mlp_dim, (model.num_heads, model.head_dim)
    attention, layer = _LAYERS + "attention/", "encoder.layer.{}."
    rows = [
        _plain("embeddings/token", TOKEN_TABLE, model.vocab_size, d),
        _plain("embeddings/position", "embeddings.position_embeddings.weight", model.max_positions, d),
        _plain("embeddings/token_type", "embeddings.token_type_embeddings.weight", model.num_token_types, d),
        *_norm("embeddings/norm", "embeddings.LayerNorm", d),
        *_linear(attention + "query_", layer + "attention.self.query", (d,), heads),
        *_linear(attention + "key_", layer + "attention.self.key", (d,), heads),
        *_linear(attention + "value_", layer + "attention.self.value", (d,), heads),
        *_linear(attention + "out_", layer + "attention.output.dense", heads, (d,)),
        *_norm(_LAYERS + "attention_residual/norm", layer + "attention.output.LayerNorm", d),
        *_linear(_LAYERS + "feed_forward/up_", layer + "intermediate.dense", (d,), (f,)),
        *_linear(_LAYERS + "feed_forward/down_", layer + "output.dense", (f,), (d,)),
        *_norm(_LAYERS + "feed_forward_residual/norm", layer + "output.LayerNorm", d),
    ]
    of_heads = {
        "prediction": [
            *_linear("prediction/", "cls.predictions.transform.dense", (d,), (d,)),
            *_norm("prediction/norm", "cls.predictions.transform.LayerNorm", d),
            _plain("prediction/output_bias", OUTPUT_BIAS, model.vocab_size),
        ],
        "pooler": _linear("pooler/", "pooler.dense", (d,), (d,)),
        "next_sentence": [row._replace(flipped=True) for row in _linear("next_sentence/", "cls.seq_relationship", (d,), (2,))],
        "classification": _linear("classification/", "classifier", (d,), (model.num_classes,)),
        "span": _linear("span/", "qa_outputs", (d,), (2,)),
    }
    return (*rows, *(row for head in heads_of(model) for row in of_heads[head]))


def heads_of(model: ModelConfig) -> tuple[str, ...]:
    """What stands on the encoder, the pooler included, by the names in the parameter tree."""
    if model.objective == "mlm":
        return ("prediction", "pooler", "next_sentence") if model.next_sentence else ("prediction",)
    return {"classification": ("pooler", "classification"), "span": ("span",)}[model.objective]


def named_tensors(model: ModelConfig, rows: Iterable[Parameter]) -> Iterator[tuple[str, Parameter]]:
    """Name (without BODY_PREFIX) and parameter of every tensor, layer by layer where there are
    layers.
    """
    rows = tuple(rows)
    yield from ((row.name, row) for row in rows if not row.is_stacked)
    for layer in range(model.num_layers):
        yield from ((row.name.format(layer), row) for row in rows if row.is_stacked)


def to_tensors(model: ModelConfig, params: Any) -> dict[str, np.ndarray]:
    """All tensors of a Post-LN BERT by name, of its parameter tree; none of them is tied to
    another.
    """
    from flax.traverse_util import flatten_dict  # not above: it imports jax

    values: Any = flatten_dict(params, sep="/")
    tensors: dict[str, np.ndarray] = {}
    for row in parameters(model):
        if row.is_stacked:
            tensors |= {row.full_name.format(layer): row.to_tensor(values[row.path][layer]) for layer in range(model.num_layers)}
        else:
            tensors[row.full_name] = row.to_tensor(values[row.path])
    return tensors


def canonical_names(names: Iterable[str]) -> dict[str, str]:
    """{name as `Parameter.name` has it: name in the file}: without BODY_PREFIX, LayerNorm's gamma
    and beta (of TensorFlow's checkpoints) as weight and bias; buffers are left out.

    Raises:
      UserError: two tensors have one name.
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
    kernel = Parameter(path + "kernel", name + ".weight", inputs + outputs, len(inputs), flipped=False)
    return [kernel, _plain(path + "bias", name + ".bias", *outputs)]


def _norm(path: str, name: str, width: int) -> list[Parameter]:
    return [_plain(path + "/scale", name + ".weight", width), _plain(path + "/bias", name + ".bias", width)]


def _plain(path: str, name: str, *shape: int) -> Parameter:
    return Parameter(path, name, shape, 0, flipped=False)
