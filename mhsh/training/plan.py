"""The plan of a run: what its config and its devices decide before anything of it is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax

from mhsh.config.schema import Config
from mhsh.training.memory import RematChoice, choose_remat, describe_shortage, device_bytes, replace_policy, state_footprint
from mhsh.training.mesh import MeshChoice, count_slices, mesh_shape
from mhsh.training.optimizer import build_optimizer
from mhsh.training.state import TrainState, boxed_state


class Devices(NamedTuple):
    """The devices that a run would have."""

    count: int
    slices: int
    platform: str
    bytes: int | None  # memory of one; None: not known


class RunPlan(NamedTuple):
    """A config on devices."""

    config: Config  # with the remat policy that was chosen
    boxed: TrainState  # shapes and dtypes, boxed with their logical axis names
    mesh_shape: dict[str, int]
    mesh_choice: MeshChoice | None  # None: the config leaves none
    devices: Devices
    remat: RematChoice | None  # None: the config names a policy
    refusal: str | None  # why a step cannot fit; None where it may

    def count_activations(self) -> RunPlan:
        """The plan, where the activations of a policy that the config names count, too. Counting
        them takes a second or two, and the compiler may need less.
        """
        if self.remat is not None:
            return self
        config, boxed, shape, devices = self.config, self.boxed, self.mesh_shape, self.devices
        choice = choose_remat(config, boxed, shape, devices.bytes or 0, devices.platform)
        return self._replace(remat=choice, refusal=_refusal(config, boxed, shape, devices, choice.needed_bytes))


def plan_run(config: Config, devices: Devices | None = None, together: int = 1) -> RunPlan:
    """The plan of a run on `devices` (None: those that jax finds), which has the share of their
    memory that it has beside others, so many `together`.

    `auto` becomes the first remat policy that fits; without a known memory, the one that needs
    least. The activations of a policy that the config names are left to the compiler, which may
    need less than is counted. Raises UserError where the mesh does not make the devices, or the
    model or the batch does not divide.
    """
    if devices is None:
        found = jax.devices()
        devices = Devices(len(found), count_slices(found), found[0].platform, device_bytes(found[0]))
    boxed = boxed_state(config, build_optimizer(config))
    shape, mesh_choice = mesh_shape(config, boxed, devices.count, devices.slices)
    if devices.bytes is not None:
        devices = devices._replace(bytes=devices.bytes // together)
    remat = None
    if config.model.remat_policy == "auto":
        remat = choose_remat(config, boxed, shape, devices.bytes or 0, devices.platform)
        config = replace_policy(config, remat.policy)
    needed = remat.needed_bytes if remat else state_footprint(config.model, boxed, shape).total
    refusal = _refusal(config, boxed, shape, devices, needed)
    if refusal and together > 1 and devices.bytes is not None:
        fit = max(1, devices.bytes * together // needed)
        refusal = f"{together} cells do not fit together, take --together={fit}; of each in its share: {refusal}"
    return RunPlan(config, boxed, shape, mesh_choice, devices, remat, refusal)


def _refusal(config: Config, boxed: TrainState, shape: Mapping[str, int], devices: Devices, needed: int) -> str | None:
    if devices.bytes is None or needed <= devices.bytes:
        return None
    return describe_shortage(config, boxed, shape, devices.bytes, devices.platform)
