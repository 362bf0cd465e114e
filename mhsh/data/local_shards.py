"""Prepared examples as a run reads them: on this machine, and compared with their SHA-256.

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
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from etils import epath

from mhsh.data.shards import INDEX_FILE, Shard, StoredTable, check_sha256, read_index, shards_of, write_json
from mhsh.errors import UserError
from mhsh.files import cache_folder, clear_half_files, is_remote, locked, opened, read_object, replacing
from mhsh.text import quantity

_THREADS = 8
_POLL_SECONDS = 0.2
_MANY_BYTES = 2e9  # several seconds' reading, of which the user is told
_BLOCK_BYTES = 1 << 20
_T = TypeVar("_T")


def open_table(folder: epath.Path) -> StoredTable:
    """The examples in a folder, local or in a bucket, after every shard has been compared.

    Raises:
      UserError: as `local_copy`, `StoredTable` and `verify_once`.
    """
    table = StoredTable(local_copy(folder))
    verify_once(table.folder, table.shards)
    return table


def local_copy(folder: epath.Path) -> Path:
    """A folder of shards on this machine: `folder` itself, or its copy in the cache.

    Of the processes of a machine one copies, and the others wait. A shard gets its name once its
    SHA-256 is that of the index, so what has its name and its size is not copied again.

    Raises:
      UserError: the bucket cannot be read, a shard in it is damaged, or the disk has no room.
    """
    if not is_remote(folder):
        return Path(folder)
    index = read_index(folder)
    shards = shards_of(index)
    for shard in shards:
        if Path(shard.name).name != shard.name:  # it would be written outside of the copy
            raise UserError(f"{folder / INDEX_FILE} names a shard {shard.name!r}, which is no file name; prepare the rows again")
    copy = cache_folder() / "data" / index["fingerprint"]
    try:
        copy.mkdir(parents=True, exist_ok=True)
        with _held(copy):
            sizes = {path.name: path.stat().st_size for path in copy.iterdir()}
            missing = [shard for shard in shards if sizes.get(shard.name) != shard.size]
            if missing:
                clear_half_files(copy)
                size = sum(shard.size for shard in missing)
                if (free := shutil.disk_usage(copy).free) < size:
                    raise OSError(errno.ENOSPC, f"it takes {_size(size)}, and {_size(free)} are free")
                print(f"copying {_size(size)} of {folder} to {copy}", flush=True)
                in_threads(functools.partial(_copy_shard, folder, copy), missing)
                with _compared(copy) as known:
                    known.update(_states(copy, missing))
            if not (copy / INDEX_FILE).exists():
                write_json(copy / INDEX_FILE, index)
    except OSError as error:
        remedy = "check the bucket" if is_remote(error.filename or "") else "set MHSH_CACHE to a folder on a local disk with room"
        raise UserError(f"cannot copy {folder} to {copy}: {reason(error)}; {remedy}") from error
    return copy


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
        in_threads(functools.partial(check_sha256, folder), unread)
        known.update(states)


def verify(folder: Path | epath.Path) -> None:
    """Reads every byte of the shards in a folder or a bucket. Raises UserError, naming the first
    shard whose SHA-256 differs from the index.
    """
    check = functools.partial(_read_shard, folder) if is_remote(folder) else functools.partial(check_sha256, Path(folder))
    try:
        in_threads(check, shards_of(read_index(folder)))
    except OSError as error:
        raise UserError(f"cannot read {folder}: {reason(error)}; check the bucket") from error


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


def reason(error: OSError) -> str:
    """What happened, and to which file."""
    return f"{error.strerror or error}{f' ({error.filename})' if error.filename else ''}"


def _copy_shard(folder: epath.Path, copy: Path, shard: Shard) -> None:
    with replacing(copy / shard.name) as temporary, open(temporary, "wb") as file:
        _read_shard(folder, shard, file.write)


def _read_shard(folder: Path | epath.Path, shard: Shard, take: Callable[[bytes], object] = len) -> None:
    path, digest = folder / shard.name, hashlib.sha256()
    with opened(path) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            take(block)
    if digest.hexdigest() != shard.sha256:
        raise UserError(f"{path} is damaged: its SHA-256 is not that of the index; put it back from a copy, or prepare anew")


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
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
    with _held(kept):
        before = read_object(path) if path.exists() else {}
        known = dict(before)
        yield known
        if known != before:
            write_json(path, known)


def _states(folder: Path, shards: Sequence[Shard]) -> dict[str, list[Any]]:
    states = [(shard, (folder / shard.name).stat()) for shard in shards]
    return {shard.name: [shard.sha256, state.st_ino, state.st_size, state.st_ctime_ns] for shard, state in states}


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
