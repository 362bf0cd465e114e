"""The comparison as tables in the terminal."""

from __future__ import annotations

from rich.console import Console

from mhsh.report.compare.comparison import Comparison
from mhsh.report.compare.measures import measure_rows
from mhsh.report.compare.run_columns import COLUMNS
from mhsh.report.render.table import Table
from mhsh.report.render.terminal import print_line, print_table


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Prints the headline, the numbers of every run and group, and the headline's limits.

    Everything is text: no colour carries meaning.
    """
    print_line(comparison.headline.title, console, style="bold")
    console.print()
    print_table(Table.of(COLUMNS, comparison.summaries), console)
    print_table(_groups_table(comparison), console)
    print_line("Losses are in nats per predicted token; in brackets: 95 % intervals over seeds.", console)
    for sentence in comparison.headline.sentences:
        print_line(f"- {sentence}", console)


def _groups_table(comparison: Comparison) -> Table:
    """Results by group. Of the differences to the baseline, only that of the final loss: the page
    has the others.
    """
    baseline = comparison.results.baseline
    final, *others = measure_rows(comparison)
    difference = f"difference to {comparison.groups[baseline].name}" if comparison.groups else ""
    columns = ["group", "seeds", final.name, difference, *(row.name for row in others)]
    rows = [
        [
            group.name,
            ", ".join(map(str, group.seeds)),
            final.cells[place].value,
            "the baseline" if place == baseline else final.cells[place].difference,
            *(row.cells[place].value for row in others),
        ]
        for place, group in enumerate(comparison.groups)
    ]
    return Table(columns, rows)
