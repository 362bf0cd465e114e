"""CSV for other programs. No cell is one that a spreadsheet would run as a formula."""

from __future__ import annotations

import csv
import io

from mhsh.report.render.table import Table

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def to_csv(table: Table) -> bytes:
    """A line of headings and a line a row.

    None is an empty cell. Floats are written in full. Text that begins like a formula gets an
    apostrophe in front.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(list(map(_inert, table.columns)))
    # Most cells are numbers, and calling _inert for each would take longer than writing it.
    writer.writerows([_inert(cell) if isinstance(cell, str) else cell for cell in row] for row in table.rows)
    return text.getvalue().encode()


def _inert(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
