"""Questions about a path, on a disk or in a bucket. A question that fails is not taken for an
absence: it is asked again, and is then an error.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TypeVar

from etils import epath

from mhsh.errors import UserError
from mhsh.storage.bucket import bucket_objects, is_remote
from mhsh.storage.outage import retry

P = TypeVar("P", Path, epath.Path)

# No file can have this path.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


def exists(path: epath.PathLike) -> bool:
    """Whether there is a file or a folder; a broken link is none."""
    return _kind(path) is not None


def is_dir(path: epath.PathLike) -> bool:
    """Whether there is a folder, or a link to one."""
    return _kind(path) == stat.S_IFDIR


def is_file(path: epath.PathLike) -> bool:
    """Whether there is a regular file, or a link to one: no device, which has no end, and no pipe,
    which may never begin.
    """
    return _kind(path) == stat.S_IFREG


def names_in(folder: epath.PathLike) -> list[str]:
    """The names in a folder, sorted; none if it does not exist."""
    if is_remote(folder):
        with bucket_objects(folder) as objects:
            try:
                paths = [path.rstrip("/") for path in objects.ls(str(folder), detail=False)]
            except FileNotFoundError:
                return []
        prefix = str(folder).removeprefix("gs://").rstrip("/")
        return sorted(path.removeprefix(f"{prefix}/") for path in paths if path != prefix)
    try:
        return sorted(retry(lambda: os.listdir(folder), folder))  # noqa: PTH208 (names alone)
    except OSError as error:
        if error.errno in _ABSENT:
            return []
        raise _access_error(folder, error) from error


def paths_in(folder: P) -> list[P]:
    """The paths of `names_in`."""
    return [folder / name for name in names_in(folder)]


def marked_folders(folder: epath.PathLike, mark: str) -> list[str]:
    """The names of the folders that hold an object `mark`, in a folder of a bucket, by one listing;
    sorted.
    """
    prefix = str(folder).removeprefix("gs://").rstrip("/")
    with bucket_objects(folder) as objects:
        below = [path.removeprefix(f"{prefix}/").split("/") for path in objects.find(str(folder))]
    return sorted(parts[0] for parts in below if parts[1:] == [mark])


def _kind(path: epath.PathLike) -> int | None:
    """S_IFDIR, S_IFREG or what else is there; None: nothing is."""
    if is_remote(path):
        with bucket_objects(path) as objects:
            try:
                kind = objects.info(str(path))["type"]
            except FileNotFoundError:
                return None
        return stat.S_IFDIR if kind == "directory" else stat.S_IFREG
    try:
        return stat.S_IFMT(retry(lambda: os.stat(path), path).st_mode)  # noqa: PTH116
    except ValueError:  # a zero byte in the name
        return None
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise _access_error(path, error) from error


def _access_error(path: epath.PathLike, error: OSError) -> UserError:
    return UserError(f"cannot see what is at {path}: {error.strerror}; repair that, and run the same command again")
