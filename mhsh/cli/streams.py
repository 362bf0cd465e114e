"""Standard output and standard error where the terminal lacks characters of what mhsh says."""

from __future__ import annotations

import codecs
import io
import sys

# As wide as what they stand for, so that columns stay in line; any other is a question mark.
_PLAIN = {"\u25b2": "^", "\u25bc": "v", "\u2212": "-", "\u00d7": "x", "\u2026": "~", "\u2260": "#"}
_ERRORS = "mhsh.plain"


def replace_missing_characters() -> None:
    """From here on, what an encoding lacks (Latin-1, ASCII; bytes of a name that are no UTF-8) is
    written with the characters that it has, where Python would raise UnicodeEncodeError.
    """
    codecs.register_error(_ERRORS, _replaced)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ERRORS)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError), "nothing is decoded with it"
    return "".join(_PLAIN.get(character, "?") for character in error.object[error.start : error.end]), error.end
