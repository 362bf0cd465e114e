"""The comparison as a table in the terminal, wide or stacked, whichever fits without cutting
anything off.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mhsh.report.compare.comparison import Comparison
from mhsh.report.compare.measures import measure_rows
from mhsh.report.compare.run_columns import COLUMNS

Column = tuple[str, list[str]]  # a heading, and a cell for every run or group

_MOST_TABLES = 4  # below each other; where that is not enough, a block a run reads better
_UNBOUNDED = 10_000  # characters: how wide a table would like to be


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Prints the headline, the numbers of every run and group, and the headline's limits.

    Everything is text: no colour carries meaning.
    """
    console.print(Text(comparison.headline.title, style="bold", overflow="fold"))
    console.print()
    runs = [(heading, [cell(item) for item in comparison.summaries]) for heading, cell in COLUMNS]
    for columns in (runs, _group_columns(comparison)):
        console.print(_side_by_side(columns, console) or _stacked(columns))
    console.print(Text("Losses are in nats per predicted token; in brackets: 95 % intervals over seeds.", overflow="fold"))
    for sentence in comparison.headline.sentences:
        console.print(Text(f"- {sentence}", overflow="fold"))


def _group_columns(comparison: Comparison) -> list[Column]:
    """What each group came to; of the differences to the baseline that of the final loss alone, the
    page has the others.
    """
    columns = [
        ("group", [group.name for group in comparison.groups]),
        ("seeds", [", ".join(map(str, group.seeds)) for group in comparison.groups]),
    ]
    for number, row in enumerate(measure_rows(comparison)):
        columns.append((row.what, [cell.value for cell in row.cells]))
        if number == 0:
            baseline = comparison.standing.baseline
            against = ["the baseline" if place == baseline else cell.against for place, cell in enumerate(row.cells)]
            columns.append((f"difference to {comparison.groups[baseline].name}", against))
    return columns


def _side_by_side(columns: Sequence[Column], console: Console) -> RenderableType | None:
    """The columns in one table, or in a few below each other that each fit the terminal; None where
    even those would not.
    """
    tables: list[Table] = []
    names, left = columns[0], list(columns[1:])
    while left:
        fitting = 0
        while fitting < len(left) and _width(_table([names, *left[: fitting + 1]]), console) <= console.width:
            fitting += 1
        if not fitting or len(tables) == _MOST_TABLES:
            return None
        tables.append(_table([names, *left[:fitting]]))
        left = left[fitting:]
    return Group(*tables)


def _width(table: Table, console: Console) -> int:
    return Measurement.get(console, console.options.update(width=_UNBOUNDED), table).maximum


def _table(columns: Sequence[Column]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for heading, _ in columns:
        # Headings of several lines keep the numbers' columns narrow.
        table.add_column(Text(heading.replace(" loss", "\nloss").replace(" (", "\n(")), no_wrap=True)
    for cells in zip(*(cells for _, cells in columns), strict=True):
        table.add_row(*map(Text, cells))
    table.add_row()
    return table


def _stacked(columns: Sequence[Column]) -> RenderableType:
    """A block a run or group, a line a number: what a narrow terminal shows instead of columns."""
    blocks: list[RenderableType] = []
    for index, name in enumerate(columns[0][1]):
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(overflow="fold")
        grid.add_column(overflow="fold")
        for heading, cells in columns[1:]:
            grid.add_row(Text(heading, overflow="fold"), Text(cells[index], overflow="fold"))
        blocks += [Text(name, style="bold", overflow="fold"), Padding(grid, (0, 0, 1, 2), expand=False)]
    return Group(*blocks)
