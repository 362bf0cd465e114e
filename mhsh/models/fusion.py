"""Which sublayers of the encoder run as fused kernels: by the config, the devices they are compiled
for, and what there is.
"""

from __future__ import annotations

from typing import NamedTuple

import jax

from mhsh.config.schema import ModelConfig
from mhsh.kernels.rows import KernelTarget
from mhsh.kernels.supported import (
    unsupported_attention,
    unsupported_batch,
    unsupported_feed_forward,
    unsupported_join,
    unsupported_platform,
)

# The mesh's axes over which a batch lies, and the one on which parameters of a layer are cut.
BATCH_AXES = ("data", "fsdp")
TENSOR_AXIS = "tensor"


class Fused(NamedTuple):
    """What is fused with its join, and where it runs."""

    attention: bool
    feed_forward: bool
    place: KernelTarget


def fused_here(config: ModelConfig, num_rows: int, length: int) -> Fused:
    """For a batch of `num_rows` x `length` tokens on the mesh that is set (jax.set_mesh), or else
    on one device.
    """
    reasons = why_plain(config, num_rows, length)
    return Fused(reasons["attention"] is None, reasons["feed_forward"] is None, _place())


def why_plain(config: ModelConfig, num_rows: int, length: int) -> dict[str, str | None]:
    """A line for each sublayer that runs in its plain form, None for one that is fused; see
    `fused_here`.
    """
    place = _place()
    platform, kind, num_tensor_shards = _devices()
    reason = None
    if config.kernels == "plain":
        reason = "model.kernels = plain"
    elif config.kernels == "auto" and platform != "tpu":
        reason = f"model.kernels = auto fuses on TPUs, not on {platform}"
        if platform == "gpu":
            reason += ": kernels for GPUs were compiled and never measured; model.kernels = fused takes them"
    reason = reason or unsupported_platform(platform, kind, num_tensor_shards) or unsupported_batch(num_rows, place.num_shards)
    if reason:
        return {"attention": reason, "feed_forward": reason}
    return {
        "attention": unsupported_attention(config, length, place.target) or unsupported_join(config, place.target),
        "feed_forward": unsupported_feed_forward(config, place.target),
    }


def in_words(reasons: dict[str, str | None]) -> str:
    """What `why_plain` found, in one line."""
    parts = (f"{name} {'fused' if reason is None else f'plain ({reason})'}" for name, reason in reasons.items())
    return f"kernels: {', '.join(parts)}"


def _devices() -> tuple[str, str, int]:
    """Platform, kind, and shards of a layer's parameters."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.abstract_device is None:
        device = jax.devices()[0]
        return device.platform, device.device_kind, 1
    return mesh.abstract_device.platform, mesh.abstract_device.device_kind, dict(mesh.shape).get(TENSOR_AXIS, 1)


def _place() -> KernelTarget:
    mesh = jax.sharding.get_abstract_mesh()
    platform = _devices()[0]
    interpret, target = platform == "cpu", "gpu" if platform == "gpu" else "tpu"
    if mesh.empty or mesh.size == 1:
        return KernelTarget(interpret=interpret, target=target)
    return KernelTarget(mesh, tuple(axis for axis in BATCH_AXES if axis in mesh.shape), interpret, target)
