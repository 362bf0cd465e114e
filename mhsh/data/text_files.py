"""Text files, plain, .gz or .xz, local or in a bucket: found by a glob, read line by line, with
one-line errors.
"""

from __future__ import annotations

import contextlib
import glob
import gzip
import lzma
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, cast

from etils import epath

from mhsh.errors import UserError
from mhsh.files import bucket_objects, is_remote, opened


def matching_files(pattern: str, whose: str) -> list[epath.Path]:
    """The files that a glob matches, sorted. `**` goes into folders of any depth, in a bucket too.

    Args:
      whose: the setting that holds the glob, for the error.

    Raises:
      UserError: there are none, or the bucket cannot be read.
    """
    if is_remote(pattern):
        paths, hint = _matching_objects(pattern, whose), "correct the bucket or the glob"
    else:
        # Path.glob would refuse absolute patterns.
        matches = glob.glob(str(Path(pattern).expanduser()), recursive=True)  # noqa: PTH207
        paths, hint = [epath.Path(path) for path in matches if Path(path).is_file()], f"correct the glob (relative to {Path.cwd()})"
    if not paths:
        raise UserError(f"{whose} matches no file; {hint}")
    return sorted(paths)


def _matching_objects(pattern: str, whose: str) -> list[epath.Path]:
    try:
        with bucket_objects(pattern) as objects:
            matches = objects.glob(pattern, detail=True)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise UserError(f"{whose} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    # An object whose name ends with a slash stands for a folder.
    return [epath.Path(f"gs://{name}") for name, info in matches.items() if info["type"] == "file" and not name.endswith("/")]


@contextlib.contextmanager
def unpacked(path: epath.PathLike) -> Iterator[IO[bytes]]:
    """The bytes of a plain, .gz or .xz file, to be read inside the `with`.

    Raises:
      UserError: the file is missing, unreadable or damaged, even if found inside the `with`.
    """
    try:
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(opened(path))
            if str(path).endswith(".gz"):
                file = cast(IO[bytes], stack.enter_context(gzip.open(file)))
            elif str(path).endswith(".xz"):
                file = stack.enter_context(lzma.open(file))
            yield file
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is damaged and cannot be unpacked ({error}); fetch it again") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def text_lines(path: epath.PathLike) -> Iterator[str]:
    """The lines of a plain, .gz or .xz file, read lazily.

    Only "\n" ends a line. Line ends and a byte order mark at the start are left out.

    Raises:
      UserError: the file cannot be read, or a line is not UTF-8 (the error has its number).
    """
    with unpacked(path) as file:
        yield from _decoded(file, str(path))


def read_lines(path: str | None) -> list[str]:
    """All lines of a plain, .gz or .xz file, or of standard input if `path` is None.

    Like `text_lines`, but without a carriage return at the end of a line.
    """
    lines = _decoded(sys.stdin.buffer, "standard input") if path is None else text_lines(path)
    return [line.removesuffix("\r") for line in lines]


def read_vocabulary(path: epath.PathLike, form: str) -> str:
    """The text of a vocabulary. Raises UserError: it cannot be read, or is not UTF-8.

    Args:
      form: the file name that such vocabularies have, for the error.
    """
    try:
        with opened(path) as file:
            return file.read().decode("utf-8")
    except FileNotFoundError:
        raise UserError(
            f"there is no vocabulary at {path}; name a {form} that exists, or empty data.vocab_path to train one"
        ) from None
    except OSError as error:
        raise UserError(f"cannot read the vocabulary {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"the vocabulary {path} is not UTF-8: {error.reason} at byte {error.start}") from error


def _decoded(raw: Iterable[bytes], name: str) -> Iterator[str]:
    for number, line in enumerate(raw, 1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{name} line {number} is not UTF-8: {error.reason} at byte {error.start} of the line; convert it to UTF-8"
            ) from error
        yield (text.removeprefix("\ufeff") if number == 1 else text).removesuffix("\n")
