"""The parameters of a layer in few arrays, on their way through the scan over layers. The scan
slices each stacked array by itself, and adds to the gradient of each: dozens of operations a layer,
and on a GPU each is a kernel.

The vectors of a layer (biases, norms, omega) are one array. With our own kernels queries, keys and
values are one, too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict

from mhsh.config.schema import ModelConfig
from mhsh.models.attention import projects_jointly
from mhsh.models.devices import tensor_is_sharded
from mhsh.models.kernels.select import takes_kernels
from mhsh.models.parameters import PROJECTIONS, is_kernel

Path = tuple[str, ...]

_VECTORS: Path = ("params", "vectors")


class Packing(NamedTuple):
    """The parameters that are put together."""

    shapes: Mapping[Path, tuple[int, ...]]  # of one layer's vectors, in their order
    joint: tuple[Path, ...]  # attentions whose projections are one array

    def columns(self) -> dict[Path, int]:
        """The column at which each vector begins."""
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        return dict(zip(self.shapes, itertools.accumulate(sizes, initial=0), strict=False))


def packing(config: ModelConfig, layers: Any) -> Packing | None:
    """The packing of the parameters of all layers, stacked on axis 0. None where heads or
    feed-forward units are sharded: in one array their shards would be lost.
    """
    if tensor_is_sharded():
        return None
    flat: dict[Path, Any] = flatten_dict(layers)
    # By name, but the last bias of a sublayer is beside its residual scheme, which adds it.
    order = sorted(flat, key=lambda path: (path[0], path[-1] in ("out_bias", "down_bias"), path))
    # A scheme of a user's may have a matrix of another name, which is boxed where it is gathered.
    vectors = [path for path in order if not is_kernel(path[-1]) and not isinstance(flat[path], nn.meta.AxisMetadata)]
    shapes = {path: flat[path].shape[1:] for path in vectors}
    are_joint = config.remat_policy != "gathered_groups" and takes_kernels(config) and projects_jointly(config)
    return Packing(shapes, tuple(path[:-1] for path in flat if path[-1] == "query_kernel") if are_joint else ())


def pack(packing: Packing, variables: Any) -> Any:
    """The collection `params` of all layers with vectors [L,n] and joint projections
    [L,D,3,N,H].
    """
    flat: dict[Path, Any] = flatten_dict(variables)
    rows = [flat.pop(("params", *path)) for path in packing.shapes]
    flat[_VECTORS] = jnp.concatenate([leaf.reshape(len(leaf), -1) for leaf in rows], axis=1)
    for path in packing.joint:
        parts = [flat.pop(("params", *path, name)) for name in PROJECTIONS]
        flat["params", *path, "projection_kernel"] = jnp.stack(parts, axis=2)
    return unflatten_dict(flat)


def unpack(packing: Packing, variables: Any) -> Any:
    """The collection `params` of one layer as it was before `pack`."""
    flat: dict[Path, Any] = flatten_dict(variables)
    vectors, columns = flat.pop(_VECTORS), packing.columns()
    for path, shape in packing.shapes.items():
        flat["params", *path] = vectors[columns[path] : columns[path] + math.prod(shape)].reshape(shape)
    for path in packing.joint:
        parts = jnp.unstack(flat.pop(("params", *path, "projection_kernel")), axis=1)
        flat |= {("params", *path, name): part for name, part in zip(PROJECTIONS, parts, strict=True)}
    return unflatten_dict(flat)
