"""Reading a checkpoint once where several hosts hold the same arrays: the hosts of one replica read
it and send it to the others.

Orbax's own SingleReplicaArrayHandler (0.12.8, jax_array_handlers.py, line 1855) adds up the replica
that was read and zeros, in the arrays' dtype. So it turns -0.0 into 0.0. Here bits are added, as
integers, and nothing changes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding
from jaxtyping import Int

from mhsh.training.checkpoints.verify import words

REPLICA = "replica"  # the first axis of the mesh that `split_replicas` makes


def split_replicas(sharding: Sharding | None) -> Mesh | None:
    """The mesh of a sharding with its first axis, `data`, split in two: replicas whose hosts no
    other has, and the rest of `data`. None where there is only one, or no mesh.
    """
    if not isinstance(sharding, NamedSharding):
        return None
    mesh = cast(Mesh, sharding.mesh)
    count = num_replicas(np.vectorize(lambda device: device.process_index)(mesh.devices))
    if count == 1:
        return None
    num_data, *others = mesh.devices.shape
    return Mesh(mesh.devices.reshape(count, num_data // count, *others), (REPLICA, *mesh.axis_names))


def num_replicas(hosts: Int[np.ndarray, "data ..."]) -> int:
    """Into how many parts of equal length the first axis can be cut so that no host is in two."""
    num_data = len(hosts)
    for count in range(num_data, 1, -1):
        if num_data % count == 0:
            parts = [set(part.flat) for part in hosts.reshape(count, -1)]
            if sum(map(len, parts)) == len(set.union(*parts)):
                return count
    return 1


def read_once(where: epath.Path, wanted: Mapping[str, jax.ShapeDtypeStruct], replicas: Mesh) -> dict[str, jax.Array]:
    """The arrays of an Orbax item at `where`, with the shardings of `wanted`, read by the hosts of
    the first replica alone. Every process must call it.

    Args:
      wanted: no sharding names the axis `data`.
      replicas: from `split_replicas`.

    Raises:
      Exception: what Orbax raises, on the process where it does; RuntimeError on the others.
    """
    readers = {device.process_index for device in replicas.devices[0].flat}
    error: Exception | None = None
    own: dict[str, jax.Array] = {}
    if jax.process_index() in readers:
        try:
            own = _read(where, wanted, Mesh(replicas.devices[0], replicas.axis_names[1:]), readers)
        except Exception as caught:  # the others wait: they must be told, whatever it is
            error = caught
    failed = np.flatnonzero(multihost_utils.process_allgather(np.array(error is not None)))
    if error is not None:
        raise error
    if len(failed):
        raise RuntimeError(f"process {failed[0]} could not read it")
    return {name: _to_all(own.get(name), leaf, replicas) for name, leaf in wanted.items()}


def _read(where: epath.Path, wanted: Mapping[str, jax.ShapeDtypeStruct], mesh: Mesh, readers: set[int]) -> dict[str, jax.Array]:
    options = ocp.options.MultiprocessingOptions(
        primary_host=min(readers), active_processes=readers, barrier_sync_key_prefix="mhsh_read_once"
    )
    here = {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, _spec(leaf)))
        for name, leaf in wanted.items()
    }
    handler = ocp.StandardCheckpointHandler(multiprocessing_options=options)
    with ocp.Checkpointer(handler, multiprocessing_options=options) as checkpointer:
        return checkpointer.restore(where, args=ocp.args.StandardRestore(here))


def _spec(leaf: jax.ShapeDtypeStruct) -> PartitionSpec:
    assert isinstance(leaf.sharding, NamedSharding)
    return leaf.sharding.spec


def _to_all(read: jax.Array | None, leaf: jax.ShapeDtypeStruct, replicas: Mesh) -> jax.Array:
    """An array that the devices of the first replica have, on all devices."""
    stacked = NamedSharding(replicas, PartitionSpec(REPLICA, *_spec(leaf)))
    shape = (replicas.devices.shape[0], *leaf.shape)
    parts = {shard.device: shard.data for shard in read.addressable_shards} if read is not None else {}
    zeros = np.zeros(stacked.shard_shape(shape), leaf.dtype)
    own = [parts[device][None] if device in parts else jax.device_put(zeros, device) for device in stacked.addressable_devices]
    whole = jax.make_array_from_single_device_arrays(shape, stacked, own)
    sharding = NamedSharding(replicas, _spec(leaf))
    return jax.device_put(_summed(sharding)(whole), leaf.sharding)


@functools.cache
def _summed(sharding: NamedSharding) -> Any:
    """Adds the bits of all replicas, of which one is not zero."""

    def add(stacked: jax.Array) -> jax.Array:
        total = jnp.sum(words(stacked), axis=0, dtype=words(stacked).dtype)
        return total.astype(stacked.dtype) if stacked.dtype == jnp.bool_ else jax.lax.bitcast_convert_type(total, stacked.dtype)

    return jax.jit(add, out_shardings=sharding)
