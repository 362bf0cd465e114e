"""The mesh axes over which logical axes are sharded: one table for parameters and batches, checked
for divisibility.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mhsh.config.schema import ModelConfig, TrainConfig
from mhsh.errors import UserError
from mhsh.models.devices import BATCH_AXES, TENSOR_AXIS
from mhsh.models.parameters import AXES, axis_length

DATA_AXIS, FSDP_AXIS = BATCH_AXES
MESH_AXES = (*BATCH_AXES, TENSOR_AXIS)
ROWS = PartitionSpec(BATCH_AXES)  # of arrays with a row for each row of the batch


def axis_rules(model: ModelConfig) -> tuple[tuple[str, Any], ...]:
    """The mesh axes of each logical axis. A single head is not sharded. Of activations, rows are;
    the width of the residual stream, `activation`, is not.
    """
    axes = {name: TENSOR_AXIS if axis.tensor and axis_length(model, name) != 1 else None for name, axis in AXES.items()}
    return (("batch", BATCH_AXES), ("length", None), ("activation", None), *axes.items())


def check_divisibility(model: ModelConfig, train: TrainConfig, shape: Mapping[str, int]) -> None:
    """Raises UserError if the model or a micro-batch cannot be divided over the mesh."""
    problem = next(division_problems(model, train, shape), None)
    if problem:
        raise UserError(problem)


def division_problems(model: ModelConfig, train: TrainConfig, shape: Mapping[str, int]) -> Iterator[str]:
    """The parts of the model and of a micro-batch that a mesh of that shape does not divide."""
    rows, shards = train.batch_size // train.accumulation_steps, shape["data"] * shape["fsdp"]
    if rows % shards:
        yield (
            f"train.batch_size = {train.batch_size} in train.accumulation_steps = {train.accumulation_steps} gives {rows} rows, "
            f"which mesh.data x mesh.fsdp = {shape['data']} x {shape['fsdp']} does not divide; make it a multiple of {shards}, or "
            "take fewer devices, as with CUDA_VISIBLE_DEVICES=0"
        )
    for name, mesh_axis in (dict(axis_rules(model)) | {"embed": "fsdp"}).items():  # where no other axis divides
        if name in AXES and mesh_axis and (size := axis_length(model, name)) % shape[mesh_axis]:
            yield (
                f"model.{AXES[name].field} = {size} is not divisible by mesh.{mesh_axis} = {shape[mesh_axis]}; change one of the "
                f"two (next multiple: {-(-size // shape[mesh_axis]) * shape[mesh_axis]})"
            )


def matrix_mask(boxed: Any) -> Any:
    """True for each matrix of parameters (or optimiser state) that are boxed with logical names.
    Only matrices are sharded over `fsdp`: all vectors together are a hundredth of a model, and a
    collective each would be most of a step's collectives.
    """
    wide = {name for name, axis in AXES.items() if axis.wide}
    return jax.tree.map(lambda names: "embed" in names and not wide.isdisjoint(names), nn.get_partition_spec(boxed))


def partition_specs(boxed: Any, mesh_shape: Mapping[str, int], model: ModelConfig) -> Any:
    """PartitionSpecs of parameters (or optimiser state) that are boxed with logical axis names, on
    a mesh of that shape (devices by axis).

    `fsdp` takes the first axis of a matrix that it divides, the layers before all others, so that a
    shard is whole rows: on a TPU a row is made of lanes of 128 numbers. Where a group of layers is
    gathered by itself, all devices have a part of each layer.
    """
    rules = axis_rules(model)
    whole_layers = model.remat_policy != "gathered_groups"

    def spec_of(leaf: Any, names: PartitionSpec, is_matrix: bool) -> PartitionSpec:
        axes: list[Any] = list(nn.logical_to_mesh_axes(tuple(names), rules) or ())
        if is_matrix and mesh_shape[FSDP_AXIS] > 1:
            free = [axis for axis, mesh_axis in enumerate(axes) if mesh_axis is None or mesh_shape[mesh_axis] == 1]
            free = [axis for axis in free if whole_layers or names[axis] != "layers"]
            divided = [axis for axis in free if leaf.shape[axis] % mesh_shape[FSDP_AXIS] == 0]
            axes[divided[0] if divided else names.index("embed")] = FSDP_AXIS
        return PartitionSpec(*axes)

    return jax.tree.map(spec_of, nn.unbox(boxed), nn.get_partition_spec(boxed), matrix_mask(boxed))


def named_shardings(boxed: Any, mesh: Mesh, model: ModelConfig) -> Any:
    """NamedShardings of parameters (or optimiser state) that are boxed with logical axis names."""
    return jax.tree.map(functools.partial(NamedSharding, mesh), partition_specs(boxed, dict(mesh.shape), model))


def replicate_parameters(params: Any, mesh: Mesh, model: ModelConfig) -> Any:
    """The parameters, each on every device of the mesh. For what runs outside of a compiled step:
    one that is sharded by layers would be gathered again for each layer. With `gathered_groups`, as
    they are: not all fit, and XLA gathers what it needs.
    """
    if model.remat_policy == "gathered_groups":
        return params
    return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, replicated_sharding(mesh)), params)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows over `data` and `fsdp`; the other axes of a batch are not sharded."""
    return NamedSharding(mesh, ROWS)


def replicated_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding of an array that is whole on every device, such as metrics and the step."""
    return NamedSharding(mesh, PartitionSpec())


def shardings_of(tree: Any) -> Any:
    """The sharding of every array of a tree, real or abstract."""
    return jax.tree.map(lambda array: array.sharding, tree)


def shapes_of(tree: Any) -> Any:
    """The shapes and dtypes of a tree of arrays."""
    return jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), tree)


def process_rows(mesh: Mesh, batch_size: int) -> slice:
    """The contiguous rows of the global batch that this process's devices hold."""
    indices = batch_sharding(mesh).addressable_devices_indices_map((batch_size,)).values()
    bounds = sorted({index[0].indices(batch_size)[:2] for index in indices if index is not None})
    for (_, end), (start, _) in itertools.pairwise(bounds):
        if start != end:
            raise UserError(
                f"the mesh {dict(mesh.shape)} gives this process rows of the batch that are not contiguous; "
                "make mesh.data (or mesh.fsdp) a multiple of the number of processes"
            )
    return slice(bounds[0][0], bounds[-1][1])


def put_batch(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """This process's rows as its part of the global, sharded batch."""
    sharding = batch_sharding(mesh)
    if sharding.is_fully_addressable:  # in one call: 0.25 ms of a CPU instead of 0.57
        return jax.device_put(batch, dict.fromkeys(batch, sharding))
    return {key: jax.make_array_from_process_local_data(sharding, rows) for key, rows in batch.items()}


def put_replicated(value: jax.Array, mesh: Mesh) -> jax.Array:
    """A value that every process has, on every device of the mesh."""
    local = np.asarray(value)
    return jax.make_array_from_callback(local.shape, replicated_sharding(mesh), lambda index: local[index])
