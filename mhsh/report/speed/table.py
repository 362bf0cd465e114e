"""Speed against shape in the terminal: the findings, and a line a measurement."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from mhsh.report.render.table import Table
from mhsh.report.render.terminal import print_line, print_wide_table
from mhsh.report.speed.comparison import Speed
from mhsh.report.speed.cost import Cost
from mhsh.report.speed.findings import COST_COLUMNS, ROW_COLUMNS, finding, headline, turning_points


def print_speed(speed: Speed, costs: Sequence[Cost], target: float | None) -> None:
    """Prints all of it but the columns that are the same in all rows: the page and the CSV have
    those.
    """
    console = Console(highlight=False)
    print_line(headline(speed), console, style="bold")
    console.print()
    print_wide_table(Table.of(ROW_COLUMNS, speed.rows).without_constant_columns(), console)
    for pair in speed.pairs:
        print_line(f"\n{finding(pair)}.", console)
        for line in turning_points(pair):
            print_line(f"- {line}", console)
    if target is not None:
        print_line(f"\nDevice-hours to validation loss {target:g}:", console)
        print_wide_table(Table.of(COST_COLUMNS, costs).without_constant_columns(), console)
