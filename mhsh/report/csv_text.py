"""CSV that other programs read, in which nothing is what a spreadsheet would run as a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def csv_bytes(columns: Sequence[object], rows: Iterable[Sequence[object]]) -> bytes:
    """A line of headings and a line a row. None is an empty cell, floats are written in full, and a text that begins as a formula
    would gets an apostrophe before it.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(list(map(_inert, columns)))
    writer.writerows(map(_inert, row) for row in rows)
    return text.getvalue().encode()


def _inert(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_STARTS) else value
