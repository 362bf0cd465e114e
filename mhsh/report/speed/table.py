"""Speed against shape in the terminal: the findings, and a line a measurement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from mhsh.report.speed.comparison import Speed
from mhsh.report.speed.cost import Cost
from mhsh.report.speed.findings import COST_COLUMNS, ROW_COLUMNS, finding, headline, turning_points

_UNBOUNDED = 10_000  # characters: how wide a table would like to be


def print_speed(speed: Speed, costs: Sequence[Cost], target: float | None) -> None:
    """Prints all of it. Everything is text: no colour carries meaning."""
    console = Console(highlight=False)
    console.print(Text(headline(speed), style="bold", overflow="fold"))
    console.print()
    _print_table(ROW_COLUMNS, speed.rows, console)
    for pair in speed.pairs:
        console.print(Text(f"\n{finding(pair)}.", overflow="fold"))
        for line in turning_points(pair):
            console.print(Text(f"- {line}", overflow="fold"))
    if target is not None:
        console.print(Text(f"\nDevice-hours to validation loss {target:g}:", overflow="fold"))
        _print_table(COST_COLUMNS, costs, console)


def _print_table(columns: Sequence[tuple[str, Callable[[Any], str]]], rows: Sequence[Any], console: Console) -> None:
    """A line a row however narrow the terminal is. What is the same in all rows is left out; the
    page and the CSV have it.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    shown = [column for column in columns if len(rows) == 1 or len({column[1](row) for row in rows}) > 1]
    for heading, _ in shown:
        table.add_column(heading.replace(" (", "\n("), no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell(row)) for _, cell in shown))
    wanted = Measurement.get(console, console.options.update(width=_UNBOUNDED), table).maximum
    Console(highlight=False, width=max(console.width, wanted)).print(table)
