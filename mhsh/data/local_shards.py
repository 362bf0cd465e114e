"""Prepared examples on this machine and in buckets: copied, and compared with their SHA-256.

Training reads single records in random order, each a request of tens of milliseconds to a bucket.
So shards in a bucket are copied once to a folder of the cache that has the fingerprint of their
index. Every shard is compared with the index once a machine, until it changes.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import functools
import hashlib
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from etils import epath

from mhsh.data.shards import INDEX_FILE, REMEDY, Shard, StoredTable, check_shard, read_index, shards_of, write_json
from mhsh.errors import UserError
from mhsh.storage.bucket import is_remote
from mhsh.storage.disk_lock import hold_lock
from mhsh.storage.files import cache_folder, clear_half_files, make_folder, open_binary, read_object, replace_atomically
from mhsh.storage.questions import exists, paths_in
from mhsh.text import quantity

_THREADS = 8
_MANY_BYTES = 2e9  # several seconds' reading, of which the user is told


def open_table(folder: epath.Path) -> StoredTable:
    """The examples in a folder, local or in a bucket, after every shard has been compared."""
    table = StoredTable(local_copy(folder))
    verify_once(table.folder, table.shards)
    return table


def local_copy(folder: epath.Path) -> Path:
    """A folder of shards on this machine: `folder` itself, or its copy in the cache.

    Of the processes of a machine one copies, and the others wait. A shard gets its name once its
    SHA-256 is that of the index, so what has its name and its size is not copied again. Raises
    UserError where the bucket cannot be read, a shard in it is damaged, or the disk has no room.
    """
    if not is_remote(folder):
        return Path(folder)
    index = read_index(folder)
    shards = shards_of(index)
    copy = cache_folder() / "data" / index["fingerprint"]
    try:
        make_folder(copy)
        with hold_lock(copy, wait=True):
            sizes = {path.name: path.stat().st_size for path in paths_in(copy)}
            missing = [shard for shard in shards if sizes.get(shard.name) != shard.size]
            if missing:
                clear_half_files(copy)
                size, free = sum(shard.size for shard in missing), shutil.disk_usage(copy).free
                if free < size:
                    raise OSError(errno.ENOSPC, f"it takes {quantity(size, 'B')}, and {quantity(free, 'B')} are free")
                print(f"copying {quantity(size, 'B')} of {folder} to {copy}", flush=True)
                _run_in_threads(functools.partial(_copy_shard, folder, copy), missing)
                with _verified_states(copy) as known:
                    known.update(_states(copy, missing))
            if not exists(copy / INDEX_FILE):
                write_json(copy / INDEX_FILE, index)
    except OSError as error:
        remedy = "check the bucket" if is_remote(error.filename or "") else "set MHSH_CACHE to a folder on a local disk with room"
        raise UserError(f"cannot copy {folder} to {copy}: {_reason(error)}; {remedy}") from error
    return copy


def _copy_shard(folder: epath.Path, copy: Path, shard: Shard) -> None:
    with replace_atomically(copy / shard.name) as temporary:
        with open_binary(folder / shard.name) as source, open(temporary, "wb") as file:
            shutil.copyfileobj(source, file)
        check_shard(temporary, shard, folder / shard.name)


def verify_once(folder: Path, shards: Sequence[Shard]) -> None:
    """Compares every shard with the index, but for those that were compared on this machine and
    have not changed since: by the inode, the size and the time of the file's last change (ctime),
    which no program can set.

    Of several processes one reads, and the others wait. Raises UserError where a shard, which is
    named, is missing, or its SHA-256 is not that of the index.
    """
    with _verified_states(folder) as known:
        states = _states(folder, shards)  # from before the reading: what changes meanwhile is read again
        unread = [shard for shard in shards if known.get(shard.name) != states[shard.name]]
        size = sum(shard.size for shard in unread)
        if size > _MANY_BYTES:
            print(f"comparing {quantity(size, 'B')} of {folder} with its SHA-256s, once until it changes", flush=True)
        _run_in_threads(lambda shard: check_shard(folder / shard.name, shard), unread)
        known.update(states)


def verify(folder: Path) -> None:
    """Reads every byte. Raises UserError, with the first shard whose SHA-256 is not the index's."""
    try:
        _run_in_threads(lambda shard: check_shard(folder / shard.name, shard), shards_of(read_index(folder)))
    except OSError as error:
        raise UserError(f"cannot read {folder}: {_reason(error)}; {REMEDY}") from error


def _run_in_threads(function: Callable[[Shard], object], shards: Sequence[Shard]) -> None:
    """Calls the function with each shard, several at a time; after an error none is begun."""
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        deque(pool.map(function, shards), maxlen=0)


def _reason(error: OSError) -> str:
    """The error, and the file that it is about."""
    return f"{error.strerror or error}{f' ({error.filename})' if error.filename else ''}"


@contextlib.contextmanager
def _verified_states(folder: Path) -> Iterator[dict[str, Any]]:
    """Yields the states of the shards that were compared before, by name. States that are added
    inside the `with` are kept.
    """
    state_folder = cache_folder() / "verified" / hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    path = state_folder / "shards.json"

    def say_unkept(error: OSError) -> None:
        print(
            f"cannot make {state_folder} ({error.strerror}): every start reads all of {folder}; set MHSH_CACHE to a folder of yours"
        )

    with contextlib.ExitStack() as held:
        try:
            make_folder(state_folder)
            held.enter_context(hold_lock(state_folder, wait=True))
        except OSError as error:
            say_unkept(error)
            yield {}
            return
        old_states = read_object(path) if exists(path) else {}
        known = dict(old_states)
        yield known
        if known != old_states:
            try:
                write_json(path, known)
            except OSError as error:  # read-only, or full
                say_unkept(error)


def _states(folder: Path, shards: Sequence[Shard]) -> dict[str, list[Any]]:
    try:
        states = [(shard, (folder / shard.name).stat()) for shard in shards]
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read ({error.strerror}), but the index names it; {REMEDY}") from error
    return {shard.name: [shard.sha256, state.st_ino, state.st_size, state.st_ctime_ns] for shard, state in states}
