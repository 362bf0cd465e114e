"""The flags of XLA that a training step is compiled with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from mhsh.config.resolve import named_flags
from mhsh.models.costs import PEAK_FLOPS

# What `recommended` is, by jax's name of the kind of device; none of it was measured on one.
#
# GPUs: collectives run beside other work (NVIDIA's own images of jax set it:
# docs.nvidia.com/jax-toolbox/environment-variables).
#
# TPUs: none. With the sets of https://github.com/AI-Hypercomputer/maxtext at 05d3525,
# benchmarks/xla_flags_library.py, lines 35 to 41 (gathers beside products) and 116 to 123
# (all-reduces beside other work), a v5e's program is the same to the byte; a v6e's compiler refuses
# the first set and a v6e's and v5p's programs are the same with the second (docs/aot.md).
_GPU: dict[str, str | bool] = {"xla_gpu_enable_latency_hiding_scheduler": True}
RECOMMENDED: Mapping[str, Mapping[str, str | bool]] = {kind: _GPU for kind in PEAK_FLOPS if kind.startswith("NVIDIA")}

# From the environment; they apply to everything that the process compiles.
_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


def compiler_options(flags: str, device_kind: str) -> dict[str, str | bool]:
    """The options of train.xla_flags for this kind of device."""
    return dict(RECOMMENDED.get(device_kind, {})) if flags == "recommended" else named_flags(flags)


def flags_in_force(flags: str, device_kind: str) -> dict[str, Any]:
    """What run.json records: the step's own flags, and those of the environment."""
    return {"step": compiler_options(flags, device_kind)} | {name: os.environ.get(name, "") for name in _VARIABLES}
