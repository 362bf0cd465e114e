"""The tensors of a checkpoint and the parameters that they are here: which is which, how one is
laid out as the other, and the reading and writing of them all.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mhsh.config.schema import ModelConfig
from mhsh.interop.weights import SafetensorsFile

LAYERS = "encoder/layers/"


class Parameter(NamedTuple):
    """One parameter, of one layer where every layer has its own, and the tensor with the same
    numbers.
    """

    path: str  # in the parameter tree
    name: str  # of the tensor; {} is the layer's number
    shape: tuple[int, ...]
    num_inputs: int  # axes that are contracted, the first ones: a linear map, whose tensor is [outputs, inputs]; 0: laid out alike
    is_flipped: bool  # the last axis of the tensor runs the other way

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """One axis of all inputs and one of all outputs; one of a bias; a table is as it is."""
        if self.num_inputs:
            return (math.prod(self.shape[self.num_inputs :]), math.prod(self.shape[: self.num_inputs]))
        return self.shape if self.path.startswith("embeddings/") else (math.prod(self.shape),)

    @property
    def is_stacked(self) -> bool:
        """Whether there is one in every layer."""
        return self.path.startswith(LAYERS)

    def tensor_names(self, num_layers: int) -> Iterator[str]:
        """The tensor of every layer, or the only one; lazily, as config.json may name any."""
        return (self.name.format(layer) for layer in range(num_layers if self.is_stacked else 1))

    def to_tensor(self, values: np.ndarray) -> np.ndarray:
        """The parameter as the tensor."""
        values = values[..., ::-1] if self.is_flipped else values
        if self.num_inputs:
            values = values.reshape(self.tensor_shape[::-1]).T
        return np.ascontiguousarray(values.reshape(self.tensor_shape))

    def from_tensor(self, tensor: np.ndarray) -> np.ndarray:
        """The tensor as the parameter."""
        values = (tensor.T if self.num_inputs else tensor).reshape(self.shape)
        return values[..., ::-1] if self.is_flipped else values


def kernel_parameter(path: str, name: str, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Parameter:
    """A linear map without a bias."""
    return Parameter(path + "kernel", name + ".weight", inputs + outputs, len(inputs), is_flipped=False)


def plain_parameter(path: str, name: str, *shape: int) -> Parameter:
    """A table or a vector, which is laid out as its tensor is."""
    return Parameter(path, name, shape, 0, is_flipped=False)


class Tensors(NamedTuple):
    """The weights of a checkpoint, by the names that `Parameter.name` has."""

    names: Mapping[str, str]  # the names in the files
    files: Mapping[str, SafetensorsFile]  # by the names in the files

    def read(self, name: str) -> np.ndarray:
        """The tensor as fp32."""
        return self.files[self.names[name]].read(self.names[name])

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape; nothing is read."""
        return self.files[self.names[name]].shapes[self.names[name]]

    def equal(self, one: str, other: str) -> bool:
        """Whether two tensors hold the same numbers."""
        return self.shape(one) == self.shape(other) and np.array_equal(self.read(one), self.read(other))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportedCheckpoint:
    """A checkpoint, read."""

    model: ModelConfig
    params: dict[str, Any]  # nested as the model's own, fp32; without those of `fresh`
    fresh: tuple[str, ...] = ()  # paths of the parameters that the checkpoint does not give
    left_out: tuple[str, ...]  # tensors that no parameter of the model is made of
    architecture: str  # transformers' class, or what the tensors look like
    labels: tuple[str, ...] = ()  # of the classes by number; empty where there is no classification
    notes: tuple[str, ...] = ()  # what else should be known
    files: tuple[Path, ...]  # that the weights were read from


def to_tensors(model: ModelConfig, rows: Iterable[Parameter], params: Any) -> dict[str, np.ndarray]:
    """All tensors by name, of a parameter tree."""
    from flax.traverse_util import flatten_dict  # not above: it imports jax

    flat: Any = flatten_dict(params, sep="/")
    tensors: dict[str, np.ndarray] = {}
    for row in rows:
        values = np.asarray(flat[row.path])
        layers = values if row.is_stacked else [values]
        tensors |= {name: row.to_tensor(layer) for name, layer in zip(row.tensor_names(model.num_layers), layers, strict=True)}
    return tensors


def check_tensors(
    model: ModelConfig, rows: Iterable[Parameter], tensors: Tensors, others: set[str], full_name: Callable[[str], str] = str
) -> None:
    """Raises ValueError that names, by `full_name`, the first tensor that is missing, has another
    shape than config.json gives it, or is neither a parameter's nor one of `others`.
    """
    known = set(others)
    for row in rows:
        for name in row.tensor_names(model.num_layers):
            shape = tensors.shape(name) if name in tensors.names else None
            if shape != row.tensor_shape:
                how = "is missing" if shape is None else f"is {list(shape)}"
                shown = tensors.names.get(name, full_name(name))
                raise ValueError(f"the tensor {shown} {how}, by config.json it is {list(row.tensor_shape)}")
            known.add(name)
    if unexpected := sorted(tensors.names[name] for name in tensors.names.keys() - known):
        raise ValueError(f"by config.json no parameter is made of the tensor {unexpected[0]} ({len(unexpected)} such)")


def read_params(model: ModelConfig, rows: Iterable[Parameter], tensors: Tensors) -> dict[str, Any]:
    """The parameter tree, fp32."""
    from flax.traverse_util import unflatten_dict  # not above: it imports jax

    flat: dict[str, np.ndarray] = {}
    for row in rows:
        values = np.empty((model.num_layers if row.is_stacked else 1, *row.shape), np.float32)
        for number, name in enumerate(row.tensor_names(model.num_layers)):
            values[number] = row.from_tensor(tensors.read(name))
        flat[row.path] = values if row.is_stacked else values[0]
    return unflatten_dict(flat, sep="/")
