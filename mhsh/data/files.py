"""Text files, plain or packed: found by a glob, opened by their suffix, and what is said of those that cannot be read."""

from __future__ import annotations

import contextlib
import glob
import gzip
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from mhsh.errors import UserError


def matching_files(pattern: str, whose: str) -> list[Path]:
    """The files that a glob matches, sorted; `whose` is the setting that holds the glob, as an error shows it.

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
      UserError: the file is missing, unreadable or damaged, also where that shows inside the `with`.
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
