"""A trace of some steps by jax.profiler, and where their time went by phase and part of the model.

A run only writes the trace. Reading it is left to `mhsh profile`: a fault in it must not end a run.

The trace is readable in xprof (`xprof --logdir=RUN/profile`) and in Perfetto (the .trace.json.gz).
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
from etils import epath

from mhsh.config.resolve import profiled_steps
from mhsh.config.schema import TrainConfig
from mhsh.errors import UserError
from mhsh.files import read_object, write_atomically
from mhsh.models.types import SUBLAYERS
from mhsh.run_folder import PROFILE_FOLDER

# An instruction of an HLO text: its name, what it does, and jax's path of the operation.
_INSTRUCTION = re.compile(r'^\s*(?:ROOT )?%?([\w.\-]+) = .*?\s([a-z][\w\-]*)\(.*?op_name="([^"]*)"', re.MULTILINE)
# What these run has events of its own.
_CALLERS = ("while", "call", "conditional")

_PARTS = (
    *sorted({name for names in SUBLAYERS.values() for name in names}, key=len, reverse=True),
    "embeddings",
    "prediction",
    "pooler",
    "next_sentence",
    "classification",
    "span",
    "loss",
    "gather_weights",
    "add_up_gradients",
)


class Profiler:
    """Traces the steps that train.profile_steps names, on every process."""

    def __init__(self, train: TrainConfig, folder: epath.Path, program: Callable[[], str]) -> None:
        """`program` returns the compiled step's text."""
        self.first, self.last = profiled_steps(train.profile_steps, train.num_steps) or (None, None)
        self._folder, self._program = folder / PROFILE_FOLDER, program
        self._trace: Path | None = None

    def start(self, state: Any) -> None:
        """Begins when the device has made the steps before."""
        jax.block_until_ready(state)
        self._trace = Path(tempfile.mkdtemp(prefix="mhsh-profile-"))
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # it would slow down what is measured
        jax.profiler.start_trace(str(self._trace), profiler_options=options)

    def finish(self, state: Any) -> str:
        """Writes the trace, in the place of an earlier one of the same steps.

        Returns one line that says where they are.
        """
        if self._trace is None:
            return f"no profile: the run was resumed after step {self.first}"
        jax.block_until_ready(state)
        jax.profiler.stop_trace()
        name = f"steps_{self.first}_to_{self.last}"
        # As xprof expects it: a folder a session, and in it the files of each host.
        session = self._folder / "plugins" / "profile" / name
        session.mkdir(parents=True, exist_ok=True)
        for file in self._trace.rglob("*.*"):
            if file.is_file():
                (session / f"process_{jax.process_index()}.{file.name.split('.', 1)[1]}").write_bytes(file.read_bytes())
        if jax.process_index() == 0:
            record = {
                "first_step": self.first,
                "last_step": self.last,
                "devices": jax.local_device_count(),
                "device_kind": jax.devices()[0].device_kind,
                "operations": {name: [opcode, path] for name, opcode, path in _INSTRUCTION.findall(self._program())},
            }
            write_atomically(self._folder / f"{name}.json", json.dumps(record) + "\n")
        shutil.rmtree(self._trace)
        self._trace = None
        return f"profile of steps {self.first} to {self.last}: {self._folder} (mhsh profile shows it)"


def summary(folder: epath.Path, name: str) -> dict[str, Any]:
    """Milliseconds a step by phase and part of a profile of that name in a run folder, over all
    devices of process 0, the largest first.

    An operation counts for the scope in which jax traced it; one that XLA fused out of several, for
    one of them. On a CPU an operation's time is that of the thread that runs it.

    Raises:
      UserError: a file of the profile is missing or damaged.
    """
    record = read_object(folder / PROFILE_FOLDER / f"{name}.json")
    trace = folder / PROFILE_FOLDER / "plugins" / "profile" / name / "process_0.xplane.pb"
    try:
        content = trace.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {trace}: {error.strerror}") from error
    scopes = {operation: (opcode, scope_of(path)) for operation, (opcode, path) in record["operations"].items()}
    nanoseconds: defaultdict[tuple[str, str], float] = defaultdict(float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of jaxlib's own types
        for operation, duration in _operations(jax.profiler.ProfileData.from_serialized_xspace(content)):
            opcode, scope = scopes.get(operation, ("", ("other", "other")))
            if opcode not in _CALLERS:
                nanoseconds[scope] += duration
    num_steps = record["last_step"] - record["first_step"] + 1
    return {
        **{key: record[key] for key in ("first_step", "last_step", "devices", "device_kind")},
        "milliseconds_per_step": [
            {"phase": phase, "part": part, "milliseconds": duration / num_steps / 1e6}
            for (phase, part), duration in sorted(nanoseconds.items(), key=lambda item: -item[1])
        ],
    }


def scope_of(path: str) -> tuple[str, str]:
    """Phase and part of the model of an operation, from jax's path of it."""
    steps = path.split("/")
    if "optimizer" in steps:
        return "optimizer", "all"
    inside = re.findall(r"[\w.]+", path)
    part = next((name for name in reversed(inside) if name in _PARTS), None)
    if part is None:
        residual = next((name for name in inside if name.endswith("_residual")), None)
        part = "residual sums and LayerNorm" if residual or "norm" in inside else "other"
    if "rematted_computation" in steps:
        return "recomputed", part
    if "transpose(" in path:
        return "backward", part
    return ("forward", part) if "jvp(" in path else ("other", part)


def _operations(trace: Any) -> Iterable[tuple[str, float]]:
    """Operations of compiled programs and their nanoseconds. On a TPU they have a line of their
    own; on a CPU or GPU each event names its operation.
    """
    for plane in trace.planes:
        for line in plane.lines:
            for event in line.events:
                if line.name == "XLA Ops":
                    yield event.name.split(" = ")[0].lstrip("%"), event.duration_ns
                    continue
                operation = dict(event.stats).get("hlo_op")
                if operation:
                    yield str(operation), event.duration_ns
