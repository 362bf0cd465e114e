"""The rows of a run as TensorBoard events in its folder."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from typing import Any

from etils import epath
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog  # pyrefly: ignore[missing-module-attribute] (made at import)
from tensorboardX.summary import scalar

from mhsh.run_folder import RunFolder
from mhsh.training.tracking.tracker import curves


class TensorBoard:
    """A `Tracker`. Files in a bucket can only be replaced: there, events are collected in a local
    folder and uploaded at `flush`.
    """

    def __init__(self, folder: RunFolder, step: int) -> None:
        """Continues after `step`."""
        self._path = folder.tensorboard_path
        self._path.mkdir(exist_ok=True)
        self._local = tempfile.TemporaryDirectory(prefix="mhsh-") if folder.is_remote else None
        events = self._path if self._local is None else epath.Path(self._local.name)
        # Events are written from this thread: SummaryWriter has its own, which would hide errors
        # such as a full disk.
        self._events = EventsWriter(str(events / "events"))
        # A new session makes TensorBoard drop the events of later steps: this run writes them
        # again.
        self._events.write_event(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START), wall_time=time.time()))

    def write(self, row: Mapping[str, Any]) -> None:
        """Adds the row of one step and split."""
        for tag, value in curves(row).items():
            self._events.write_event(Event(step=row["step"], summary=scalar(tag, value), wall_time=time.time()))

    def flush(self) -> None:
        """Writes all rows so far."""
        self._events.flush()
        if self._local is not None:
            for path in epath.Path(self._local.name).iterdir():
                (self._path / path.name).write_bytes(path.read_bytes())

    def close(self, *, failed: bool) -> None:
        """Writes all rows and closes the file."""
        self.flush()
        self._events.close()
        if self._local is not None:
            self._local.cleanup()
