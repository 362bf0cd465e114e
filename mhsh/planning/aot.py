"""The training step compiled for a TPU slice without access to it: the compiler's memory,
collectives and FLOPs.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

import mhsh
from mhsh.config.resolve import from_dict
from mhsh.config.schema import Config, to_dict
from mhsh.errors import UserError, install_command
from mhsh.models.build import build_model
from mhsh.models.costs import step_flops
from mhsh.planning.chips import CHIPS
from mhsh.planning.hlo import read_program
from mhsh.planning.hlo_text import parse_module
from mhsh.planning.traffic import count_traffic
from mhsh.training.memory import CANDIDATES, choose_remat, with_policy
from mhsh.training.optimizer import build_optimizer
from mhsh.training.sharding import make_mesh
from mhsh.training.state import abstract_state
from mhsh.training.step import compile_train_step

GIB = 2**30

# The TPUs that can be compiled for, with the compiler's options. A device is a whole chip: both
# cores of a v4 or v5p.
_COMPILER_OPTIONS: dict[str, dict[str, Any]] = {
    "v4": {"chip_config_name": "megacore"},
    "v5e": {},
    "v5p": {"chip_config_name": "megacore"},
    "v6e": {},
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """The devices of a compilation: `v5e:4x4`, several slices of it, or `local:8` (simulated on the
    CPU).
    """

    name: str
    num_slices: int = 1

    @property
    def kind(self) -> str:
        """v4, v5e, v5p, v6e or local."""
        return self.name.split(":")[0]

    @property
    def hbm_bytes(self) -> int | None:
        """Memory of one device; None for simulated ones."""
        return CHIPS[self.kind].hbm_bytes if self.kind in CHIPS else None

    @property
    def num_devices(self) -> int:
        """Over all slices."""
        count = self.num_slices
        for size in self.name.split(":")[1].split("x"):
            count *= int(size)
        return count


def parse_topology(name: str, num_slices: int = 1) -> Topology:
    """The topology of that name, checked as far as possible without the compiler.

    Raises:
      UserError: an unknown kind or layout, or slices where there are none.
    """
    kind, _, layout = name.partition(":")
    sizes = [1] if kind == "local" else [1] * CHIPS[kind].dimensions if kind in _COMPILER_OPTIONS else []
    if not sizes or not re.fullmatch("x".join([r"[1-9]\d*"] * len(sizes)), layout):
        raise UserError(
            f"--topology={name} is not a slice; allowed: v4:2x2x1, v5p:2x2x2 (three sizes), v5e:4x4, v6e:4x4 (two), local:8"
        )
    if num_slices < 1 or (kind == "local" and num_slices > 1):
        raise UserError(f"--num-slices={num_slices}: allowed: 1 or more, and only 1 with --topology=local:N")
    return Topology(name, num_slices)


# What the tables of docs/aot.md were compiled with, by jax's minor version.
TESTED_LIBTPU = {"0.10": "0.0.45", "0.12": "0.0.50.1"}


def untested_libtpu() -> str | None:
    """One line where another libtpu is installed than the one tested with this jax."""
    installed, minor = _version("libtpu"), ".".join(jax.__version__.split(".")[:2])
    wanted = TESTED_LIBTPU.get(minor)
    if installed is None or installed == wanted:
        return None
    if wanted is None:
        return f"libtpu {installed} with jax {jax.__version__}: no libtpu was tested with this jax"
    return f"libtpu {installed} with jax {jax.__version__}: tested was libtpu {wanted} (pip install libtpu=={wanted})"


def devices_of(topology: Topology) -> Sequence[Any]:
    """The devices to compile for. `local:N` needs a process with N simulated devices, as `measure`
    starts.

    Raises:
      UserError: libtpu is missing, or does not know the slice.
    """
    if topology.kind == "local":
        devices = jax.devices("cpu")
        if len(devices) < topology.num_devices:
            raise UserError(f"--topology={topology.name}: this process has {len(devices)} simulated devices")
        return devices[: topology.num_devices]
    require_libtpu()
    from jax.experimental import topologies

    options = dict(_COMPILER_OPTIONS[topology.kind])
    sizes = topology.name.split(":")[1].split("x")
    if set(sizes) == {"1"}:
        options["chips_per_host_bounds"] = (1, 1, 1)
    if topology.num_slices > 1:
        options["num_slices"] = topology.num_slices
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=topology.name, **options).devices
    except jax.errors.JaxRuntimeError as error:
        raise UserError(f"--topology={topology.name}: {str(error).split(chr(10))[0]}") from error


def require_libtpu() -> None:
    """Raises UserError where the TPU compiler is not installed."""
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(
            f"compiling for a TPU needs its compiler: {install_command('tpu')}, in an environment of its own "
            "(with libtpu installed jax looks for a TPU; set JAX_PLATFORMS=cpu where you train on something else)"
        )


def compile_report(config: Config, topology: Topology, hbm_bytes: int | None = None) -> dict[str, Any]:
    """Compiles the training step of `config` for `topology` in this process, without making any
    array, and reads the figures from the compiled program.

    Args:
      config: with the batch, mesh and dtypes to compile.
      topology: the devices to compile for.
      hbm_bytes: memory of one device, instead of the public figure.

    Returns:
      A dictionary for JSON. Bytes are per device, counts per step. `fits` is None where the memory
      of a device is not known. Where the compiler ran out of memory, `needed_bytes` is what it
      asked for, and what needs a compiled program is absent. `compile_seconds` includes tracing
      and lowering.

    Raises:
      UserError: the mesh does not make the devices, the model or the batch does not divide, or
        there is no compiler.
    """
    devices = devices_of(topology)
    mesh = make_mesh(config, devices)
    hbm_bytes = hbm_bytes or topology.hbm_bytes
    if config.model.remat_policy == "auto":
        # Where the memory is not known: the policy that needs least.
        candidates = CANDIDATES[devices[0].platform]
        policy = choose_remat(config, dict(mesh.shape), hbm_bytes, candidates).policy if hbm_bytes else candidates[-1]
        config = with_policy(config, policy)
    model, optimizer = build_model(config.model), build_optimizer(config)
    report: dict[str, Any] = {
        "topology": topology.name,
        "num_slices": topology.num_slices,
        "device_kind": devices[0].device_kind,
        "num_devices": len(devices),
        "mesh": dict(mesh.shape),
        "batch_size": config.train.batch_size,
        "remat_policy": config.model.remat_policy,
        "hbm_bytes": hbm_bytes,
        "versions": {name: _version(name) for name in ("jax", "jaxlib", "libtpu")},
    }
    begin = time.monotonic()
    try:
        compiled = compile_train_step(config, model, optimizer, mesh, abstract_state(config, optimizer, mesh))
    except jax.errors.JaxRuntimeError as error:
        found = overflow(str(error))
        if found:
            return report | found | {"compile_seconds": time.monotonic() - begin}
        raise UserError(f"the compiler refused the training step: {str(error)[:500]}") from error
    report["compile_seconds"] = time.monotonic() - begin
    figures = _figures(compiled, config, len(devices))
    needed = figures["memory"]["total"]
    return report | {"needed_bytes": needed, "fits": None if hbm_bytes is None else needed <= hbm_bytes} | figures


def _figures(compiled: jax.stages.Compiled, config: Config, num_devices: int) -> dict[str, Any]:
    """What is read from a compiled step: bytes per device, counts per step."""
    module = parse_module(compiled.as_text() or "")
    program, traffic = read_program(module, num_devices), count_traffic(module)
    return {
        "memory": _memory(compiled),
        "flops": {
            "ledger": step_flops(config) / num_devices,
            "matrix_products": program.matrix_flops,
            "xla_loops_once": (compiled.cost_analysis() or {}).get("flops"),
        },
        "traffic": {
            **traffic._asdict(),
            "by_phase": {phase: part._asdict() for phase, part in traffic.by_phase.items()},
            "buffers": [buffer._asdict() for buffer in traffic.buffers],
        },
        "collectives": [
            each._asdict() | {"dtypes": list(each.dtypes), "bytes": each.bytes, "sent_bytes": each.sent_bytes}
            for each in program.collectives
        ],
        "unknown_loops": list(program.unknown_loops),
    }


def overflow(message: str) -> dict[str, Any] | None:
    """The compiler's message when a step does not fit a device's memory; None where it failed for
    another reason. `needed_bytes` is a lower bound: what it had counted by then.
    """
    found = re.search(r"Used ([\d.]+)([KMGT]?) of [\d.]+[KMGT]? hbm|\(([\d.]+)([KMGT]?)\) exceeds available HBM", message)
    # On-chip memory (VMEM) is not the device's.
    if not found and ("RESOURCE_EXHAUSTED" not in message or "vmem" in message.lower()):
        return None
    needed = None if found is None else round(float(found[1] or found[3]) * 1024 ** " KMGT".index(found[2] or found[4] or " "))
    return {"fits": False, "needed_bytes": needed, "compiler": message.split("\n")[0][:300]}


def _memory(compiled: jax.stages.Compiled) -> dict[str, int]:
    """Bytes on one device by use. `total` is what is needed at once: arguments, outputs that do not
    reuse an argument, temporaries and the program.
    """
    stats: Any = compiled.memory_analysis()
    names = ("argument", "output", "alias", "temp", "generated_code")
    memory = {name: int(getattr(stats, f"{name}_size_in_bytes")) for name in names}
    memory["peak"] = int(getattr(stats, "peak_memory_in_bytes", 0))
    memory["total"] = memory["argument"] + memory["output"] - memory["alias"] + memory["temp"] + memory["generated_code"]
    return memory


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def measure(config: Config, topology: Topology, hbm_bytes: int | None = None) -> dict[str, Any]:
    """`compile_report` in a process of its own: jax starts with the right devices, and a crash of
    the compiler becomes an error.

    Adds `warnings`: of a libtpu that was not tested, and the partitioner's of involuntary
    rematerialisation (arrays gathered whole to change their layout).

    Raises:
      UserError: as `compile_report`, and where the compiler crashed.
    """
    if topology.kind != "local":
        require_libtpu()
    request = {"config": to_dict(config), "topology": topology.name, "num_slices": topology.num_slices, "hbm_bytes": hbm_bytes}
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_COMPILATION_CACHE": "false",  # compile_seconds are of a compilation
        "TF_CPP_MIN_LOG_LEVEL": "1",  # the partitioner's warnings, here and in the TPU compiler
        "TPU_STDERR_LOG_LEVEL": "0",
        "TPU_SKIP_MDS_QUERY": "1",  # there is no metadata server outside of Google's machines
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",  # no TPU is held; two compilations may run at once
        "PYTHONPATH": os.pathsep.join([str(Path(mhsh.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "mhsh.planning.aot"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        raise UserError(_death(done.returncode, done.stderr))
    answer = json.loads(done.stdout.splitlines()[-1])
    if "error" in answer:
        raise UserError(answer["error"])
    untested = untested_libtpu() if topology.kind != "local" else None
    complaints = re.findall(r"[^\n]*[Ii]nvoluntary full rematerialization[^\n]*", done.stderr)
    return answer | {"warnings": [*filter(None, [untested]), *(line.strip()[:400] for line in complaints)]}


def _death(status: int, stderr: str) -> str:
    versions = f"libtpu {_version('libtpu')}, jaxlib {_version('jaxlib')}"
    if status > 0:
        last = " ".join(stderr.splitlines()[-1:])[:300]
        return f"the compiling process failed ({versions}; if the two are incompatible, try another libtpu): {last}"
    known = [line.strip()[:160] for line in stderr.splitlines() if "STACK OVERFLOW" in line or "Check failed" in line]
    return (
        f"the compiler ({versions}) was ended by {signal.Signals(-status).name} ({(known + ['it said nothing'])[0]}); "
        "try another release of libtpu, another batch, or more memory on this machine"
    )


def _answer() -> None:
    """One compilation for `measure`: a request on standard input, a report (or an error) as the
    last line of standard output.
    """
    request = json.load(sys.stdin)
    try:
        topology = Topology(request["topology"], request["num_slices"])
        if topology.kind == "local":
            jax.config.update("jax_num_cpu_devices", topology.num_devices)
        answer = compile_report(from_dict(request["config"]), topology, request["hbm_bytes"])
    except UserError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))


if __name__ == "__main__":
    _answer()
