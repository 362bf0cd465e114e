"""Reports and tables in a terminal. Of numbers nothing is cut off, whatever its width."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import rich.table
from rich.console import Console
from rich.measure import Measurement
from rich.text import Text

from mhsh.report.report import Cell, Report, Table
from mhsh.text import sanitize, shorten

_LINES = 36  # of a report at most, where its sentences are short: a screen holds 40 with the names of its files
_LEAST_ROWS = 10
_SENTENCES = 4  # of the summary
UNBOUNDED = 10_000  # characters: more than any table needs


def print_report(report: Report, console: Console) -> None:
    """Prints the answer, the first table as far as a screen holds it, and the first sentences.

    Everything is text: no colour carries meaning.
    """
    table = report.tables[0] if report.tables else None
    below = [*([table.note] if table and table.note else []), *(f"- {sentence}" for sentence in report.summary[:_SENTENCES])]
    print_line(report.title, console, style="bold")
    if table is not None:
        free = _LINES - 4 - sum(len(Text(line).wrap(console, console.width)) for line in (report.title, *below))
        rows = table.rows if len(table.rows) <= max(_LEAST_ROWS, free + 1) else table.rows[: max(_LEAST_ROWS, free)]
        console.print()
        print_fitted_table(dataclasses.replace(table, rows=rows), console)
        if len(rows) < len(table.rows):
            print_line(f"... and {len(table.rows) - len(rows)} more, in the report", console)
    for line in below:
        print_line(line, console)


def print_table(table: Table, console: Console) -> None:
    """Prints exactly a line a row; a console that is narrower than the table cuts it."""
    console.print(_draw(table, range(len(table.columns))))


def print_fitted_table(table: Table, console: Console) -> None:
    """Prints exactly a line a row. Names longer than half the width lose their middles, notes give
    way first, and then the columns of the highest ranks.
    """
    half = max(12, console.width // 2)
    every = range(len(table.columns))
    for notes in (True, False):
        cells = [[_words(cell, notes) for cell in row.full] for row in table.rows]
        short = Table.of_text("", [column.name for column in table.columns], [[shorten(row[0], half), *row[1:]] for row in cells])
        short = dataclasses.replace(short, columns=table.columns)
        if _width(_draw(short, every), console) <= console.width:
            break
    kept: list[int] = []
    for place in sorted(every, key=lambda place: table.columns[place].rank):
        if kept and _width(_draw(short, sorted([*kept, place])), console) > console.width:
            break
        kept.append(place)
    console.print(_draw(short, sorted(kept)))


def print_line(line: str, console: Console, style: str = "") -> None:
    """Prints one line of text as it is: no markup is read, and long words are folded."""
    console.print(Text(sanitize(line), style=style, overflow="fold"))


def _words(cell: Cell, notes: bool) -> str:
    return cell.words if notes else f"{cell.text} {cell.mark}".rstrip()


def _width(drawn: rich.table.Table, console: Console) -> int:
    return Measurement.get(console, console.options.update(width=UNBOUNDED), drawn).maximum


def _draw(table: Table, columns: Sequence[int]) -> rich.table.Table:
    drawn = rich.table.Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for place in columns:
        column = table.columns[place]
        # Headings of several lines keep the columns of numbers narrow.
        heading = sanitize(column.name).replace(" loss", "\nloss").replace(" to ", "\nto ").replace(" (", "\n(")
        drawn.add_column(Text(heading), no_wrap=True, justify="right" if column.numeric else "left")
    for row in table.rows:
        drawn.add_row(*(Text(sanitize(row.full[place].words)) for place in columns))
    return drawn
