"""A folder that appears whole or not at all, and never in the place of another."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from mhsh.errors import UserError
from mhsh.run_folder import is_remote


def check_new(out: str) -> None:
    """Raises UserError where `out` is in a bucket, a file, or a folder with something in it."""
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
    """A folder beside `out` to be filled inside the `with`; at its end it becomes `out`, after an
    exception it is removed.

    Raises:
      UserError: `out` exists, or its folder cannot be written to.
    """
    check_new(out)
    final = Path(os.path.abspath(out))  # noqa: PTH100 (links are not followed)
    unfinished = final.with_name(f".{final.name}.{os.getpid()}")
    try:
        unfinished.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {out}: {error.strerror}; choose another --out") from error
    try:
        yield unfinished
        unfinished.rename(final)  # takes the place of an empty folder, and of nothing else
    except BaseException:
        shutil.rmtree(unfinished)
        raise
