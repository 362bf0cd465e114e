"""The mesh of a run: how many devices on each axis, by the config or by counted bytes."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from mhsh.config.entries import UPDATE_RULES
from mhsh.config.schema import Config, to_dict
from mhsh.errors import UserError
from mhsh.models.build import boxed_parameters
from mhsh.models.devices import BATCH_AXES
from mhsh.training.memory import update_bytes
from mhsh.training.sharding import DATA_AXIS, FSDP_AXIS, MESH_AXES, check_divisibility, indivisible, matrices

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


@functools.cache
def choose_mesh(config: Config, num_devices: int, num_slices: int = 1) -> MeshChoice | None:
    """The axis that takes the devices (None: the config says, or there is one device).

    `data` and `fsdp` send the same bytes. With `fsdp` a device updates only its share of the
    matrices, but each of them has collectives of its own.
    """
    mesh, count = config.mesh, num_devices // config.mesh.tensor
    if (mesh.data, mesh.fsdp) != (-1, -1) or count < 2:
        return None
    if num_slices > 1:
        return MeshChoice(DATA_AXIS, f"there are {num_slices} slices")
    if mesh.tensor > 1:  # scattering along another axis would undo its shards
        return MeshChoice(DATA_AXIS, "mesh.tensor shards the matrices")
    whole, sharded = ({DATA_AXIS: data, FSDP_AXIS: count // data, "tensor": 1} for data in (count, 1))
    problem = next(indivisible(config.model, config.train, sharded), None)
    if problem:
        return MeshChoice(DATA_AXIS, problem)
    depths = config.model.num_layers, config.model.num_decoder_layers
    if UPDATE_RULES[config.optimizer.name].whole_matrices and any(depth % count for depth in depths):
        return MeshChoice(
            DATA_AXIS, f"{config.optimizer.name}'s products are of whole matrices, and {count} devices do not divide the layers"
        )
    before, after = (update_bytes(config, shape) for shape in (whole, sharded))
    collectives = _COLLECTIVES_OF_A_MATRIX * sum(jax.tree.leaves(matrices(boxed_parameters(config.model))))
    cost = collectives * START_BYTES
    return MeshChoice(
        FSDP_AXIS if before - after > cost else DATA_AXIS,
        f"an update moves {before / 1e9:.2f} GB, with mesh.fsdp = {count} {after / 1e9:.2f}; its {collectives} collectives cost as "
        f"much as {cost / 1e9:.2f}",
    )


def mesh_shape(config: Config, num_devices: int, num_slices: int = 1) -> dict[str, int]:
    """The number of devices on each mesh axis, with -1 resolved. Raises UserError where the axes do
    not multiply to the number of devices.
    """
    shape = to_dict(config.mesh)
    if shape[DATA_AXIS] == shape[FSDP_AXIS] == -1:
        choice = choose_mesh(config, num_devices, num_slices)
        shape[DATA_AXIS if choice and choice.axis == FSDP_AXIS else FSDP_AXIS] = 1
    fixed = math.prod(size for size in shape.values() if size != -1)
    if -1 in shape.values() and num_devices % fixed == 0:
        shape = {axis: num_devices // fixed if size == -1 else size for axis, size in shape.items()}
    if -1 in shape.values() or math.prod(shape.values()) != num_devices:
        raise UserError(
            f"mesh.data x mesh.fsdp x mesh.tensor = {' x '.join(map(str, to_dict(config.mesh).values()))} does not make the "
            f"{num_devices} devices here; set one axis to -1 to take what is left"
        )
    return shape


def make_mesh(config: Config, devices: Sequence[Any] | None = None) -> Mesh:
    """The mesh over all devices of all processes (or over `devices`), after checking that the model
    and the batch can be divided over it.

    Several slices are placed along `data`, or along `fsdp` if `data` is not a multiple of their
    number: only these axes then communicate over the slow network between slices. Raises UserError
    where the axes do not multiply to the number of devices, something is not divisible, or the
    slices fit on neither axis.
    """
    devices = jax.devices() if devices is None else devices
    num_slices = count_slices(devices)
    shape = mesh_shape(config, len(devices), num_slices)
    check_divisibility(config.model, config.train, shape)
    outer = [axis for axis in BATCH_AXES if shape[axis] % num_slices == 0][:1]
    if not outer:
        raise UserError(
            f"mesh.data = {shape['data']} and mesh.fsdp = {shape['fsdp']}: make one a multiple of the {num_slices} slices"
        )
    between = [num_slices if axis in outer else 1 for axis in MESH_AXES]
    within = [size // across for size, across in zip(shape.values(), between, strict=True)]
    if num_slices > 1:
        grid = mesh_utils.create_hybrid_device_mesh(within, between, devices, allow_split_physical_axes=True)
    else:
        grid = mesh_utils.create_device_mesh(within, devices, allow_split_physical_axes=True)
    return Mesh(grid, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def count_slices(devices: Sequence[Any]) -> int:
    """Groups of devices, each on a fast network of its own."""
    return len({getattr(device, "slice_index", 0) for device in devices})
