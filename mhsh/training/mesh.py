"""The mesh of a run: how many devices on each axis, by the config or by counted bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from mhsh.config.entries import UPDATE_RULES
from mhsh.config.schema import Config, to_dict
from mhsh.errors import UserError
from mhsh.models.devices import BATCH_AXES
from mhsh.training.memory import update_bytes
from mhsh.training.sharding import DATA_AXIS, FSDP_AXIS, MESH_AXES, check_divisibility, division_problems, matrix_mask
from mhsh.training.state import TrainState

# What a collective costs besides what it sends, as the bytes that memory moves meanwhile: 10 us of
# an H100, 40 us of a v5e. Assumed.
START_BYTES = 2**25
# With `fsdp` a matrix is gathered, and its gradients are scattered in at most two stages.
_COLLECTIVES_OF_A_MATRIX = 3


class MeshChoice(NamedTuple):
    """The axis that takes the devices where a config leaves both `data` and `fsdp` open."""

    axis: str
    reason: str

    def __str__(self) -> str:
        return f"mesh.{self.axis} takes the devices: {self.reason}"


def mesh_shape(
    config: Config, boxed: TrainState, num_devices: int, num_slices: int = 1
) -> tuple[dict[str, int], MeshChoice | None]:
    """The number of devices on each mesh axis, with -1 resolved, and the choice between `data` and
    `fsdp` (None: the config says, or there is one device) for a state that is boxed with its
    logical axis names. Raises UserError where the axes do not multiply to the number of devices, or
    the model or the batch does not divide over them.
    """
    named, choice = to_dict(config.mesh), None
    shape = dict(named)
    if shape[DATA_AXIS] == shape[FSDP_AXIS] == -1:
        if (count := num_devices // config.mesh.tensor) > 1:
            choice = _choose(config, boxed, count, num_slices)
        shape[DATA_AXIS if choice and choice.axis == FSDP_AXIS else FSDP_AXIS] = 1
    fixed = math.prod(size for size in shape.values() if size != -1)
    if -1 in shape.values() and num_devices % fixed == 0:
        shape = {axis: num_devices // fixed if size == -1 else size for axis, size in shape.items()}
    if -1 in shape.values() or math.prod(shape.values()) != num_devices:
        advice = "lower what is not -1" if -1 in named.values() else "set one axis to -1 to take what is left"
        raise UserError(
            f"mesh.data x mesh.fsdp x mesh.tensor = {' x '.join(map(str, named.values()))} does not make the {num_devices} devices "
            f"here; {advice}"
        )
    check_divisibility(config.model, config.train, shape)
    return shape, choice


def _choose(config: Config, boxed: TrainState, count: int, num_slices: int) -> MeshChoice:
    """The axis that takes `count` devices.

    `data` and `fsdp` send the same bytes. With `fsdp` a device updates only its share of the
    matrices, but each of them has collectives of its own.
    """
    if num_slices > 1:
        return MeshChoice(DATA_AXIS, f"there are {num_slices} slices")
    if config.mesh.tensor > 1:  # scattering along another axis would undo its shards
        return MeshChoice(DATA_AXIS, "mesh.tensor shards the matrices")
    replicated, sharded = ({DATA_AXIS: data, FSDP_AXIS: count // data, "tensor": 1} for data in (count, 1))
    problem = next(division_problems(config.model, config.train, sharded), None)
    if problem:
        return MeshChoice(DATA_AXIS, problem)
    depths = config.model.num_layers, config.model.num_decoder_layers
    if UPDATE_RULES[config.optimizer.name].whole_matrices and any(depth % count for depth in depths):
        return MeshChoice(
            DATA_AXIS, f"{config.optimizer.name}'s products are of whole matrices, and {count} devices do not divide the layers"
        )
    before, after = (update_bytes(config.model, boxed, shape) for shape in (replicated, sharded))
    collectives = _COLLECTIVES_OF_A_MATRIX * sum(jax.tree.leaves(matrix_mask(boxed.params)))
    cost = collectives * START_BYTES
    return MeshChoice(
        FSDP_AXIS if before - after > cost else DATA_AXIS,
        f"an update moves {before / 1e9:.2f} GB, with mesh.fsdp = {count} {after / 1e9:.2f}; its {collectives} collectives cost as "
        f"much as {cost / 1e9:.2f}",
    )


def make_mesh(shape: Mapping[str, int], devices: Sequence[Any] | None = None) -> Mesh:
    """The mesh of that shape over all devices of all processes, or over `devices`.

    Several slices are placed along `data`, or along `fsdp` if `data` is not a multiple of their
    number: only these axes then communicate over the slow network between slices. Raises UserError
    where the slices fit on neither axis.
    """
    devices = jax.devices() if devices is None else devices
    num_slices = count_slices(devices)
    outer = [axis for axis in BATCH_AXES if shape[axis] % num_slices == 0][:1]
    if not outer:
        raise UserError(
            f"mesh.data = {shape['data']} and mesh.fsdp = {shape['fsdp']}: make one a multiple of the {num_slices} slices"
        )
    between = [num_slices if axis in outer else 1 for axis in MESH_AXES]
    within = [shape[axis] // across for axis, across in zip(MESH_AXES, between, strict=True)]
    if num_slices > 1:
        grid = mesh_utils.create_hybrid_device_mesh(within, between, devices, allow_split_physical_axes=True)
    else:
        grid = mesh_utils.create_device_mesh(within, devices, allow_split_physical_axes=True)
    return Mesh(grid, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def first_device() -> Mesh:
    """The mesh of the first device alone."""
    return make_mesh(dict.fromkeys(MESH_AXES, 1), jax.devices()[:1])


def count_slices(devices: Sequence[Any]) -> int:
    """Groups of devices, each on a fast network of its own."""
    return len({getattr(device, "slice_index", 0) for device in devices})
