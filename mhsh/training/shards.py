"""Each device's part of a step: whole weights, its rows of the batch, and what is added up.

The weights are gathered once, before the first layer, and the gradients are added up once, after
the last. XLA's partitioner alone does both for each layer inside the loops over layers: thousands
of collectives for a deep model, each of which waits for the slowest device. With the remat policy
`gathered_groups` both are done for each group of layers, so that no device has all weights or all
gradients at once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import struct
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec
from jaxtyping import Array

from mhsh.config.schema import ModelConfig
from mhsh.models.build import boxed_parameters
from mhsh.models.devices import BATCH_AXES, TENSOR_AXIS, batch_is_sharded, current_platform, tensor_is_sharded
from mhsh.models.parameters import is_kernel, parameter_path
from mhsh.models.types import Batch
from mhsh.training.sharding import DATA_AXIS, FSDP_AXIS, ROWS, axis_rules, matrix_mask, partition_specs

# A TPU holds the last axis of an array in lanes, so many at a time.
_LANES = 128


def map_shards(
    function: Callable[..., Any], model: ModelConfig, out_specs: Any, gradient_dtype: str = "compute"
) -> Callable[..., Any]:
    """`function(params, batch, *replicated)` of whole parameters and each device's rows of the
    batch, on the current mesh (jax.set_mesh); `replicated` is the same on all devices.

    `params` are sharded as `manual_specs` says. `out_specs` are as in jax.shard_map: ROWS for what
    has a row for each row of the batch, PartitionSpec() for what is the same on all devices. Where
    the batch is in one piece, this is `function`. With `gathered_groups` the matrices are boxed,
    and their gradients are added up in `gradient_dtype` (see train.gradient_dtype).
    """

    def run(params: Any, batch: Batch, *replicated: Any) -> Any:
        mesh = jax.sharding.get_abstract_mesh()
        if mesh.empty or math.prod(mesh.shape[axis] for axis in BATCH_AXES) == 1:
            return function(params, batch, *replicated)
        tensor_by_xla = tensor_is_sharded()  # over `tensor` alone, which stays its own; else no axis is left to it
        rules = [(name, None if name == "batch" else axes) for name, axes in axis_rules(model)] if tensor_by_xla else []
        specs = manual_specs(model)

        def run_shard(shards: Any, batch: Batch, *replicated: Any) -> Any:
            if model.remat_policy == "gathered_groups":
                params = _box_shards(model, shards, specs, gradient_dtype)
            else:
                params = jax.tree.map(lambda shard, spec: _all_gather(shard, _fsdp_axis(spec)), cast_kernels(model, shards), specs)
            with nn.logical_axis_rules(rules):
                return function(params, batch, *replicated)

        return jax.shard_map(
            run_shard,
            in_specs=(specs, ROWS, *(PartitionSpec() for _ in replicated)),
            out_specs=out_specs,
            axis_names=set(BATCH_AXES if tensor_by_xla else mesh.axis_names),
            check_vma=False,  # with it, jax would add up each gradient where it arises
        )(params, batch, *replicated)

    return run


def manual_specs(model: ModelConfig) -> Any:
    """The PartitionSpecs of the parameters on the axes `data` and `fsdp` of the current mesh."""
    shape = dict(jax.sharding.get_abstract_mesh().shape)
    if not shape:
        return PartitionSpec()
    specs = partition_specs(boxed_parameters(model), shape, model)
    return jax.tree.map(lambda spec: PartitionSpec(*(None if axis == TENSOR_AXIS else axis for axis in spec)), specs)


def psum_batch(tree: Any) -> Any:
    """The sums of small arrays of one dtype over the shards of the batch, in one collective. Called
    in the function of `map_shards`.
    """
    if not batch_is_sharded():
        return tree
    flat, unravel = ravel_pytree(tree)
    return unravel(jax.lax.psum(flat, BATCH_AXES))


@functools.partial(jax.named_call, name="add_up_gradients")
def psum_gradients(gradients: Any, model: ModelConfig, gradient_dtype: str) -> Any:
    """The sums of fp32 gradients by whole parameters over the shards of the batch, sharded as the
    parameters. Called in the function of `map_shards`.

    Kernels are added up in `gradient_dtype` (train.gradient_dtype), all else in fp32. All vectors
    share a collective.
    """
    if not batch_is_sharded():
        return gradients
    dtype = _gradient_dtype(model, gradient_dtype)
    are_matrices = jax.tree.leaves(matrix_mask(boxed_parameters(model)))

    def sum_matrix(path: tuple[Any, ...], gradient: Array | BoxedShard, spec: PartitionSpec) -> Array:
        if isinstance(gradient, BoxedShard):
            return gradient.value
        return _psum_shard(gradient.astype(dtype) if is_kernel(parameter_path(path)) else gradient, _fsdp_axis(spec))

    paths_and_leaves, structure = jax.tree_util.tree_flatten_with_path(gradients, is_leaf=lambda leaf: isinstance(leaf, BoxedShard))
    leaves = [leaf for _, leaf in paths_and_leaves]
    vectors = [leaf for leaf, is_matrix in zip(leaves, are_matrices, strict=True) if not is_matrix]
    # In one array, what is sharded over `tensor` would lose its shards.
    sums = iter(jax.lax.psum(vectors, BATCH_AXES) if tensor_is_sharded() else psum_batch(vectors))
    specs = jax.tree.leaves(manual_specs(model))
    return structure.unflatten(
        sum_matrix(path, leaf, spec) if is_matrix else next(sums)
        for (path, leaf), spec, is_matrix in zip(paths_and_leaves, specs, are_matrices, strict=True)
    )


def cast_kernels(model: ModelConfig, params: Any) -> Any:
    """The parameters with kernels in model.compute_dtype, in which alone they are used."""

    def cast(path: tuple[Any, ...], leaf: Array, is_matrix: bool) -> Array:
        return leaf.astype(model.compute_dtype) if is_matrix and is_kernel(parameter_path(path)) else leaf

    return jax.tree_util.tree_map_with_path(cast, params, matrix_mask(boxed_parameters(model)))


class BoxedShard(struct.PyTreeNode, nn.meta.AxisMetadata[Array]):
    """A device's shard of a matrix, which becomes whole where flax unboxes it. Its gradient is the
    sum over all shards of the batch, a shard too.
    """

    value: Any  # an array; jax also rebuilds the tree with placeholders
    axis: int | None = struct.field(pytree_node=False)  # that is sharded, counted from the last: -1, -2, ...
    dtype: str = struct.field(pytree_node=False)  # in which it is gathered
    gradient_dtype: str = struct.field(pytree_node=False)  # in which gradients are added up

    def unbox(self) -> Array:
        """The whole matrix, or those of several layers."""
        return _unbox(self.value, self.axis, self.dtype, self.gradient_dtype)

    def replace_boxed(self, val: Any) -> Any:
        return self.replace(value=val)

    def add_axis(self, index: int, params: Any) -> Any:
        return self

    def remove_axis(self, index: int, params: Any) -> Any:
        return self


def _box_shards(model: ModelConfig, shards: Any, specs: Any, gradient_dtype: str) -> Any:
    """Parameters whose matrices are boxed as BoxedShards."""

    def box(path: tuple[Any, ...], shard: Array, spec: PartitionSpec, is_matrix: bool) -> Array | BoxedShard:
        if not is_matrix:
            return shard
        dtypes = ("float32", "float32")
        if is_kernel(parameter_path(path)):
            dtypes = model.compute_dtype, _gradient_dtype(model, gradient_dtype)
        axis = _fsdp_axis(spec)
        return BoxedShard(shard, None if axis is None else axis - shard.ndim, *dtypes)

    return jax.tree_util.tree_map_with_path(box, shards, specs, matrix_mask(boxed_parameters(model)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _unbox(shard: Array, axis: int | None, dtype: str, gradient_dtype: str) -> Array:
    return _all_gather(shard.astype(dtype), axis)


def _unbox_forward(shard: Array, axis: int | None, dtype: str, gradient_dtype: str) -> tuple[Array, None]:
    return _unbox(shard, axis, dtype, gradient_dtype), None


def _unbox_backward(axis: int | None, dtype: str, gradient_dtype: str, _: None, gradient: Array) -> tuple[Array]:
    return (_psum_shard(gradient.astype(gradient_dtype), axis),)


_unbox.defvjp(_unbox_forward, _unbox_backward)


@functools.partial(jax.named_call, name="gather_weights")
def _all_gather(shard: Array, axis: int | None) -> Array:
    """The whole of a matrix that is sharded along `axis`."""
    if axis is None:
        return shard
    axis %= shard.ndim
    if axis < shard.ndim - 1 or shard.shape[axis] % _LANES == 0:
        return jax.lax.all_gather(shard, FSDP_AXIS, axis=axis, tiled=True)
    # Rows of a part of the lanes would travel padded.
    parts = jax.lax.all_gather(shard.reshape(-1), FSDP_AXIS).reshape(-1, *shard.shape)
    return jnp.moveaxis(parts, 0, -2).reshape(*shard.shape[:-1], -1)


@functools.partial(jax.named_call, name="add_up_gradients")
def _psum_shard(gradient: Array, axis: int | None) -> Array:
    """This device's shard, along `axis`, of the sum over the shards of the batch, in fp32."""
    if axis is None:
        return jax.lax.psum(gradient, BATCH_AXES).astype("float32")
    # First within `fsdp`: what the next sum sends is a shard.
    return jax.lax.psum(_psum_scatter(gradient, axis % gradient.ndim), DATA_AXIS).astype("float32")


def _psum_scatter(gradient: Array, axis: int) -> Array:
    """This device's part, along `axis`, of the sum over `fsdp`."""
    if axis == 0:
        return _reduce_scatter(gradient)
    # The TPU compiler scatters whole rows of lanes, or else sums everything.
    shards, front = jax.lax.axis_size(FSDP_AXIS), jnp.moveaxis(gradient, axis, 0)
    parts = front.reshape(shards, -1)
    size = parts.shape[1]
    padded = jnp.pad(parts, ((0, 0), (0, -size % _LANES)))
    shard = _reduce_scatter(padded.reshape(shards, -1, _LANES)).reshape(-1)[:size]
    return jnp.moveaxis(shard.reshape(-1, *front.shape[1:]), 0, axis)


def _reduce_scatter(gradient: Array) -> Array:
    """This device's part of the first axis of the sum over `fsdp`.

    In two stages where `fsdp` is all devices of a TPU slice. The compiler (libtpu 0.0.45) would
    turn one over all of them into an all-reduce, which sends twice as much.
    """
    mesh, platform = jax.sharding.get_abstract_mesh(), current_platform()
    size = mesh.shape[FSDP_AXIS]
    inner = max(divisor for divisor in range(1, math.isqrt(size) + 1) if size % divisor == 0)
    stages: list[list[list[int]] | None] = [None]
    if platform == "tpu" and size == mesh.size and inner > 1:
        numbers = np.arange(size).reshape(-1, inner)
        stages = [numbers.T.tolist(), numbers.tolist()]
    for groups in stages:
        gradient = jax.lax.psum_scatter(gradient, FSDP_AXIS, scatter_dimension=0, axis_index_groups=groups, tiled=True)
    return gradient


def _fsdp_axis(spec: PartitionSpec) -> int | None:
    return spec.index(FSDP_AXIS) if FSDP_AXIS in spec else None


def _gradient_dtype(model: ModelConfig, gradient_dtype: str) -> str:
    """The dtype in which kernels' gradients are added up, by train.gradient_dtype."""
    return model.compute_dtype if gradient_dtype == "compute" else "float32"
