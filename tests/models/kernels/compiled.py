"""Kernels compiled for a GPU that is not there."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from pathlib import Path

import jax

from mhsh.planning.compiled import _devices_of, compiler_of, parse_topology

NO_COMPILER = compiler_of("gpu") is None
_PROPERTIES = re.compile(r"Function properties for (\w+)\n.* (\d+) bytes spill stores.*\n.*Used (\d+) registers")


def registers(function, *shapes, kind="h200"):
    """Registers of a thread and bytes that it spills, of each kernel of a function that is written
    in Pallas, by ptxas.
    """
    mesh = jax.sharding.Mesh(_devices_of(parse_topology(f"{kind}:1")), ("device",), axis_types=(jax.sharding.AxisType.Auto,))
    (tools,) = importlib.util.find_spec("nvidia.cuda_nvcc").submodule_search_locations
    used = {}
    with tempfile.TemporaryDirectory() as folder, jax.set_mesh(mesh):
        lowered = jax.jit(function, in_shardings=jax.P()).lower(*shapes)
        lowered.compile({"xla_dump_to": folder, "xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False})
        for path in Path(folder).glob("*.ptx"):
            command = [f"{tools}/bin/ptxas", "-v", "-arch=sm_90a", path, "-o", "/dev/null"]
            text = subprocess.run(command, capture_output=True, text=True, check=True).stderr
            used |= {name: (int(count), int(spilled)) for name, spilled, count in _PROPERTIES.findall(text)}
    return {name: sizes for name, sizes in used.items() if name in lowered.as_text()}
