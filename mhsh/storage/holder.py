"""Which process trains in a run folder: one at a time, on a disk or in a bucket."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from etils import epath

from mhsh.errors import UserError
from mhsh.storage.bucket import is_remote
from mhsh.storage.bucket_lock import Watch, bucket_lock
from mhsh.storage.disk_lock import locked, unlocked_mount
from mhsh.storage.files import clear_half_files, read_object, write_atomically
from mhsh.storage.questions import exists

HOLDER_FILE = ".holder.json"  # of the process that trains; exists while it does


class InUse(UserError):
    """Another process trains in the folder."""


@contextlib.contextmanager
def held(folder: epath.Path, watch: Watch | None = None) -> Iterator[str]:
    """Keeps other processes from the run inside the `with`. The folder must exist.

    Yields a note for the user: empty, or why nothing keeps other processes away.

    Args:
      watch: of a worker, which does not wait to see whether a holder is dead.

    Raises InUse where another process holds it.
    """
    record = {"host": socket.gethostname(), "process": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S %Z")}
    lock, note = (_bucket_lock(folder, record, watch) if is_remote(folder) else _local_lock(Path(folder), record)), ""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock)
        except BlockingIOError:
            raise InUse(
                f"{folder} is in use: {holder(folder)}; wait until it ends or stop it, or choose another --workdir"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            note = f"{folder} has no locks ({error.strerror}): nothing keeps a second process from this run"
        mount = "" if is_remote(folder) else unlocked_mount(Path(folder))
        if mount:
            note = f"{folder} is on {mount}: nothing keeps a process on another machine from this run"
        yield note


def is_held(folder: epath.Path) -> bool:
    """Whether a process trains in the folder. In a bucket it may have died a moment ago."""
    if not exists(folder / HOLDER_FILE):
        return False
    if is_remote(folder):
        return True
    try:
        with locked(Path(folder)):
            return False
    except BlockingIOError:
        return True


def holder(folder: epath.Path) -> str:
    """Who trains there, in words."""
    try:
        record = read_object(folder / HOLDER_FILE)
    except UserError:  # it has just begun or ended
        return "another process trains there"
    return f"process {record.get('process')} on {record.get('host')} has trained there since {record.get('since')}"


def _bucket_lock(folder: epath.Path, record: Mapping[str, Any], watch: Watch | None) -> contextlib.AbstractContextManager[None]:
    def waiting() -> None:
        print(f"{folder}: {holder(folder)}; waiting up to a minute to see whether it still runs")

    return bucket_lock(str(folder / HOLDER_FILE), record, waiting, watch)


@contextlib.contextmanager
def _local_lock(folder: Path, record: Mapping[str, Any]) -> Iterator[None]:
    with locked(folder):
        clear_half_files(folder)
        write_atomically(folder / HOLDER_FILE, json.dumps(record, indent=2) + "\n")
        try:
            yield
        finally:
            (folder / HOLDER_FILE).unlink(missing_ok=True)
