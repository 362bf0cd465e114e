"""Files and folders that appear whole or not at all, and JSON objects read with one-line errors."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import shutil
import stat
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etils import epath

from mhsh.encoding import decode
from mhsh.errors import UserError
from mhsh.storage.bucket import bucket_objects, check_bucket, is_remote
from mhsh.storage.disk_lock import hold_lock
from mhsh.storage.outage import again_if_stale, retry
from mhsh.storage.questions import is_dir, names_in

_LARGEST = 1 << 26  # bytes of a file that is read as a whole
_SECONDS_TO_REMOVE, _TIMES_GONE = 1.0, 3
_unfinished: set[Path] = set()  # folders and files that this process has begun and not finished


def remove_unfinished() -> None:
    """Removes the unfinished files of this process, when it must end without unwinding."""
    for path in list(_unfinished):
        if path.is_dir():
            _remove(path)
        else:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def open_binary(path: epath.PathLike) -> Iterator[io.BufferedReader]:
    """Opens a file, local or in a bucket, to be read as a stream of bytes inside the `with`. Raises
    OSError where it cannot be opened or read; it has `strerror`, for a bucket too. Raises UserError
    where the bucket cannot be reached.
    """
    if not is_remote(path):
        with _open_regular(path) as file:
            yield file
        return
    with bucket_objects(path) as objects, objects.open(str(path), "rb") as file:
        if file.details.get("type") == "directory":
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        yield io.BufferedReader(file, 1 << 20)


def _open_regular(path: epath.PathLike) -> io.BufferedReader:
    """Opens a regular file for reading. Raises OSError for all else: a pipe may never begin, and a
    device never end.
    """
    # Without O_NONBLOCK opening a pipe would wait for who writes.
    descriptor = retry(lambda: os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), path)
    try:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def cache_folder() -> Path:
    """The folder of what can be made again: MHSH_CACHE, or mhsh in the user's cache. Raises
    UserError where this user has no home.
    """
    if folder := os.environ.get("MHSH_CACHE"):
        return Path(folder)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mhsh"
    except RuntimeError as error:
        raise UserError("this user has no home; set MHSH_CACHE to a folder") from error


def expand_user(path: epath.PathLike) -> epath.Path:
    """Replaces `~` and `~USER` by that user's home; a name that is no user's stays as it is. Raises
    UserError for a bucket that cannot be reached.
    """
    check_bucket(path)
    return epath.Path(os.path.expanduser(str(path)))  # noqa: PTH111 (a Path would refuse the name of no user)


def absolute(path: epath.PathLike) -> epath.Path:
    """The path from the root. Links are not followed; a path in a bucket stays as it is."""
    return epath.Path(path if is_remote(path) else os.path.abspath(path))  # noqa: PTH100


@contextlib.contextmanager
def replace_atomically(path: Path) -> Iterator[Path]:
    """Yields a name beside `path` to write to. At the end of the `with` that file is flushed to the
    disk and replaces `path`.

    After an exception nothing has changed. After a kill, `clear_half_files` removes what is left.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    _unfinished.add(temporary)
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
        _unfinished.discard(temporary)


def make_durable(path: epath.PathLike) -> None:
    """Returns when a file, or a folder with everything in it, and its name in the folder above are
    on the disk, so that they outlive a power cut.

    A bucket needs nothing: Google Cloud Storage stores an object redundantly before it acknowledges
    the upload (https://cloud.google.com/storage/docs/availability-durability).
    """
    if is_remote(path):
        return
    local = Path(path)
    for folder, _, names in os.walk(local, topdown=False):
        for name in names:
            _sync(Path(folder) / name)
        _sync(Path(folder))
    if not local.is_dir():
        _sync(local)
    make_name_durable(path)


def make_name_durable(path: epath.PathLike) -> None:
    """Returns when the name of a file or folder is on the disk. Its content may not be."""
    if not is_remote(path):
        _sync(Path(path).absolute().parent)


def is_half_file(name: str) -> bool:
    """Whether `replace_atomically` writes to files of this name."""
    return name.startswith(".") and name.endswith(".tmp")


def clear_half_files(folder: Path) -> None:
    """Removes the files that killed calls of `replace_atomically` left. Nobody may be writing to
    the folder.
    """
    for path in folder.iterdir():
        if is_half_file(path.name):
            path.unlink()


def write_atomically(path: epath.PathLike, content: str | bytes) -> None:
    """Replaces the file: a reader sees the old content or the new. Text is written as UTF-8."""
    data = content.encode() if isinstance(content, str) else content
    if is_remote(path):  # one request; an open file would hold on to one that failed
        with bucket_objects(path) as objects:
            objects.pipe_file(str(path), data)
        return
    with replace_atomically(Path(path)) as temporary:
        temporary.write_bytes(data)


def write_new(path: str | Path, content: str | bytes) -> None:
    """Writes a new file, whole or not at all. Raises UserError where it exists or cannot be
    written.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        file = open(path, "xb")  # noqa: SIM115 (only what this call has made is removed again)
    except FileExistsError as error:
        raise UserError(f"{path} exists; choose another name, or remove it first") from error
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; choose another name") from error
    try:
        with file:
            file.write(data)
    except BaseException as error:
        Path(path).unlink()
        if isinstance(error, OSError):
            raise UserError(f"cannot write {path}: {error.strerror or error}; make room, or choose another name") from error
        raise


def check_new_file(flag: str, path: str | Path | None) -> None:
    """Raises UserError where `write_new` could not write the file of a flag; None is none."""
    if path is None:
        return
    if os.path.lexists(path):
        raise UserError(f"{flag}={path} exists, and nothing is overwritten; choose another file")
    check_writable(flag, path)
    if not Path(path).absolute().parent.is_dir():
        raise UserError(f"{flag}={path}: the folder {Path(path).absolute().parent} does not exist; make it, or choose another file")


def check_writable(flag: str, path: str | Path) -> None:
    """Checks, before any work, that a file or a folder can be made at `path`. Folders above it may
    be missing. Raises UserError where it is in a bucket, or the file system refuses it.
    """
    if is_remote(path):
        raise UserError(f"{flag}={path} is in a bucket, and this is written on a local disk alone; write it there, then copy it")
    try:
        with contextlib.suppress(FileNotFoundError):
            Path(path).lstat()  # raises where the name is too long, or one above it is not a folder
        with tempfile.TemporaryFile(dir=next(folder for folder in Path(path).absolute().parents if folder.exists())):
            pass
    except OSError as error:
        raise UserError(f"{flag}={path} cannot be written: {error.strerror or error}; choose another {flag}") from error


def check_folder(flag: str, path: str) -> None:
    """Checks, before any work, that `path` is a folder, or that one can be made there. A bucket
    says so itself when it is asked. Raises UserError where it is a file, or the file system refuses
    it.
    """
    if is_remote(path) or os.path.isdir(path):  # noqa: PTH112 (a name that is too long is none)
        return
    check_writable(flag, path)
    if os.path.lexists(path):
        raise UserError(f"{flag}={path} is not a folder; choose another {flag}")


def check_checkpoints_path(path: epath.PathLike, *, saves: bool) -> None:
    """Raises UserError where Orbax would take a path for another one, and say nothing of it: its
    checkpoints would look damaged. It misreads `**`, a backslash and `gs:`; and where it `saves`,
    it looks for the files of a process by a glob, for which `[1]` is another name. A byte that is
    not UTF-8, as in the name of the working folder, it does not take at all.
    """
    named = f"{absolute(path)}/".removeprefix("gs://")
    misread = re.search(r"[\ud800-\udfff]|\*\*|\\|gs:(?=/)" + (r"|\[[^/]+\]" if saves else ""), named)
    if misread:
        where = f"{absolute(path)}: Orbax, which writes and reads them, misreads {misread[0]} in that name"
        raise UserError(f"checkpoints cannot be kept in {where}; rename the folder, or choose another")


def check_suffix(flag: str, path: str | Path, form: str, *suffixes: str) -> None:
    """Raises UserError where a file's name does not end as those of its form do."""
    if Path(path).suffix not in suffixes:
        is_folder = Path(path).is_dir() or not Path(path).name
        example = Path(path) / f"NAME{suffixes[0]}" if is_folder else Path(path).with_suffix(suffixes[0])
        raise UserError(f"{flag}={path}: {form}; its name ends in {' or '.join(suffixes)}, as in {flag}={example}")


class MissingFile(UserError):
    """The file to be read does not exist."""


def read_small_file(path: epath.PathLike) -> bytes:
    """The bytes of a small file: JSON or a vocabulary, local or in a bucket. Raises OSError where
    it cannot be opened or read; it has `strerror`. Raises UserError where it is larger than any
    such file, or the bucket cannot be reached.
    """
    if is_remote(path):
        # In one request: what is opened is cut to the size that it had when that was asked for.
        with bucket_objects(path) as objects:
            content = objects.cat_file(str(path), end=_LARGEST + 1)
    else:
        content = again_if_stale(lambda: _read_start(path))
    if len(content) > _LARGEST:
        raise UserError(f"{path} has more than {_LARGEST >> 20} MiB, and no such file is as large; fetch or write it again")
    return content


def _read_start(path: epath.PathLike) -> bytes:
    with _open_regular(path) as file:
        return file.read(_LARGEST + 1)


def read_object(path: epath.PathLike) -> dict[str, Any]:
    """The object in a JSON file. Raises MissingFile where there is no such file. Raises UserError
    where it cannot be read, or `parse_object` refuses it.
    """
    try:
        content = read_small_file(path)
    except FileNotFoundError as error:
        raise MissingFile(f"{path} does not exist") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    return parse_object(content, str(path))


def parse_object(content: bytes, what: str) -> dict[str, Any]:
    """The object in JSON text; errors name it by `what`. Raises UserError where it is not text, not
    JSON or not an object, is nested too deeply, has half of a surrogate pair, or has a key twice
    (of which some readers take the first and some the last).
    """
    text = decode(content, what)
    try:
        value = json.loads(text, object_pairs_hook=_reject_repeats)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()  # raises a ValueError for half of a pair
    except (ValueError, RecursionError) as error:
        raise UserError(f"{what} is damaged or not JSON: {error}; fetch or write it again") from error
    if not isinstance(value, dict):
        raise UserError(f"{what} is damaged: it is not a JSON object; fetch or write it again")
    return value


def make_folder(folder: epath.PathLike) -> None:
    """Makes a folder and those above it. One that is there stays. Raises OSError where it cannot be
    made, or something else has its name.
    """

    def make() -> None:
        try:
            os.makedirs(folder)  # noqa: PTH103 (of any kind of path)
        except FileExistsError:  # makedirs itself would take a failing question for "no folder"
            if not is_dir(folder):
                raise

    if is_remote(folder):
        epath.Path(folder).mkdir(parents=True, exist_ok=True)
    else:
        retry(make, folder)


def check_new_folder(out: str) -> None:
    """Raises UserError where `out` is in a bucket, a file, a folder that is not empty, or no place
    that can be written.
    """
    check_writable("--out", out)
    if is_dir(out):
        if names_in(out):
            raise UserError(f"{out} is not empty, and nothing is overwritten; choose another --out")
    elif os.path.lexists(out):
        raise UserError(f"{out} exists and is not a folder; choose another --out")


@contextlib.contextmanager
def new_folder(out: str) -> Iterator[Path]:
    """Yields a folder beside `out` to fill. At the end of the `with` it is flushed to the disk and
    renamed to `out`; after an exception it is removed. What a killed process left of it is removed
    first.
    Raises UserError where `out` exists, its folder cannot be written to, or another process is
    writing it.
    """
    check_new_folder(out)
    final = Path(os.path.abspath(out))  # noqa: PTH100 (links are not followed)
    # The lock is on the folder around the one to fill, which may take locks of its own.
    around = final.with_name(f".{final.name}.unfinished")
    try:
        make_folder(around)
    except OSError as error:
        raise UserError(f"cannot make the folder {out}: {error.strerror}; choose another --out") from error
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(hold_lock(around))
        except BlockingIOError:
            raise UserError(f"another process is writing {out}; wait for it, or choose another --out") from None
        _unfinished.add(around)
        try:
            unfinished = around / final.name
            if unfinished.exists():  # of a killed process
                shutil.rmtree(unfinished)
            unfinished.mkdir()
            yield unfinished
            make_durable(unfinished)
            try:
                unfinished.rename(final)  # replaces an empty folder, and nothing else
            except OSError as error:
                raise UserError(f"cannot make the folder {out}: {error.strerror}; choose another --out") from error
            _sync(final.parent)
        finally:
            _remove(around)
            _unfinished.discard(around)


def _remove(folder: Path) -> None:
    """Removes a folder until it stays removed: threads of an interrupted save still write to it,
    and TensorStore makes missing folders again.
    """
    deadline, gone = time.monotonic() + _SECONDS_TO_REMOVE, 0
    while gone < _TIMES_GONE and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(_SECONDS_TO_REMOVE / 40)
        gone = 0 if folder.exists() else gone + 1


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reject_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        (name, _), *_ = Counter(name for name, _ in pairs).most_common()
        raise ValueError(f"the key {name!r} appears twice in one object")
    return value
