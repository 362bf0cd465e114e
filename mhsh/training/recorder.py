"""Where a run's figures go: metrics.jsonl and TensorBoard, row by row, and the record of what the
run was.
"""

from __future__ import annotations

import importlib.metadata
import math
import platform
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from etils import epath
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyrefly: ignore[missing-module-attribute] (made at import)
from tensorboardX.summary import scalar

from mhsh import __version__
from mhsh.run_folder import RunFolder

RECORDED_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "tokenizers")
_UPLOAD_SECONDS = 30.0
AXES = ("step", "split", "tokens", "flops", "seconds")


class Recorder:
    """Appends rows to metrics.jsonl and TensorBoard. Opening it at a step drops what was logged
    after that step.

    In a bucket, files can only be replaced: rows are gathered there, and go out every
    _UPLOAD_SECONDS and at `flush`.
    """

    def __init__(self, folder: RunFolder, step: int) -> None:
        folder.cut_metrics(step)
        self._folder = folder
        folder.tensorboard_path.mkdir(exist_ok=True)
        self._rows: list[Mapping[str, Any]] = []
        self._uploaded = time.monotonic()
        self._local = tempfile.TemporaryDirectory(prefix="mhsh-") if folder.is_remote else None
        events = folder.tensorboard_path if self._local is None else epath.Path(self._local.name)
        # The event file is written from this thread: a SummaryWriter's own would swallow what goes
        # wrong, such as a full disk.
        self._events = EventsWriter(str(events / "events"))
        # A session that starts at a step makes TensorBoard forget the events of later steps, which
        # this run will write again.
        self._events.write_event(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START), wall_time=time.time()))

    def write(self, row: Mapping[str, Any]) -> None:
        """One logged step of one split."""
        self._rows.append(row)
        for key, value in row.items():
            # A curve has a gap where a number is not finite; metrics.jsonl says why.
            if key not in AXES and isinstance(value, int | float) and math.isfinite(value):
                summary = scalar(f"{row['split']}/{key}", value)
                self._events.write_event(Event(step=row["step"], summary=summary, wall_time=time.time()))
        if self._local is None or time.monotonic() - self._uploaded > _UPLOAD_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Everything so far is where it belongs. A checkpoint must not be newer than the rows."""
        self._folder.append_metrics(self._rows)
        self._rows = []
        self._events.flush()
        if self._local is not None:
            for path in epath.Path(self._local.name).iterdir():
                (self._folder.tensorboard_path / path.name).write_bytes(path.read_bytes())
        self._uploaded = time.monotonic()

    def close(self) -> None:
        """Ends the files."""
        self.flush()
        self._events.close()
        if self._local is not None:
            self._local.cleanup()


def environment() -> dict[str, Any]:
    """What produced the numbers: versions, code revision, devices."""
    device = jax.devices()[0]
    versions = {name: importlib.metadata.version(name) for name in RECORDED_PACKAGES}
    return {
        "versions": {"mhsh": __version__, "python": platform.python_version(), **versions},
        "git_revision": git_revision(),
        "devices": {"platform": device.platform, "kind": device.device_kind, "count": jax.device_count()},
        "processes": jax.process_count(),
    }


def git_revision() -> str | None:
    """The commit of the code that runs, `+changes` where files differ from it; None outside a
    checkout.
    """
    here = Path(__file__).resolve().parent
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True).stdout.strip()
        dirty = subprocess.run(["git", "status", "--porcelain"], cwd=here, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None  # no git, or no checkout: the version is then the only name the code has
    return head + ("+changes" if dirty.strip() else "")
