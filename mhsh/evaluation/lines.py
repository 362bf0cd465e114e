"""Sentences as lines of text: read from a file or from standard input, every line kept, whatever is in it."""

from __future__ import annotations

import sys
from pathlib import Path

from mhsh.data.files import unpacked
from mhsh.errors import UserError


def read_lines(path: str | None) -> list[str]:
    """The lines of a plain, .gz or .xz file, or of standard input where `path` is None; only "\\n" ends a line.

    A carriage return before it is left out, and so is a byte order mark at the start of the text.

    Raises:
      UserError: the file cannot be read, or a line (which is named) is not UTF-8.
    """
    if path is None:
        name, content = "standard input", sys.stdin.buffer.read()
    else:
        name = path
        with unpacked(Path(path)) as file:
            content = file.read()
    raw = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if not raw[-1]:
        raw.pop()
    return [_decoded(line, name, number) for number, line in enumerate(raw, 1)]


def _decoded(line: bytes, name: str, number: int) -> str:
    try:
        return line.decode("utf-8").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name} line {number} is not UTF-8: {error.reason} at byte {error.start} of the line; convert it to UTF-8"
        ) from error
