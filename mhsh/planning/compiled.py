"""The training step compiled for a TPU slice or for GPUs without access to them: the compiler's
memory and collectives.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

import mhsh
from mhsh.config.entries import files_of
from mhsh.config.registry import load_files
from mhsh.config.resolve import from_dict
from mhsh.config.schema import Config, to_dict
from mhsh.errors import UserError, install_command
from mhsh.models.build import build_model, describe_fallbacks
from mhsh.models.costs import step_flops
from mhsh.planning.hlo import Module, launches, parse_module, read_collectives
from mhsh.planning.roofline import CHIPS, Chip, product_flops
from mhsh.training.mesh import make_mesh
from mhsh.training.optimizer import build_optimizer
from mhsh.training.plan import Devices, plan_run
from mhsh.training.state import unbox_state
from mhsh.training.step import compile_train_step

# The packages that bring a platform's compiler, and the extra of ours that has it. One is enough.
_COMPILERS = {"tpu": ("libtpu",), "gpu": ("jax-cuda12-plugin", "jax-cuda13-plugin")}
_EXTRAS = {"tpu": "tpu", "gpu": "gpu-compile"}


class Topology(NamedTuple):
    """The devices of a compilation: `v5e:4x4`, several slices of it, `h100:8`, or `local:8`
    (simulated on the CPU).
    """

    name: str
    num_slices: int
    num_devices: int  # over all slices
    chip: Chip | None  # None: simulated

    @property
    def platform(self) -> str:
        """tpu, gpu, or cpu for simulated devices."""
        return self.chip.platform if self.chip else "cpu"

    @property
    def hbm_bytes(self) -> int | None:
        """Memory of one device; None for simulated ones."""
        return self.chip.hbm_bytes if self.chip else None


def parse_topology(name: str, num_slices: int = 1) -> Topology:
    """The topology of that name, checked as far as possible without the compiler. Raises UserError
    where the kind or the layout is unknown, or slices are given where there are none.
    """
    kind, _, layout = name.partition(":")
    chip = CHIPS.get(kind)
    dimensions = (chip.dimensions or 1) if chip else int(kind == "local")
    if not dimensions or not re.fullmatch("x".join([r"[1-9]\d*"] * dimensions), layout):
        layouts = {3: "2x2x1", 2: "4x4", 0: "8"}  # by dimensions
        known = ", ".join(f"{name}:{layouts[one.dimensions]}" for name, one in CHIPS.items())
        raise UserError(f"--topology={name} is not a slice; allowed: {known}, local:8, of any size")
    if num_slices > 1 and (chip is None or chip.platform == "gpu"):
        raise UserError(f"--num-slices={num_slices}: {kind}:N is one slice; leave out --num-slices")
    slice_devices = math.prod(map(int, layout.split("x"))) * (chip.devices_per_chip if chip else 1)
    return Topology(name, num_slices, num_slices * slice_devices, chip)


def compiler_of(platform: str) -> str | None:
    """The installed package with the compiler for that platform; None where there is none."""
    return next((name for name in _COMPILERS[platform] if _version(name)), None)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def measure(
    config: Config, topology: Topology, hbm_bytes: int | None = None, hlo_path: Path | None = None, runs: int = 1
) -> dict[str, Any]:
    """`compile_report` in a process of its own: jax starts with the right devices, and a crash of
    the compiler becomes an error.

    Adds `warnings`: the partitioner's of involuntary rematerialisation (arrays gathered whole to
    change their layout). Raises UserError as `compile_report`, and where the compiler crashed.
    """
    platform = topology.platform
    if platform != "cpu" and compiler_of(platform) is None:
        device = platform.upper()
        raise UserError(
            f"compiling for a {device} needs its compiler: {install_command(_EXTRAS[platform])}, in an environment of its own "
            f"(with it installed jax looks for a {device}; set JAX_PLATFORMS=cpu where you train on something else)"
        )
    request = {
        "config": to_dict(config),
        "with": files_of(config),
        "topology": [topology.name, topology.num_slices],
        "hbm_bytes": hbm_bytes,
        "hlo_path": None if hlo_path is None else str(hlo_path.absolute()),
        "runs": runs,
    }
    flags = os.environ.get("XLA_FLAGS", "").split()
    if platform == "tpu":
        flags = [flag for flag in flags if not flag.startswith("--xla_cpu_")]  # libtpu ends a process that has one
    environment = os.environ | {
        "XLA_FLAGS": " ".join(flags),
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_COMPILATION_CACHE": "false",  # compile_seconds are of a compilation
        "JAX_TRACEBACK_FILTERING": "off",  # the last line of an error is then the error
        "TF_CPP_MIN_LOG_LEVEL": "1",  # the partitioner's warnings, here and in the TPU compiler
        "TPU_STDERR_LOG_LEVEL": "0",
        "TPU_SKIP_MDS_QUERY": "1",  # there is no metadata server outside of Google's machines
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",  # no TPU is held; two compilations may run at once
        "PYTHONPATH": os.pathsep.join([str(Path(mhsh.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "mhsh.planning.compiled"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        raise UserError(_describe_crash(done.returncode, done.stderr, platform))
    answer = json.loads(done.stdout.splitlines()[-1])
    if "error" in answer:
        raise UserError(answer["error"])
    warnings = re.findall(r"[^\n]*[Ii]nvoluntary full rematerialization[^\n]*", done.stderr)
    return answer | {"warnings": [line.strip()[:400] for line in warnings]}


def _describe_crash(status: int, stderr: str, platform: str) -> str:
    compiler = (compiler_of(platform) if platform != "cpu" else None) or "libtpu"
    versions = f"{compiler} {_version(compiler)}, jaxlib {_version('jaxlib')}"
    if status > 0:
        last = " ".join(stderr.splitlines()[-1:])[:300]
        return f"the compiling process failed ({versions}; if the two are incompatible, try another {compiler}): {last}"
    known = [line.strip()[:160] for line in stderr.splitlines() if "STACK OVERFLOW" in line or "Check failed" in line]
    return (
        f"the compiler ({versions}) was ended by {signal.Signals(-status).name} ({(known + ['it said nothing'])[0]}); "
        f"try another release of {compiler}, another batch, or more memory on this machine"
    )


def _answer() -> None:
    """One compilation for `measure`: a request on standard input, a report (or an error) as the
    last line of standard output.
    """
    request = json.load(sys.stdin)
    try:
        topology = parse_topology(*request["topology"])
        load_files(request["with"])
        if topology.platform == "cpu":
            jax.config.update("jax_num_cpu_devices", topology.num_devices)
        path = request["hlo_path"] and Path(request["hlo_path"])
        answer = compile_report(from_dict(request["config"]), topology, request["hbm_bytes"], path, request["runs"])
    except UserError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))


def compile_report(
    config: Config, topology: Topology, hbm_bytes: int | None = None, hlo_path: Path | None = None, runs: int = 1
) -> dict[str, Any]:
    """Compiles the training step of `config` for `topology` in this process, without making any
    array. Returns the figures of the compiled program for JSON: bytes are per device, counts per
    step. `fits` is None where the memory of a device is not known. Where the compiler ran out of
    memory, `needed_bytes` is what it asked for, and the figures of a program are absent.

    Args:
      hbm_bytes: memory of one device, instead of the public figure.
      hlo_path: a file for the program's text.
      runs: that are trained together.

    Raises UserError where the mesh does not make the devices, the model or the batch does not
    divide, or the compiler is missing.
    """
    devices = _devices_of(topology)
    hbm_bytes = hbm_bytes or topology.hbm_bytes
    config, boxed, shape, *_ = plan_run(config, Devices(len(devices), topology.num_slices, topology.platform, hbm_bytes), runs)
    mesh = make_mesh(shape, devices)
    with jax.set_mesh(mesh):
        fallbacks = describe_fallbacks(config.model)
    report: dict[str, Any] = {
        "topology": topology.name,
        "num_slices": topology.num_slices,
        "device_kind": devices[0].device_kind,
        "num_devices": len(devices),
        "mesh": dict(mesh.shape),
        "batch_size": config.train.batch_size,
        "remat_policy": config.model.remat_policy,
        "fallbacks": fallbacks,
        "hbm_bytes": hbm_bytes,
        "versions": {name: _version(name) for name in ("jax", "jaxlib", *_COMPILERS.get(topology.platform, ()))},
        "flops": {"ledger": step_flops(config) / len(devices), "matrix_products": product_flops(config, mesh.shape)},
    }
    begin, optimizer = time.monotonic(), build_optimizer(config)
    try:
        state = unbox_state(boxed, mesh, config.model)
        compiled = compile_train_step(config, build_model(config.model), optimizer, mesh, state, runs)
    except jax.errors.JaxRuntimeError as error:
        too_large = overflow(str(error))
        if too_large:
            return report | too_large | {"compile_seconds": time.monotonic() - begin}
        raise UserError(f"the compiler refused the training step: {str(error)[:500]}") from error
    report["compile_seconds"] = time.monotonic() - begin
    text = compiled.as_text() or ""
    if hlo_path is not None:
        hlo_path.write_text(text, encoding="utf-8")
    return report | _program_figures(_memory(compiled), parse_module(text), topology, hbm_bytes)


def _program_figures(memory: Mapping[str, int], module: Module, topology: Topology, hbm_bytes: int | None) -> dict[str, Any]:
    """The part of `compile_report` that is read off a compiled program."""
    fits = None if hbm_bytes is None else memory["total"] <= hbm_bytes
    collectives, unknown = read_collectives(module, topology.num_devices)
    return {
        "needed_bytes": memory["total"],
        "fits": fits,
        "memory": memory,
        "collectives": [
            one._asdict() | {"dtypes": list(one.dtypes), "bytes": one.bytes, "sent_bytes": one.sent_bytes} for one in collectives
        ],
        "unknown_loops": unknown,
        # What a GPU starts one by one; a TPU runs a whole program.
        "launches": launches(module) if topology.platform == "gpu" else None,
    }


def _devices_of(topology: Topology) -> Sequence[Any]:
    """The devices to compile for. `local:N` needs a process with N simulated devices, as `measure`
    starts. Raises UserError where the compiler does not know the devices.
    """
    if topology.chip is None:
        return jax.devices("cpu")[: topology.num_devices]
    from jax.experimental import topologies

    chip, number = topology.chip, topology.num_devices
    if chip.gpu is not None:
        per_machine = number if number <= chip.domain else math.gcd(number, chip.domain)
        layout = f"1x{number // per_machine}x{per_machine}"  # one slice, machines, GPUs of each
        options: dict[str, Any] = {"target_config": _gpu_target(chip), "topology": layout}
    else:
        # A device is a whole chip, both cores of a v4 or v5p, unless two are one.
        options = {"chip_config_name": "megacore"} if chip.dimensions == 3 and chip.devices_per_chip == 1 else {}
        if number == topology.num_slices * chip.devices_per_chip:
            options["chips_per_host_bounds"] = (1, 1, 1)
        if topology.num_slices > 1:
            options["num_slices"] = topology.num_slices
    try:
        name = {"tpu": "tpu", "gpu": "cuda"}[topology.platform]
        return topologies.get_topology_desc(platform=name, topology_name=topology.name, **options).devices
    except jax.errors.JaxRuntimeError as error:
        raise UserError(f"--topology={topology.name}: {str(error).split(chr(10))[0]}") from error


def _gpu_target(chip: Chip) -> str:
    """An NVIDIA GPU as XLA's GpuTargetConfigProto, so that it compiles without one."""
    gpu = chip.gpu
    assert gpu is not None
    major, minor = gpu.compute_capability
    return f"""
        gpu_device_info {{
          cuda_compute_capability {{ major: {major} minor: {minor} }}
          core_count: {gpu.multiprocessors} clock_rate_ghz: {gpu.clock_ghz} fpus_per_core: {gpu.fp32_lanes}
          threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
          block_dim_limit_x: {2**31 - 1} block_dim_limit_y: {2**16 - 1} block_dim_limit_z: {2**16 - 1}
          registers_per_core_limit: {2**16} registers_per_block_limit: {2**16}
          shared_memory_per_block: {48 * 2**10} shared_memory_per_block_optin: {(gpu.shared_kib - 1) * 2**10}
          shared_memory_per_core: {gpu.shared_kib * 2**10} l2_cache_size: {gpu.cache_mib * 2**20}
          device_memory_size: {chip.hbm_bytes} memory_bandwidth: {chip.hbm_bandwidth:.0f}
          driver_version: "12.9.0" runtime_version: "12.9.0"
        }}
        platform_name: "CUDA" device_description_str: "{chip.device_kind}"
        dnn_version_info {{ major: 9 minor: 10 patch: 0 }} runtime_version {{ major: 12 minor: 9 patch: 0 }}
    """


def overflow(message: str) -> dict[str, Any] | None:
    """The compiler's message when a step does not fit a device's memory; None where it failed for
    another reason. `needed_bytes` is a lower bound: what it had counted by then.
    """
    match = re.search(r"Used ([\d.]+)([KMGT]?) of [\d.]+[KMGT]? hbm|\(([\d.]+)([KMGT]?)\) exceeds available HBM", message)
    # On-chip memory (VMEM) is not the device's.
    if not match and ("RESOURCE_EXHAUSTED" not in message or "vmem" in message.lower()):
        return None
    needed = None if match is None else round(float(match[1] or match[3]) * 1024 ** " KMGT".index(match[2] or match[4] or " "))
    return {"fits": False, "needed_bytes": needed, "compiler": message.split("\n")[0][:300]}


def _memory(compiled: jax.stages.Compiled) -> dict[str, int]:
    """Bytes on one device by use. `total` is what is needed at once; `peak` is the compiler's own
    count.
    """
    stats: Any = compiled.memory_analysis()
    memory = {
        "arguments": int(stats.argument_size_in_bytes),  # state and batch
        "other_outputs": int(stats.output_size_in_bytes - stats.alias_size_in_bytes),  # than in the place of an argument
        "temporaries": int(stats.temp_size_in_bytes),
        "program": int(stats.generated_code_size_in_bytes),
    }
    return memory | {"total": sum(memory.values()), "peak": int(getattr(stats, "peak_memory_in_bytes", 0))}


if __name__ == "__main__":
    _answer()
