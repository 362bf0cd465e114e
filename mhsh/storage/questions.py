"""Questions about a path, on a disk or in a bucket. A question that fails is not taken for an
absence: it is asked again, and is then an error.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from etils import epath

from mhsh.errors import UserError
from mhsh.storage.bucket import bucket_objects, is_remote
from mhsh.storage.outage import retry

P = TypeVar("P", Path, epath.Path)

# No file can have this path.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


class FileStatus(NamedTuple):
    """What a path is, how large, and when it changed last."""

    kind: int  # S_IFREG, S_IFDIR or another
    size: int  # in bytes
    modified: Any  # to be compared with another of the same path


def file_status(path: epath.PathLike) -> FileStatus | None:
    """The status of a file or a folder, or of what a link leads to; None where there is none.
    `epath.Path.stat` would also look up the owner's name, and a container's user may have none.
    """
    if is_remote(path):
        with bucket_objects(path) as objects:
            try:
                info = objects.info(str(path))
            except FileNotFoundError:
                return None
        return FileStatus(stat.S_IFDIR if info["type"] == "directory" else stat.S_IFREG, info["size"], info.get("mtime"))
    try:
        status = retry(lambda: os.stat(path), path)  # noqa: PTH116
    except ValueError:  # a zero byte in the name
        return None
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise _access_error(path, error) from error
    return FileStatus(stat.S_IFMT(status.st_mode), status.st_size, status.st_mtime_ns)


def exists(path: epath.PathLike) -> bool:
    """Whether there is a file or a folder; a broken link is none."""
    return file_status(path) is not None


def is_dir(path: epath.PathLike) -> bool:
    """Whether there is a folder, or a link to one."""
    status = file_status(path)
    return status is not None and status.kind == stat.S_IFDIR


def is_file(path: epath.PathLike) -> bool:
    """Whether there is a regular file, or a link to one: no device, which has no end, and no pipe,
    which may never begin.
    """
    status = file_status(path)
    return status is not None and status.kind == stat.S_IFREG


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


def files_below(folder: P) -> Iterator[P]:
    """The files of a folder and of all folders in it."""
    for path in paths_in(folder):
        yield from files_below(path) if is_dir(path) else (path,)


def marked_folders(folder: epath.PathLike, mark: str) -> list[str]:
    """The names of the folders that hold an object `mark`, in a folder of a bucket, by one listing;
    sorted.
    """
    prefix = str(folder).removeprefix("gs://").rstrip("/")
    with bucket_objects(folder) as objects:
        below = [path.removeprefix(f"{prefix}/").split("/") for path in objects.find(str(folder))]
    return sorted(parts[0] for parts in below if parts[1:] == [mark])


def _access_error(path: epath.PathLike, error: OSError) -> UserError:
    return UserError(f"cannot see what is at {path}: {error.strerror}; repair that, and run the same command again")
