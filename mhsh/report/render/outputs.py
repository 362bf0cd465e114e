"""Where a report's files go: former reports are replaced, anything else is refused, and no half
file is ever left.
"""

from __future__ import annotations

import os
from pathlib import Path

from mhsh.errors import UserError
from mhsh.files import write_atomically

MARK = "written by mhsh compare"  # stands near the start of every file that is, as its generator or software
_START = 4096  # bytes that are searched for the mark


def check_replaceable(path: Path, mark: str = MARK) -> None:
    """Makes sure that writing `path` destroys nothing but a former report, one that bears the mark.

    Raises:
      UserError: something else is there, or it cannot be looked at.
    """
    if not os.path.lexists(path):
        return
    if not path.is_file():
        raise UserError(f"{path} is there and is no file; choose another --out")
    try:
        with open(path, "rb") as file:
            start = file.read(_START)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; choose another --out") from error
    if start and mark.encode() not in start:
        raise UserError(f"{path} is there and was not {mark}; move it away or choose another --out")


def write(path: Path, content: bytes) -> None:
    """Replaces `path` as a whole, making its folder where that is missing.

    Raises:
      UserError: it cannot be written (the old content is then still there).
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another --out") from error
