"""The comparison as a table in the terminal, wide or stacked, whichever fits without cutting anything off."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mhsh.report.cells import COLUMNS
from mhsh.report.comparison import Comparison

_MOST_TABLES = 4  # below each other; where that is not enough, a block a run reads better
_UNBOUNDED = 10_000  # characters: how wide a table would like to be


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Prints the headline, the numbers of every run, and the headline's limits. Everything is text: no colour carries meaning."""
    console.print(Text(comparison.headline.title, style="bold", overflow="fold"))
    console.print()
    console.print(_columns(comparison, console) or _stacked(comparison))
    console.print(Text("Losses are in nats per predicted token.", overflow="fold"))
    for sentence in comparison.headline.sentences:
        console.print(Text(f"- {sentence}", overflow="fold"))


def _columns(comparison: Comparison, console: Console) -> RenderableType | None:
    """The columns in one table, or in a few below each other that each fit the terminal; None where even those would not."""
    tables: list[Table] = []
    left = list(range(1, len(COLUMNS)))
    while left:
        fitting = 0
        while fitting < len(left) and _width(_table(comparison, left[: fitting + 1]), console) <= console.width:
            fitting += 1
        if not fitting or len(tables) == _MOST_TABLES:
            return None
        tables.append(_table(comparison, left[:fitting]))
        left = left[fitting:]
    return Group(*tables)


def _width(table: Table, console: Console) -> int:
    return Measurement.get(console, console.options.update(width=_UNBOUNDED), table).maximum


def _table(comparison: Comparison, columns: Sequence[int]) -> Table:
    """The run's name and then the `columns` of COLUMNS."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for index in (0, *columns):
        # Headings of several lines keep the numbers' columns narrow.
        table.add_column(COLUMNS[index][0].replace(" loss", "\nloss").replace(" (", "\n("), no_wrap=True)
    for item in comparison.summaries:
        table.add_row(*(Text(COLUMNS[index][1](item)) for index in (0, *columns)))
    table.add_row()
    return table


def _stacked(comparison: Comparison) -> RenderableType:
    """A block a run, a line a number: what a narrow terminal shows instead of columns."""
    blocks: list[RenderableType] = []
    for item in comparison.summaries:
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(overflow="fold")
        grid.add_column(overflow="fold")
        for heading, cell in COLUMNS[1:]:
            grid.add_row(heading, Text(cell(item), overflow="fold"))
        blocks += [Text(item.name, style="bold", overflow="fold"), Padding(grid, (0, 0, 1, 2), expand=False)]
    return Group(*blocks)
