"""Files and folders that appear whole or not at all, and JSON objects read with one-line errors."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.util
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etils import epath

from mhsh.errors import UserError


def is_remote(path: epath.PathLike) -> bool:
    """Whether a path is in a bucket."""
    return "://" in str(path)


def check_bucket(path: epath.PathLike) -> None:
    """Raises UserError where `path` is in a bucket that cannot be reached. Its client would try for
    minutes.
    """
    if not is_remote(path):
        return
    if not str(path).startswith("gs://"):
        raise UserError(f"cannot use {path}: runs go to local folders and to gs:// buckets; choose another")
    if importlib.util.find_spec("gcsfs") is None:
        raise UserError(f"cannot use {path}: gcsfs is not installed; pip install 'mhsh[gcs]'")
    from fsspec.config import conf

    # Its cache of listings hides what other processes write: Orbax would wait for that for ever.
    conf.setdefault("gs", {})["use_listings_cache"] = False
    problem = _no_answer(os.environ.get("STORAGE_EMULATOR_HOST") or "https://storage.googleapis.com")
    if problem:
        raise UserError(f"cannot reach {path}: {problem}; check the network, or use a local folder")


@functools.cache
def _no_answer(server: str) -> str:
    """Why the server does not answer; empty where it does, whatever it says."""
    # Only here: it takes long to import, and most runs are local.
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(server, timeout=4):  # of each of its addresses
            return ""
    except urllib.error.HTTPError:
        return ""
    except OSError as error:
        reason = getattr(error, "reason", error)
        return f"{server} does not answer ({getattr(reason, 'strerror', None) or reason})"


def absolute(path: epath.PathLike) -> epath.Path:
    """The path from the root. Links are not followed; a path in a bucket stays as it is."""
    return epath.Path(path if is_remote(path) else os.path.abspath(path))  # noqa: PTH100


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to. At the end of the `with` that file is flushed to the disk
    and replaces `path`.

    After an exception nothing has changed. After a kill, `clear_half_files` removes what is left.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        _flush(temporary)
        temporary.replace(path)
        _flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def clear_half_files(folder: Path) -> None:
    """Removes the files of killed `replacing` calls; nobody may be writing to the folder."""
    for path in folder.glob(".*.tmp"):
        path.unlink()


def write_atomically(path: epath.PathLike, content: str | bytes) -> None:
    """Replaces the file: a reader finds the old content or the new. Text is written as UTF-8."""
    data = content.encode() if isinstance(content, str) else content
    if is_remote(path):  # a bucket replaces objects as a whole
        epath.Path(path).write_bytes(data)
        return
    with replacing(Path(path)) as temporary:
        temporary.write_bytes(data)


def write_new(path: str | Path, content: str | bytes) -> None:
    """Writes a new file. Raises UserError where it exists or cannot be written."""
    try:
        with open(path, "xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
    except FileExistsError as error:
        raise UserError(f"{path} exists; choose another name, or remove it first") from error
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; choose another name") from error


def check_new_file(out: str | None) -> None:
    """Raises UserError where `write_new` could not write --out; nothing is checked for None."""
    if out is None:
        return
    if os.path.lexists(out):
        raise UserError(f"--out={out} exists, and nothing is overwritten; choose another file")
    if not Path(out).absolute().parent.is_dir():
        raise UserError(f"--out={out}: there is no folder {Path(out).absolute().parent}; make it, or choose another file")


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Inside the `with`, the folder's lock is this process's. The kernel frees it when the process
    ends, however it ends.

    Raises:
      BlockingIOError: another process holds it.
      OSError: the folder cannot be opened, or its file system has no locks.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


class MissingFile(UserError):
    """The file to be read does not exist."""


def read_object(path: epath.PathLike) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
      MissingFile: there is no such file.
      UserError: it cannot be read, or `parse_object` refuses it.
    """
    try:
        content = _whole(path)
    except FileNotFoundError as error:
        raise MissingFile(f"there is no {path}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    return parse_object(content, str(path))


def _whole(path: epath.PathLike) -> bytes:
    """The content of a file as one process wrote it. Opening an object first asks for its size: if
    another process replaced it after that, the new content would be cut to the old length.
    """
    if not is_remote(path):
        return epath.Path(path).read_bytes()
    import fsspec

    return fsspec.filesystem("gs").cat_file(str(path))


def parse_object(content: bytes, what: str) -> dict[str, Any]:
    """The object in JSON text; errors name it by `what`.

    Raises:
      UserError: it is not UTF-8, not JSON or not an object, is nested too deeply, or has a key
        twice (of which some readers take the first and some the last).
    """
    try:
        value = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{what} is damaged or no JSON: {error}; fetch or write it again") from error
    if not isinstance(value, dict):
        raise UserError(f"{what} is damaged: it is not a JSON object; fetch or write it again")
    return value


def check_new_folder(out: str) -> None:
    """Raises UserError where `out` is in a bucket, a file, or a folder that is not empty."""
    if is_remote(out):
        raise UserError(
            f"--out = {out}: the folder appears as a whole, which only a local disk can do; write it there, then copy it"
        )
    if Path(out).is_dir():
        if any(Path(out).iterdir()):
            raise UserError(f"{out} is not empty, and nothing is overwritten; choose another --out")
    elif os.path.lexists(out):
        raise UserError(f"{out} exists and is no folder; choose another --out")


@contextlib.contextmanager
def new_folder(out: str) -> Iterator[Path]:
    """A folder beside `out` to fill. At the end of the `with` it is renamed to `out`; after an
    exception it is removed.

    Raises:
      UserError: `out` exists, or its folder cannot be written to.
    """
    check_new_folder(out)
    final = Path(os.path.abspath(out))  # noqa: PTH100 (links are not followed)
    unfinished = final.with_name(f".{final.name}.{os.getpid()}")
    try:
        unfinished.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {out}: {error.strerror}; choose another --out") from error
    try:
        yield unfinished
        try:
            unfinished.rename(final)  # replaces an empty folder, and nothing else
        except OSError as error:
            raise UserError(f"cannot make the folder {out}: {error.strerror}; choose another --out") from error
    except BaseException:
        shutil.rmtree(unfinished)
        raise


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the key {name!r} appears twice in one object")
            seen.add(name)
    return value
