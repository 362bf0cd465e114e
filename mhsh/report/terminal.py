"""Reports and tables in a terminal. Of numbers nothing is cut off, whatever its width."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import rich.table
from rich.console import Console
from rich.measure import Measurement
from rich.text import Text

from mhsh.report.report import Report, Row, Table, TableCell
from mhsh.text import sanitize, shorten

_LINES = 36  # of a report at most, where its sentences are short: a screen holds 40 with the names of its files
_LEAST_ROWS = 10
_SENTENCES = 4  # of the summary
UNBOUNDED = 10_000  # characters: more than any table needs


def print_report(report: Report, console: Console) -> None:
    """Prints the answer, the first table as far as a screen holds it, and the first sentences.

    Everything is text: no colour carries meaning.
    """
    table = report.tables[0].drop_empty_columns() if report.tables else None
    fitted, has_notes = _fit_table(table, console) if table else (None, False)
    note = f"{table.note} {table.intervals if has_notes else ''}".strip() if table else ""
    below = [*[note] * bool(note), *(f"- {sentence}" for sentence in report.summary[:_SENTENCES])]
    print_line(report.title, console, style="bold")
    if fitted is not None:
        free = _LINES - 4 - sum(len(Text(line).wrap(console, console.width)) for line in (report.title, *below))
        count = len(fitted.rows) if len(fitted.rows) <= max(_LEAST_ROWS, free + 1) else max(_LEAST_ROWS, free)
        console.print()
        print_table(dataclasses.replace(fitted, rows=fitted.rows[:count]), console)
        if count < len(fitted.rows):
            print_line(f"... and {len(fitted.rows) - count} more, in the report", console)
    for line in below:
        print_line(line, console)


def print_table(table: Table, console: Console) -> None:
    """Prints exactly a line a row; a console that is narrower than the table cuts it."""
    console.print(_draw(table))


def _fit_table(table: Table, console: Console) -> tuple[Table, bool]:
    """The columns and notes of the table that fit, and whether any note does. Names longer than
    half the width lose their middles. The columns of the highest ranks give way first, and of the
    others the notes.
    """
    most, lines = max(12, console.width // 2), [row.full_cells for row in table.rows]
    shown: dict[int, bool] = {}  # columns, and whether they have their notes

    def draw(columns: Mapping[int, bool]) -> Table:
        places = sorted(columns)
        rows = [[_words(row[place], columns[place]) if place else shorten(row[0].words, most) for place in places] for row in lines]
        return Table("", tuple(table.columns[place] for place in places), tuple(Row(tuple(row)) for row in rows))

    for place in sorted(range(len(table.columns)), key=lambda place: table.columns[place].rank):
        trials = [shown | {place: notes} for notes in (True, False)]
        found = next((each for each in trials if not shown or _width(draw(each), console) <= console.width), None)
        if found is None:
            break
        shown = found
    return draw(shown), any(row[place].note for row in lines for place, notes in shown.items() if notes)


def print_line(line: str, console: Console, style: str = "") -> None:
    """Prints one line of text as it is: no markup is read, and long words are folded."""
    console.print(Text(sanitize(line), style=style, overflow="fold"))


def _words(cell: TableCell, notes: bool) -> str:
    return cell.words if notes else f"{cell.text} {cell.mark}".rstrip()


def _width(table: Table, console: Console) -> int:
    return Measurement.get(console, console.options.update(width=UNBOUNDED), _draw(table)).maximum


def _draw(table: Table) -> rich.table.Table:
    grid = rich.table.Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for column in table.columns:
        # Headings of several lines keep the columns of numbers narrow.
        heading = sanitize(column.name).replace(" loss", "\nloss").replace(" to ", "\nto ").replace(" (", "\n(")
        grid.add_column(Text(heading), no_wrap=True, justify="right" if column.numeric else "left")
    for row in table.rows:
        grid.add_row(*(Text(sanitize(cell.words)) for cell in row.full_cells))
    return grid
