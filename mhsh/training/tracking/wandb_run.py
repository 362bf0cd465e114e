"""The rows of a run in Weights & Biases, each step once however often the run is interrupted.

W&B takes steps in rising order, and a resumed run repeats those after its checkpoint. So a process
logs only what W&B lacks: the rows of metrics.jsonl after the last step that W&B has, then its own.
Online, the server names that step; offline, the files of earlier processes do. (`resume_from`,
which cuts W&B's history back, works online alone and is in beta.)
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mhsh.config.schema import to_dict
from mhsh.errors import UserError, install_command
from mhsh.files import absolute, read_object, write_atomically
from mhsh.run_folder import RunFolder
from mhsh.training.tracking.tracker import curves

IDENTITY_FILE = "wandb.json"  # in the run folder: which W&B run it is
DEFAULT_PROJECT = "mhsh"
_INIT_SECONDS = 30.0
_FINISH_SECONDS = 15.0  # a spot machine goes 30 seconds after its notice

# Of W&B's own files, which are LevelDB logs after a header of their own:
# https://github.com/google/leveldb/blob/main/doc/log_format.md
_FILE_HEADER, _BLOCK, _CHUNK_HEADER = 7, 1 << 15, struct.Struct("<IHB")  # checksum, length, kind
_WHOLE, _LAST = 1, 4  # the kinds with which a record ends


def check() -> None:
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


class WandbRun:
    """A `Tracker`: the run's W&B run. What fails there is told once and does not end the run."""

    def __init__(self, folder: RunFolder, note: Callable[[str], None]) -> None:
        """Starts or resumes it, and logs what it lacks of metrics.jsonl.

        Args:
          note: shows a line to the user.
        """
        self._folder, self._note = folder, note
        self._values: dict[str, float] = {}  # of step self._step
        self._step = self._last = self._first = 0
        self._run = None
        with self._told():
            self._run = _start(folder)
            own = Path(self._run.sync_dir)
            files = [path for path in own.parent.glob(f"offline-run-*/run-{self._run.id}.wandb") if path.parent != own]
            if self._run.offline:
                self._first = 1 + max(map(last_step, files), default=-1)
            else:
                self._first = self._run.starting_step
                for path in files:  # their rows come from metrics.jsonl: `wandb sync` must skip them
                    path.with_name(f"{path.name}.synced").touch()
        for row in folder.read_metrics().rows:
            self.write(row)

    def write(self, row: Mapping[str, Any]) -> None:
        """Adds the row of one step and split. A step is sent when the next one begins, as its rows
        are one in W&B.
        """
        self._last = row["step"]
        if row["step"] < self._first:
            return
        if row["step"] != self._step:
            self._send()
        self._step = row["step"]
        self._values |= {axis: float(row[axis]) for axis in ("tokens", "flops", "seconds")} | curves(row)

    def flush(self) -> None:
        """Does nothing: what W&B has lost when a process is killed, the next one logs."""

    def close(self, *, failed: bool) -> None:
        """Logs the last step and waits _FINISH_SECONDS at most for the upload."""
        self._send()
        with self._told():
            if self._run is not None:
                self._run.finish(exit_code=int(failed))
                _write_identity(self._folder, _identity(self._folder) | {"last_step": self._last})

    def _send(self) -> None:
        with self._told():
            if self._run is not None and self._values:
                self._run.log(self._values, step=self._step, commit=True)
        self._values = {}

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever it is, the run is worth more
            self._run = None
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            self._note(f"W&B has failed ({reason}); the run needs none of it, and the same command sends later what W&B lacks")


def send_rest(folder: RunFolder, note: Callable[[str], None]) -> None:
    """Sends what W&B lacks of a finished run, if its last process could not."""
    if _identity(folder).get("last_step") != folder.read_metrics().rows[-1]["step"]:
        WandbRun(folder, note).close(failed=False)


def last_step(path: Path) -> int:
    """The last step in a .wandb file (-1: none). A half record at its end, left by a process that
    was killed, is cut off: `wandb sync` would refuse the file.
    """
    from wandb.proto import wandb_internal_pb2

    data = path.read_bytes()
    step, begin, end, record = -1, _FILE_HEADER, 0, b""
    while True:
        if _BLOCK - begin % _BLOCK < _CHUNK_HEADER.size:  # padding
            begin += _BLOCK - begin % _BLOCK
        if begin + _CHUNK_HEADER.size > len(data):
            break
        _, length, kind = _CHUNK_HEADER.unpack_from(data, begin)
        begin += _CHUNK_HEADER.size + length
        if begin > len(data):
            break
        record += data[begin - length : begin]
        if kind in (_WHOLE, _LAST):
            parsed = wandb_internal_pb2.Record.FromString(record)  # pyrefly: ignore[missing-attribute] (made at import)
            if parsed.HasField("history"):
                step = parsed.history.step.num
            end, record = begin, b""
    if end < len(data):
        os.truncate(path, end)
    return step


def _start(folder: RunFolder) -> Any:
    """The W&B run of a run folder."""
    import wandb

    identity = _identity(folder)
    facts = {"parameters": folder.read_run()["parameters"], "run_folder": str(absolute(folder.path))}
    return wandb.init(
        project=identity["project"],
        id=identity["id"],
        name=folder.path.name,
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


def _identity(folder: RunFolder) -> dict[str, Any]:
    """The W&B project and id of a run, written down before W&B first hears of it, and the last step
    that W&B is known to have.
    """
    if not (folder.path / IDENTITY_FILE).exists():
        _write_identity(folder, {"project": os.environ.get("WANDB_PROJECT", DEFAULT_PROJECT), "id": secrets.token_hex(4)})
    return read_object(folder.path / IDENTITY_FILE)


def _write_identity(folder: RunFolder, identity: Mapping[str, Any]) -> None:
    write_atomically(folder.path / IDENTITY_FILE, json.dumps(identity) + "\n")
