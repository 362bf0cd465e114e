"""CSV that other programs read, in which nothing is what a spreadsheet would run as a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def csv_bytes(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    """A line of headings and a line a row. None is an empty cell, floats are written in full, and a
    text that begins as a formula would gets an apostrophe before it.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(list(map(_inert, columns)))
    # Asked here, not there: most cells are numbers, and a call for each takes longer than to write
    # it.
    writer.writerows([_inert(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return text.getvalue().encode()


def _inert(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
