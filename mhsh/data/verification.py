"""Shards whose bytes are compared with the SHA-256 in their index: once a machine, until they
change.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mhsh.data.shards import Shard, check_sha256, write_json
from mhsh.files import cache_folder, locked, read_object
from mhsh.text import quantity

_THREADS = 8
_POLL_SECONDS = 0.2
_MANY_BYTES = 2e9  # several seconds' reading, of which the user is told
_T = TypeVar("_T")


def verify_once(folder: Path, shards: Sequence[Shard]) -> None:
    """Compares every shard with the index, but for those that were compared on this machine and
    have not changed since: by the inode, the size and the time of the file's last change (ctime),
    which no program can set.

    Of several processes one reads, and the others wait.

    Raises:
      UserError: the SHA-256 of a shard, which is named, is not that of the index.
    """
    with _compared(folder) as known:
        states = _states(folder, shards)  # from before the reading: what changes meanwhile is read again
        unread = [shard for shard in shards if known.get(shard.name) != states[shard.name]]
        size = sum(shard.size for shard in unread)
        if size > _MANY_BYTES:
            print(f"comparing {quantity(size, 'B')} of {folder} with its SHA-256s, once until it changes", flush=True)
        in_threads(lambda shard: check_sha256(folder, shard), unread)
        known.update(states)


def note_verified(folder: Path, shards: Sequence[Shard]) -> None:
    """Notes that these shards were compared while they were written."""
    with _compared(folder) as known:
        known.update(_states(folder, shards))


def in_threads(function: Callable[[_T], object], items: Iterable[_T]) -> None:
    """Calls the function with each item, several at a time; the first error ends it."""
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        futures = [pool.submit(function, item) for item in items]
        try:
            for future in concurrent.futures.as_completed(futures):
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Inside the `with`, the folder's lock is this process's. Waits for it."""
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(folder))
                break
            except BlockingIOError:
                time.sleep(_POLL_SECONDS)
        yield


@contextlib.contextmanager
def _compared(folder: Path) -> Iterator[dict[str, Any]]:
    """The states that the shards of `folder` had when they were compared, by name; what is added
    inside the `with` is kept.
    """
    kept = cache_folder() / "verified" / hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    try:
        kept.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(f"cannot make {kept} ({error.strerror}): every start reads all of {folder}; set MHSH_CACHE to a folder of yours")
        yield {}
        return
    path = kept / "shards.json"
    with held(kept):
        before = read_object(path) if path.exists() else {}
        known = dict(before)
        yield known
        if known != before:
            write_json(path, known)


def _states(folder: Path, shards: Sequence[Shard]) -> dict[str, list[Any]]:
    found = [(shard, (folder / shard.name).stat()) for shard in shards]
    return {shard.name: [shard.sha256, state.st_ino, state.st_size, state.st_ctime_ns] for shard, state in found}
