"""The trackers to which the rows of a run go beside metrics.jsonl: train.tracker names one. A row
has the figures of one step and split. No tracker changes a number of the run.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from etils import epath
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyrefly: ignore[missing-module-attribute] (made at import)
from tensorboardX.summary import scalar

from mhsh.config.schema import to_dict
from mhsh.errors import UserError, install_command
from mhsh.storage.files import absolute, make_folder, read_object, write_atomically
from mhsh.storage.questions import exists, paths_in
from mhsh.storage.run_folder import RunFolder

AXES = ("step", "split", "tokens", "flops", "seconds")
WANDB_FILE = "wandb.json"  # in the run folder: which W&B run it is
_INIT_SECONDS = 30.0
_FINISH_SECONDS = 15.0  # a spot machine goes 30 seconds after its notice


class Tracker:
    """Takes the rows of a run. By default it does nothing."""

    def on_step(self, step: int) -> None:
        """A step is done, whether it has a row or not."""

    def on_row(self, row: Mapping[str, Any]) -> None:
        """Takes the row of one step and split, in the order of the steps."""

    def flush(self) -> None:
        """Writes all rows so far."""

    def close(self, *, failed: bool) -> None:
        """Ends, after a `flush`; `failed`: an error has ended the run."""


def curves(row: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a row by tag, such as train/loss, without the axes. One that is not finite is
    left out, which leaves a gap in its curve; metrics.jsonl has null.
    """
    return {
        f"{row['split']}/{key}": float(value)
        for key, value in row.items()
        if key not in AXES and isinstance(value, int | float) and math.isfinite(value)
    }


class TensorBoard(Tracker):
    """Writes rows as TensorBoard events. For a bucket it collects them in a local folder, which it
    uploads at `flush`.
    """

    def __init__(self, folder: RunFolder, step: int) -> None:
        """Continues after `step`."""
        self._path = folder.tensorboard_path
        make_folder(self._path)
        self._local = tempfile.TemporaryDirectory(prefix="mhsh-") if folder.is_remote else None
        events = self._path if self._local is None else epath.Path(self._local.name)
        # Events are written from this thread: SummaryWriter has its own, which would hide errors
        # such as a full disk.
        self._events = EventsWriter(str(events / "events"))
        # A new session makes TensorBoard drop the events of later steps: this run writes them
        # again.
        self._events.write_event(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START), wall_time=time.time()))

    def on_row(self, row: Mapping[str, Any]) -> None:
        for tag, value in curves(row).items():
            self._events.write_event(Event(step=row["step"], summary=scalar(tag, value), wall_time=time.time()))

    def flush(self) -> None:
        self._events.flush()
        if self._local is not None:
            for path in paths_in(epath.Path(self._local.name)):
                (self._path / path.name).write_bytes(path.read_bytes())

    def close(self, *, failed: bool) -> None:
        self._events.close()
        if self._local is not None:
            self._local.cleanup()


class WandbRun(Tracker):
    """Sends rows to Weights & Biases. What fails there is told once and does not end the run.

    W&B takes each step once, in rising order. So a process first sends what W&B lacks of
    metrics.jsonl, and leaves out the steps that W&B has. Online, the server names the last of them.
    Offline there is nobody to ask: each process writes the whole run, and `wandb sync` uploads the
    file of the last one alone.
    """

    def __init__(self, folder: RunFolder, note: Callable[[str], None]) -> None:
        """Starts or resumes the W&B run of `folder`; `note` shows a line to the user."""
        self._note = note
        self._first = 0  # the first step that W&B lacks
        self._run = None
        with self._report_failure():
            self._run = _start_wandb(folder)
            self._first = 0 if self._run.offline else self._run.starting_step
            own = Path(self._run.sync_dir)
            for path in own.parent.glob(f"offline-run-*/run-{self._run.id}.wandb"):
                if path.parent != own:
                    path.with_name(f"{path.name}.synced").touch()  # `wandb sync` skips it
        for row in folder.rows():
            self.on_row(row)

    def on_row(self, row: Mapping[str, Any]) -> None:
        if self._run is not None and row["step"] >= self._first:
            with self._report_failure():
                # W&B joins the rows of one step.
                self._run.log({axis: float(row[axis]) for axis in AXES[2:]} | curves(row), step=row["step"])

    def close(self, *, failed: bool) -> None:
        """Waits _FINISH_SECONDS at most for the upload."""
        with self._report_failure():
            if self._run is not None:
                self._run.finish(exit_code=int(failed))

    @contextlib.contextmanager
    def _report_failure(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever it is, the run is worth more
            self._run = None
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            self._note(f"W&B has failed ({reason}); the run needs none of it, and the same command sends later what W&B lacks")


def check_wandb() -> None:
    """Raises UserError where wandb is not installed, or has no API key and is not offline. On a
    terminal, wandb asks for the key.
    """
    try:
        import wandb
    except ImportError as error:
        raise UserError(f"train.tracker = 'wandb' needs the package wandb ({error}): {install_command('wandb')}") from error
    if wandb.setup().settings.mode != "online":
        return
    try:
        wandb.login(verify=False)
    except wandb.Error as error:
        raise UserError(
            f"train.tracker = 'wandb': {error}; or set WANDB_MODE=offline, and `wandb sync` uploads the run later"
        ) from error


def _start_wandb(folder: RunFolder) -> Any:
    import wandb

    identity = _identity(folder)
    facts = {"parameters": folder.read_run("parameters")["parameters"], "run_folder": str(absolute(folder.path))}
    return wandb.init(
        project=identity["project"],
        id=identity["id"],
        name=folder.name,
        dir=None if folder.is_remote else str(folder.path),
        resume="allow",
        config=to_dict(folder.read_config()) | facts,
        settings=wandb.Settings(
            quiet=True,
            console="off",
            init_timeout=_INIT_SECONDS,
            finish_timeout=_FINISH_SECONDS,
            finish_timeout_raises=True,
        ),
    )


def _identity(folder: RunFolder) -> dict[str, str]:
    """The W&B project and id of a run, written down before W&B first hears of it."""
    path = folder.path / WANDB_FILE
    if not exists(path):
        identity = {"project": os.environ.get("WANDB_PROJECT", "mhsh"), "id": secrets.token_hex(4)}
        write_atomically(path, json.dumps(identity) + "\n")
    return read_object(path)
