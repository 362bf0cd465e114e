"""Writing a report's files: former reports are replaced as a whole, anything else is refused."""

from __future__ import annotations

import os
from pathlib import Path

from mhsh.errors import UserError
from mhsh.files import write_atomically

_START = 4096  # bytes searched for the mark


def check_replaceable(path: Path, mark: str) -> None:
    """Checks that `path` is free or a former report, which holds the mark near its start.

    Raises:
      UserError: it is something else, or cannot be read.
    """
    if not os.path.lexists(path):
        return
    if not path.is_file():
        raise UserError(f"{path} exists and is not a file; choose another --out")
    try:
        with open(path, "rb") as file:
            start = file.read(_START)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; choose another --out") from error
    if start and mark.encode() not in start:
        raise UserError(f"{path} exists and was not {mark}; move it away or choose another --out")


def write(path: Path, content: bytes) -> None:
    """Replaces `path` as a whole. Makes its folder if that is missing.

    Raises:
      UserError: it cannot be written. The old content stays.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another --out") from error
