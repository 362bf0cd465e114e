"""One table for every output: `terminal` prints it, `macros.html` shows it on a page, `csv_file`
writes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Column = tuple[str, Callable[[Any], str]]  # a heading, and the cell of an item


@dataclasses.dataclass(frozen=True)
class Table:
    """Headings and rows of cells, one a heading. The first cell of a row names the row.

    Cells are text. Only a table that is written as CSV also holds numbers and None.
    """

    columns: Sequence[str]
    rows: Iterable[Sequence[Any]]

    @classmethod
    def of(cls, columns: Sequence[Column], items: Iterable[Any]) -> Table:
        """A row an item."""
        return cls([heading for heading, _ in columns], [[cell(item) for _, cell in columns] for item in items])

    def without_empty_columns(self) -> Table:
        """Without the columns that hold no text in any row."""
        return self._keep(any)

    def without_constant_columns(self) -> Table:
        """Without the columns that are the same in all of several rows."""
        return self._keep(lambda cells: len(cells) == 1 or len(set(cells)) > 1)

    def _keep(self, wanted: Callable[[list[Any]], bool]) -> Table:
        rows = list(self.rows)
        kept = [index for index in range(len(self.columns)) if wanted([row[index] for row in rows])]
        return Table([self.columns[index] for index in kept], [[row[index] for index in kept] for row in rows])
