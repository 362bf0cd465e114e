"""The vectors of a layer (biases, norms, omega) as one array, on their way through the scan over
layers. The scan slices each stacked array by itself, and adds to the gradient of each: dozens of
operations a layer, as small as they are, and on a GPU each is a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from mhsh.models.devices import tensor_is_sharded

Path = tuple[str, ...]
Shapes = Mapping[Path, tuple[int, ...]]  # of one layer's vectors

_PACKED: Path = ("params", "vectors")


def vector_shapes(layers: Any) -> Shapes:
    """The shapes of the vectors of one layer, from the parameters of all, stacked on axis 0. None
    where heads or feed-forward units are sharded: in one array their shards would be lost.
    """
    if tensor_is_sharded():
        return {}
    flat: dict[Path, Any] = flatten_dict(layers)
    return {path: leaf.shape[1:] for path, leaf in flat.items() if not path[-1].endswith("kernel")}


def packed(variables: Any) -> Any:
    """The collection `params` with stacked vectors joined, [L,n]; kernels stay."""
    flat: dict[Path, Any] = flatten_dict(variables)
    kernels = {path: leaf for path, leaf in flat.items() if path[-1].endswith("kernel")}
    rows = [leaf.reshape(len(leaf), -1) for path, leaf in flat.items() if path not in kernels]
    return unflatten_dict(kernels | {_PACKED: jnp.concatenate(rows, axis=1)})


def unpacked(shapes: Shapes, variables: Any) -> Any:
    """The collection `params` of one layer as it was before `packed`."""
    flat: dict[Path, Any] = flatten_dict(variables)
    vectors, begin = flat.pop(_PACKED), 0
    for path, shape in shapes.items():
        end = begin + math.prod(shape)
        flat["params", *path] = vectors[begin:end].reshape(shape)
        begin = end
    return unflatten_dict(flat)
