"""The rematerialisation policy for `model.remat_policy = auto`: the fastest that fits."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
from msgspec.structs import replace

from mhsh.config.schema import Config
from mhsh.training.footprint import footprint

# From the fastest to the one that needs least memory, by platform. CPUs and TPUs recompute
# elementwise operations faster than they load their results: measured on a CPU, by the compiler's
# count on TPUs (docs/performance.md). Where layers are wide a CPU loads products faster than it
# recomputes them. A GPU was not measured.
CANDIDATES = {
    "cpu": ("dots", "projections", "full", "groups"),
    "tpu": ("projections", "full", "groups"),
    "gpu": ("none", "projections", "full", "groups"),
}

# The share of a device's memory that a footprint may take. The rest is for scratch memory, the
# program and alignment.
USABLE_SHARE = 0.8


class RematChoice(NamedTuple):
    """A policy, and the memory that it was chosen by."""

    policy: str
    needed_bytes: int  # per device, by the footprint
    device_bytes: int

    def __str__(self) -> str:
        needed, there = (f"{size / 2**30:.2f} GiB" for size in (self.needed_bytes, self.device_bytes))
        return f"remat_policy {self.policy}: needs about {needed} of {there} a device"


def resolve_remat(config: Config, mesh: Mesh) -> tuple[Config, RematChoice | None]:
    """The config with `auto` replaced by a policy for the devices of this mesh, and the choice
    (None: the config names a policy).
    """
    if config.model.remat_policy != "auto":
        return config, None
    device = mesh.devices.flat[0]
    choice = choose_remat(config, dict(mesh.shape), device_bytes(device), CANDIDATES[device.platform])
    return with_policy(config, choice.policy), choice


def choose_remat(config: Config, mesh_shape: dict[str, int], device_bytes: int, candidates: tuple[str, ...]) -> RematChoice:
    """The first candidate whose footprint fits; if none does, the last, which may still fit."""
    choice = None
    for policy in candidates:
        choice = RematChoice(policy, footprint(with_policy(config, policy), mesh_shape).total, device_bytes)
        if choice.needed_bytes <= USABLE_SHARE * device_bytes:
            break
    assert choice is not None, "there is always a candidate"
    return choice


def device_bytes(device: Any) -> int:
    """Memory of a device. CPUs and simulated devices share the machine's memory."""
    limit = (device.memory_stats() or {}).get("bytes_limit") if device.platform != "cpu" else None
    if limit:
        return int(limit)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // jax.local_device_count()


def with_policy(config: Config, policy: str) -> Config:
    """The config with this remat policy."""
    return replace(config, model=replace(config.model, remat_policy=policy))
