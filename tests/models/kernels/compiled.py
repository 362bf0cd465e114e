"""Kernels compiled for a GPU that is not there."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import tempfile
from pathlib import Path
from unittest import mock

import jax
import pytest

from benchmarks.bench.compile import no_persistent_cache
from mhsh.models.kernels.rows import HAS_MOSAIC
from mhsh.planning.compiled import _devices_of, compiler_of, parse_topology

NO_COMPILER = compiler_of("gpu") is None
BY_EACH_COMPILER = pytest.mark.parametrize(
    "kernels",
    [
        pytest.param("fused", marks=pytest.mark.skipif(HAS_MOSAIC, reason="XLA of this jax writes no PTX of Triton's kernels")),
        pytest.param("mosaic", marks=pytest.mark.skipif(not HAS_MOSAIC, reason="Mosaic GPU needs jax 0.11.1")),
    ],
)
_PROPERTIES = re.compile(
    r"Function properties for (\w+?)(?:_mosaic_gpu_kernel)?\n.* (\d+) bytes spill stores.*\n.*Used (\d+) registers"
)


def registers(function, *shapes, kind="h200"):
    """Registers of a thread and bytes that it spills, of each kernel of a function that is written
    in Pallas, by ptxas.
    """
    mesh = jax.sharding.Mesh(_devices_of(parse_topology(f"{kind}:1")), ("device",), axis_types=(jax.sharding.AxisType.Auto,))
    (tools,) = importlib.util.find_spec("nvidia.cuda_nvcc").submodule_search_locations
    with (
        tempfile.TemporaryDirectory() as folder,
        jax.set_mesh(mesh),
        no_persistent_cache(),  # jax 0.12 cannot read from it a program for a device that is not there
        mock.patch.dict(os.environ, MOSAIC_GPU_DUMP_TO=folder),
    ):
        lowered = jax.jit(function, in_shardings=jax.P()).lower(*shapes)
        lowered.compile({"xla_dump_to": folder, "xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False})
        said = [path.read_text() for path in Path(folder).glob("*.ptxas")]  # Mosaic has called it
        for path in [] if said else Path(folder).glob("*.ptx"):
            command = [f"{tools}/bin/ptxas", "-v", "-arch=sm_90a", path, "-o", "/dev/null"]
            said.append(subprocess.run(command, capture_output=True, text=True, check=True).stderr)
    used = {name: (int(count), int(spilled)) for text in said for name, spilled, count in _PROPERTIES.findall(text)}
    return {name: sizes for name, sizes in used.items() if name in lowered.as_text()}
