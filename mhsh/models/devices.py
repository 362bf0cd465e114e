"""The devices that a model runs on, and the shards of the batch on them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, UInt32

# The axes of the mesh that shard the batch.
BATCH_AXES = ("data", "fsdp")
TENSOR_AXIS = "tensor"  # of the mesh; shards the parameters of a layer


def batch_is_sharded() -> bool:
    """Whether what is traced runs on a shard of the batch (mhsh/training/shards.py)."""
    return not set(BATCH_AXES).isdisjoint(jax.sharding.get_abstract_mesh().manual_axes)


def tensor_is_sharded() -> bool:
    """Whether heads, feed-forward width and vocabulary are sharded on the current mesh."""
    return jax.sharding.get_abstract_mesh().shape.get(TENSOR_AXIS, 1) > 1


def shard_index() -> UInt32[Array, ""]:
    """The number of this device's shard of the batch; 0 where the batch is in one piece.

    A dropout mask depends on an element's position in the whole batch.
    """
    return jax.lax.axis_index(BATCH_AXES).astype(jnp.uint32) if batch_is_sharded() else jnp.uint32(0)


def current_platform() -> str:
    """`cpu`, `gpu` or `tpu`: of the current mesh, or of the first device."""
    mesh = jax.sharding.get_abstract_mesh()
    device = jax.devices()[0] if mesh.empty or mesh.abstract_device is None else mesh.abstract_device
    return device.platform
