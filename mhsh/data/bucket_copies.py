"""Prepared examples in a bucket: copied to this machine for training, and uploaded when they are
prepared.

Training reads single records in random order, each a request of tens of milliseconds to a bucket.
So the shards are copied once to a folder of the cache that has the fingerprint of their index.
"""

from __future__ import annotations

import base64
import errno
import functools
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from etils import epath

from mhsh.data.shards import INDEX_FILE, Shard, read_index, shards_of, write_json
from mhsh.data.splits import SPLITS
from mhsh.data.verification import held, in_threads, note_verified
from mhsh.errors import UserError
from mhsh.files import bucket_objects, cache_folder, clear_half_files, is_remote, opened, replacing

_BLOCK_BYTES = 1 << 20
_UPLOAD_BYTES = 4 << 20  # in memory for each thread


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
        with held(copy):
            there = {path.name: path.stat().st_size for path in copy.iterdir()}
            missing = [shard for shard in shards if there.get(shard.name) != shard.size]
            if missing:
                clear_half_files(copy)
                size = sum(shard.size for shard in missing)
                if (free := shutil.disk_usage(copy).free) < size:
                    raise OSError(errno.ENOSPC, f"it takes {_size(size)}, and {_size(free)} are free")
                print(f"copying {_size(size)} of {folder} to {copy}", flush=True)
                in_threads(functools.partial(_copy_shard, folder, copy), missing)
                note_verified(copy, missing)
            if not (copy / INDEX_FILE).exists():
                write_json(copy / INDEX_FILE, index)
    except OSError as error:
        remedy = "check the bucket" if is_remote(error.filename or "") else "set MHSH_CACHE to a folder on a local disk with room"
        raise UserError(f"cannot copy {folder} to {copy}: {_reason(error)}; {remedy}") from error
    return copy


def verify(folder: epath.Path) -> None:
    """Reads every byte of the shards in a bucket. Raises UserError, naming the first shard whose
    SHA-256 differs from the index.
    """
    try:
        in_threads(functools.partial(_read_shard, folder), shards_of(read_index(folder)))
    except OSError as error:
        raise UserError(f"cannot read {folder}: {_reason(error)}; check the bucket") from error


def names_in(folder: epath.Path) -> set[str]:
    """The names of all objects in a folder of a bucket. Raises UserError: it cannot be read."""
    try:
        with bucket_objects(folder) as objects:
            return {name.removeprefix(str(folder).removeprefix("gs://")).lstrip("/") for name in objects.find(str(folder))}
    except OSError as error:
        raise UserError(f"cannot read {folder}: {_reason(error)}; check the bucket") from error


def upload(folder: Path, out: epath.Path) -> None:
    """Copies a finished prepared folder to a bucket, the indices last: training's after all else.

    Objects that are there with the same bytes are left as they are.

    Raises:
      UserError: the bucket cannot be written to, or has other bytes afterwards.
    """
    last = [folder / split / INDEX_FILE for split in reversed(SPLITS)]
    try:
        with bucket_objects(out) as objects:
            put = functools.partial(_upload_file, objects, folder, out)
            in_threads(put, [path for path in folder.rglob("*") if path.is_file() and path not in last])
            for path in last:
                put(path)
    except OSError as error:
        raise UserError(f"cannot write {out}: {_reason(error)}; check the bucket, and run the same command again") from error


def _upload_file(objects: Any, folder: Path, out: epath.Path, path: Path) -> None:
    target = str(out / path.relative_to(folder).as_posix())
    with open(path, "rb") as file:
        digest = base64.b64encode(hashlib.file_digest(file, "md5").digest()).decode()
    if objects.exists(target) and objects.info(target).get("md5Hash") == digest:
        return
    # Not put_file: its request for small files loses a carriage return at their end.
    with open(path, "rb") as file, objects.open(target, "wb", block_size=_UPLOAD_BYTES) as there:
        shutil.copyfileobj(file, there, _BLOCK_BYTES)
    if objects.info(target).get("md5Hash") != digest:
        raise UserError(f"{target} has other bytes than {path}, from which it was written; run the same command again")


def _copy_shard(folder: epath.Path, copy: Path, shard: Shard) -> None:
    with replacing(copy / shard.name) as temporary, open(temporary, "wb") as file:
        _read_shard(folder, shard, file.write)


def _read_shard(folder: epath.Path, shard: Shard, take: Callable[[bytes], object] = len) -> None:
    path, digest = folder / shard.name, hashlib.sha256()
    with opened(path) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            take(block)
    if digest.hexdigest() != shard.sha256:
        raise UserError(f"{path} is damaged: its SHA-256 is not that of the index; put it back from a copy, or prepare anew")


def _reason(error: OSError) -> str:
    return f"{error.strerror or error}{f' ({error.filename})' if error.filename else ''}"


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
