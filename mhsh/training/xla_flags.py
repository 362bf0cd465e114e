"""The flags of XLA that a training step is compiled with."""

from __future__ import annotations

import os
import shlex
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
# the first set and a v6e's and v5p's programs are the same with the second (docs/plan.md).
_GPU: dict[str, str | bool] = {"xla_gpu_enable_latency_hiding_scheduler": True}
RECOMMENDED: Mapping[str, Mapping[str, str | bool]] = {kind: _GPU for kind in PEAK_FLOPS if kind.startswith("NVIDIA")}

# From the environment; they apply to everything that the process compiles.
_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")

# In the names of flags that change the time, the memory or what is written, but no number. Every
# other flag counts as one that changes numbers, also one that is not known here: a comparison that
# doubts too much says so, and one that doubts too little is wrong in silence.
_NO_NUMBERS = (
    *("async", "cache_dir", "command_buffer", "compilation_parallelism", "data_dir", "device_count", "dump"),
    *("memory_limit", "pipelined", "profile", "scheduler", "vmem_limit"),
)


def compiler_options(flags: str, device_kind: str) -> dict[str, str | bool]:
    """The options of train.xla_flags for this kind of device."""
    return dict(RECOMMENDED.get(device_kind, {})) if flags == "recommended" else named_flags(flags)


def flags_in_force(flags: str, device_kind: str) -> dict[str, Any]:
    """What run.json records: the step's own flags, and those of the environment."""
    return {"step": compiler_options(flags, device_kind)} | {name: os.environ.get(name, "") for name in _VARIABLES}


def numeric_flags(flags: str, device_kind: str) -> dict[str, str]:
    """Of the flags in force, those that may change numbers. The step's own come last and win."""
    in_force: dict[str, str] = {}
    for name in _VARIABLES:
        for argument in shlex.split(os.environ.get(name, "")):
            flag, _, value = argument.lstrip("-").partition("=")
            in_force[flag] = value or "true"  # without a value it is switched on
    in_force |= {flag: str(value).lower() for flag, value in compiler_options(flags, device_kind).items()}
    return {flag: in_force[flag] for flag in sorted(in_force) if not any(part in flag for part in _NO_NUMBERS)}
