"""Tables in a terminal. Of numbers nothing is cut off, whatever its width."""

from __future__ import annotations

from collections.abc import Sequence

import rich.table
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.text import Text

from mhsh.report.render.table import Table
from mhsh.verdict.words import shorten

_MAX_TABLES = 4  # below each other; beyond that, a block a row reads better
_UNBOUNDED = 10_000  # characters: more than any table needs


def print_table(table: Table, console: Console) -> None:
    """Prints a line a row where that fits, else a few tables in turn, else a block a row."""
    console.print(_side_by_side(table, console) or _stacked(table))


def print_fitted_table(table: Table, console: Console, ranks: Sequence[int]) -> None:
    """Prints exactly a line a row. Names longer than half the width lose their middles, and the
    columns that do not fit are left out.

    Args:
      ranks: of each column, 0 for the one that is left out last.
    """
    half = max(12, console.width // 2)
    short = Table(table.columns, [[shorten(row[0], half), *row[1:]] for row in table.rows])
    kept: list[int] = []
    for column in sorted(range(len(ranks)), key=ranks.__getitem__):
        if kept and _width(_draw(short, sorted([*kept, column])), console) > console.width:
            break
        kept.append(column)
    console.print(_draw(short, sorted(kept)))


def print_wide_table(table: Table, console: Console) -> None:
    """Prints a line a row, even where a line is wider than the terminal."""
    drawn = _draw(table, range(len(table.columns)))
    Console(highlight=False, file=console.file, width=max(console.width, _width(drawn, console))).print(drawn)


def print_line(line: str, console: Console, style: str = "") -> None:
    """Prints one line of text as it is: no markup is read, and long words are folded."""
    console.print(Text(line, style=style, overflow="fold"))


def _side_by_side(table: Table, console: Console) -> RenderableType | None:
    """The table, or a few that each fit and start with the same column; None where that fails."""
    tables: list[rich.table.Table] = []
    left = list(range(1, len(table.columns)))
    while left:
        fitting = 0
        while fitting < len(left) and _width(_draw(table, [0, *left[: fitting + 1]]), console) <= console.width:
            fitting += 1
        if not fitting or len(tables) == _MAX_TABLES:
            return None
        tables.append(_draw(table, [0, *left[:fitting]]))
        tables[-1].add_row()
        left = left[fitting:]
    return Group(*tables)


def _width(drawn: rich.table.Table, console: Console) -> int:
    return Measurement.get(console, console.options.update(width=_UNBOUNDED), drawn).maximum


def _draw(table: Table, columns: Sequence[int]) -> rich.table.Table:
    drawn = rich.table.Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for column in columns:
        # Headings of several lines keep the columns of numbers narrow.
        heading = table.columns[column].replace(" loss", "\nloss").replace(" (", "\n(")
        drawn.add_column(Text(heading), no_wrap=True)
    for row in table.rows:
        drawn.add_row(*(Text(row[column]) for column in columns))
    return drawn


def _stacked(table: Table) -> RenderableType:
    """A block a row and a line a cell: for narrow terminals."""
    blocks: list[RenderableType] = []
    for name, *cells in table.rows:
        grid = rich.table.Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(overflow="fold")
        grid.add_column(overflow="fold")
        for heading, cell in zip(table.columns[1:], cells, strict=True):
            grid.add_row(Text(heading, overflow="fold"), Text(cell, overflow="fold"))
        blocks += [Text(name, style="bold", overflow="fold"), Padding(grid, (0, 0, 1, 2), expand=False)]
    return Group(*blocks)
