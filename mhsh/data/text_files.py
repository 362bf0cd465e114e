"""Text files, plain, .gz or .xz: found by a glob, read line by line, with one-line errors."""

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

from mhsh.errors import UserError


def matching_files(pattern: str, whose: str) -> list[Path]:
    """The files that a glob matches, sorted.

    Args:
      whose: the setting that holds the glob, for the error.

    Raises:
      UserError: there are none.
    """
    # Path.glob would refuse absolute patterns.
    matches = glob.glob(str(Path(pattern).expanduser()), recursive=True)  # noqa: PTH207
    paths = sorted(path for path in map(Path, matches) if path.is_file())
    if not paths:
        raise UserError(f"{whose} matches no file; correct the glob (relative to {Path.cwd()})")
    return paths


@contextlib.contextmanager
def unpacked(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a plain, .gz or .xz file, to be read inside the `with`.

    Raises:
      UserError: the file is missing, unreadable or damaged, even if found inside the `with`.
    """
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                yield cast(IO[bytes], file)
        elif path.suffix == ".xz":
            with lzma.open(path) as file:
                yield file
        else:
            with open(path, "rb") as file:
                yield file
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is damaged and cannot be unpacked ({error}); fetch it again") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def text_lines(path: Path) -> Iterator[str]:
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
    lines = _decoded(sys.stdin.buffer, "standard input") if path is None else text_lines(Path(path))
    return [line.removesuffix("\r") for line in lines]


def _decoded(raw: Iterable[bytes], name: str) -> Iterator[str]:
    for number, line in enumerate(raw, 1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{name} line {number} is not UTF-8: {error.reason} at byte {error.start} of the line; convert it to UTF-8"
            ) from error
        yield (text.removeprefix("\ufeff") if number == 1 else text).removesuffix("\n")
