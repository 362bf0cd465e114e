"""Which process trains in a run folder: one at a time, on a disk or in a bucket.

In a bucket the lock is an object that its holder creates, refreshes and deletes. Only one of two
processes creates it (`GuardedObject`). It outlives a process that dies: it is dead when it has not
been refreshed for DEAD_SECONDS. Processes watch it for that long, so that no two clocks have to
agree. Seconds in which the bucket answers nobody do not count, as its holder lives through them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from etils import epath

from mhsh.errors import Unavailable, UserError
from mhsh.storage.bucket import GuardedObject, LostObject, is_remote
from mhsh.storage.disk_lock import hold_lock, unlocked_mount
from mhsh.storage.files import clear_half_files, read_object, write_atomically
from mhsh.storage.outage import one_try, seconds_of_answers
from mhsh.storage.questions import exists

HOLDER_FILE = ".holder.json"  # of the process that trains; exists while it does
REFRESH_SECONDS = 10.0
DEAD_SECONDS = 45.0
_POLL_SECONDS = 1.0
_LOST_LOCK_STATUS = 2  # the exit status of a process whose lock was taken


class InUse(UserError):
    """Another process trains in the folder."""


@contextlib.contextmanager
def hold_run(folder: epath.Path, watch: Watch | None = None) -> Iterator[str]:
    """Keeps other processes from the run inside the `with`. The folder must exist. With the `watch`
    of a worker, it does not wait to see whether a holder is dead.

    Yields a note for the user: empty, or why nothing keeps other processes away. Raises InUse where
    another process holds it.
    """
    record = {"host": socket.gethostname(), "process": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S %Z")}

    def on_wait() -> None:
        print(f"{folder}: {describe_holder(folder)}; waiting up to a minute to see whether it still runs")

    note = ""
    with contextlib.ExitStack() as stack:
        try:
            if is_remote(folder):
                stack.enter_context(bucket_lock(str(folder / HOLDER_FILE), record, on_wait, watch))
            else:
                stack.enter_context(hold_lock(Path(folder)))
                clear_half_files(Path(folder))
                stack.callback((Path(folder) / HOLDER_FILE).unlink, missing_ok=True)
                write_atomically(folder / HOLDER_FILE, _dump(record))
        except BlockingIOError:
            raise InUse(
                f"{folder} is in use: {describe_holder(folder)}; wait until it ends or stop it, or choose another --workdir"
            ) from None
        except OSError as error:
            if error.errno != errno.ENOLCK:
                raise
            note = f"{folder} has no locks ({error.strerror}): nothing keeps a second process from this run"
        mount = "" if is_remote(folder) else unlocked_mount(Path(folder))
        if mount:
            note = f"{folder} is on {mount}: nothing keeps a process on another machine from this run"
        yield note


def is_held(folder: epath.Path) -> bool:
    """Whether a process trains in the folder. In a bucket it may have died a moment ago, and where
    this machine has no locks long ago.
    """
    if not exists(folder / HOLDER_FILE):
        return False
    if is_remote(folder):
        return True
    try:
        with hold_lock(Path(folder)):
            return False
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.ENOLCK):
            raise
        return True


def describe_holder(folder: epath.Path) -> str:
    """The process that trains in the folder, in words."""
    try:
        record = read_object(folder / HOLDER_FILE)
    except UserError:  # it has just begun or ended
        return "another process trains there"
    return f"process {record.get('process')} on {record.get('host')} has trained there since {record.get('since')}"


class Watch:
    """The locks that a process has looked at and does not wait for, as it saw them each time."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}  # a lock's generation, and since when it has that

    def replaceable_generation(self, path: str) -> int:
        """The generation of the lock that a new holder replaces; 0: there is no lock. Raises
        BlockingIOError where its holder lives, or is not known to be dead yet.
        """
        now = GuardedObject(path).generation()
        seen, since = self._seen.get(path, (0, 0.0))
        if now != seen:
            self._seen[path] = seen, since = now, time.monotonic()
        if now and _seconds_watched(since) < DEAD_SECONDS:
            raise BlockingIOError(f"{path} may still be refreshed")
        return now


@contextlib.contextmanager
def bucket_lock(path: str, holder: Mapping[str, Any], on_wait: Callable[[], None], watch: Watch | None = None) -> Iterator[None]:
    """Holds the lock object gs://BUCKET/NAME inside the `with`; its content is `holder`.

    If the object exists, this process calls `on_wait` and waits up to DEAD_SECONDS to see whether
    the lock is dead; with a `watch` it takes the lock where that has seen so. A holder that was
    frozen and finds its lock taken ends at once, before it can write into the other's run: with
    status 2, and with a `watch` 75, as it has other work. Raises BlockingIOError where another
    process holds it. Raises UserError where the bucket allows no writing. Raises Unavailable where
    it does not answer.
    """
    lock, content = GuardedObject(path), _dump(holder).encode()
    dead = _wait_until_dead(lock, path, on_wait) if watch is None else watch.replaceable_generation(path)
    try:
        lock.write(content, dead)
    except LostObject:
        raise BlockingIOError(f"another process has just taken {path}") from None
    released = threading.Event()

    def refresh() -> None:
        """Ends this process if another has taken the lock; without an answer the next one sees."""
        try:
            with one_try(), contextlib.suppress(Unavailable, UserError, OSError):
                lock.write(content)
        except LostObject:
            line = f"mhsh: {path} was taken by another process, as this one had not refreshed it for long; stopped\n"
            os.write(2, line.encode())
            os._exit(_LOST_LOCK_STATUS if watch is None else os.EX_TEMPFAIL)

    def refresh_until_released() -> None:
        while not released.wait(REFRESH_SECONDS):
            refresh()

    thread = threading.Thread(target=refresh_until_released, name="bucket lock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        released.set()
        thread.join()
        refresh()  # a process that wakes and ends at once finds out here
        # A lock that cannot be deleted is dead after DEAD_SECONDS.
        with one_try(), contextlib.suppress(Unavailable, UserError, OSError):
            lock.delete()


def _wait_until_dead(lock: GuardedObject, path: str, on_wait: Callable[[], None]) -> int:
    """The generation of a lock that is dead; 0: there is none."""
    seen = lock.generation()
    if seen:
        on_wait()
    begun = time.monotonic()
    while seen and _seconds_watched(begun) < DEAD_SECONDS:
        time.sleep(_POLL_SECONDS)
        now = lock.generation()
        if now and now != seen:
            raise BlockingIOError(f"{path} is refreshed by another process")
        seen = now
    return seen


def _seconds_watched(since: float) -> float:
    """The seconds since then, or since a later outage: in one nobody could refresh a lock."""
    return min(time.monotonic() - since, seconds_of_answers())


def _dump(record: Mapping[str, Any]) -> str:
    return json.dumps(record, indent=2) + "\n"
