"""The report: declared once, and shown alike by the page, the files and the terminal."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

MARK = "written by mhsh compare"  # near the start of every file, as its generator
CAUTION = "caution"  # the column of why to be careful with what a row says
GROUPS, RUNS, DIFFERENCE = "groups", "runs", "difference"  # the views of curves

Numbers = tuple[int | float | None, ...]  # None: a gap


@dataclasses.dataclass(frozen=True)
class TableCell:
    """The text of one place in a table, and the numbers behind it for a CSV."""

    text: str
    mark: str = ""  # a sign after the text, which the table's note explains
    note: str = ""  # smaller, after both: an interval, a count, a step
    value: int | float | None = None
    low: float | None = None
    high: float | None = None
    heat: float | None = None  # from 0, the best of a map of losses, to 1

    @property
    def words(self) -> str:
        """All of it on one line: `2.310 * (2.290 to 2.330)`."""
        return " ".join(filter(None, (self.text, self.mark, f"({self.note})" if self.note else "")))


@dataclasses.dataclass(frozen=True)
class Column:
    """The heading of a column. Narrow terminals leave out the columns of the highest ranks."""

    name: str
    numeric: bool = False
    rank: int = 0
    forest: bool = False  # differences: drawn as points with their intervals, beside zero and the margin


@dataclasses.dataclass(frozen=True)
class Row:
    """A cell a column. The first names the row, which may be about a group or a run of `Curves`."""

    cells: tuple[str | TableCell, ...]
    group: int | None = None
    run: int | None = None

    @property
    def full_cells(self) -> list[TableCell]:
        """The cells, all of them TableCells."""
        return [TableCell(cell) if isinstance(cell, str) else cell for cell in self.cells]


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows below headings."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str = ""  # a sentence below, such as what the marks mean
    intervals: str = ""  # another one, of what the notes of its cells are; said where these are shown
    section: str = ""  # what it is of, where there are several of its kind

    @classmethod
    def from_text(cls, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> Table:
        """A table of text alone."""
        return cls(title, tuple(map(Column, headings)), tuple(Row(tuple(cells)) for cells in rows), note)

    @property
    def forests(self) -> list[int]:
        """The places of its columns of differences."""
        return [place for place, column in enumerate(self.columns) if column.forest]

    def drop_empty_columns(self) -> Table:
        """The table without the columns that hold no text in any row."""
        places = range(len(self.columns))
        filled = [place for place in places if any(row.full_cells[place].words for row in self.rows) or not self.rows]
        return self.select_columns(filled)

    def select_columns(self, places: Sequence[int]) -> Table:
        """The table with the columns at these places alone."""
        rows = tuple(dataclasses.replace(row, cells=tuple(row.cells[place] for place in places)) for row in self.rows)
        return dataclasses.replace(self, columns=tuple(self.columns[place] for place in places), rows=rows)


@dataclasses.dataclass(frozen=True)
class Columns:
    """Rows of a curve."""

    x: Mapping[str, Numbers | float]  # by axis: places, or the factor where they are proportional to the step
    y: Mapping[str, Numbers]  # by metric


@dataclasses.dataclass(frozen=True)
class DrawnCurve:
    """The rows of a run's curve to draw. A longer one is thinned to `rows`, which keep its spikes,
    and to smoothed rows at `even` distances of `spacing`.
    """

    rows: Columns
    window: int  # rows that the weakest smoothing averages
    even: Columns | None = None
    spacing: int = 1


@dataclasses.dataclass(frozen=True)
class CurveRun:
    """The curves of one run, by split."""

    name: str  # unique
    curves: Mapping[str, DrawnCurve]


@dataclasses.dataclass(frozen=True)
class CurveGroup:
    """Runs that differ only in what makes them replicates."""

    name: str  # unique
    runs: tuple[int, ...]  # places in Curves.runs
    unequal: str = ""  # why its losses cannot be compared with the baseline's; empty where they can
    pairs: tuple[tuple[int, int], ...] = ()  # a run, and the baseline's run of the same replicate
    averaged: bool = True  # False: some trained and some did not, so they are drawn one by one
    color: int = 0  # of its shape
    variant: int = 0  # among the groups of its colour: a line style


@dataclasses.dataclass(frozen=True)
class Metric:
    """A number that runs log."""

    name: str
    unit: str = ""
    smooth: bool = True  # False: smoothing would only blur it


@dataclasses.dataclass(frozen=True)
class Reference:
    """A level of a loss that does not depend on the runs, such as the unigram entropy."""

    value: float
    label: str


@dataclasses.dataclass(frozen=True)
class Curves:
    """The interactive figure: every curve of every run, seen by groups, runs or differences."""

    runs: tuple[CurveRun, ...]
    groups: tuple[CurveGroup, ...]
    baseline: str  # what differences are to, in words; empty where there are none
    axes: Mapping[str, str]  # titles by key; the first is shown first
    metrics: Mapping[str, Metric]  # by key, the loss first
    splits: Mapping[str, str]  # names by key; the first is shown first
    half_intervals: Numbers  # by the number of runs: times their standard deviation, half of an interval of the mean
    references: tuple[Reference, ...] = ()
    fields: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)  # config fields that differ: a value a run
    view: str = GROUPS
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Point:
    """A value at a place, with its interval where it has one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""  # shown when it is pointed at
    is_open: bool = False  # an end of its interval that is None goes on


@dataclasses.dataclass(frozen=True)
class Series:
    """The points of one line."""

    name: str
    points: tuple[Point, ...]
    color: int = 0
    variant: int = 0


@dataclasses.dataclass(frozen=True)
class Points:
    """Values against a number, which has a logarithmic axis: losses and differences by length."""

    title: str
    x_title: str
    y_title: str
    series: tuple[Series, ...]
    references: tuple[Reference, ...] = ()


@dataclasses.dataclass(frozen=True)
class Report:
    """Everything that is said and shown. All names are sanitized."""

    title: str  # the answer, in one sentence
    summary: tuple[str, ...] = ()  # the sentences below it
    training: Table | None = None  # the runs that train now
    tables: tuple[Table, ...] = ()  # those of the groups first
    margin: float | None = None  # differences within it are equivalent
    rates: tuple[Table, ...] = ()  # maps of losses: a row a shape, a column a value that was swept
    curves: Curves | None = None
    points: tuple[Points, ...] = ()
    conditions: tuple[Table, ...] = ()  # what differs between the groups, and what it means for the verdict
    problems: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()  # how each number is made
    caption: str = ""  # of the table of results in a paper

    @property
    def results(self) -> tuple[Table, ...]:
        """The tables of differences, one a section."""
        return tuple(table for table in self.tables if table.forests)

    @property
    def differences(self) -> list[TableCell]:
        """The differences of all groups that have one."""
        cells = [row.full_cells[place] for table in self.results for place in table.forests for row in table.rows]
        return [cell for cell in cells if cell.value is not None]

    @property
    def bounds(self) -> tuple[float, float]:
        """The lowest and the highest value that is drawn of the differences. Intervals are cut that
        are over five times as far from zero as half of them, but not before a difference that is
        less than ten times as far.
        """
        ends = [value for cell in self.differences for value in (cell.value, cell.low, cell.high) if value is not None]
        most = 5 * statistics.median(map(abs, ends)) if ends else 0.0
        most = most or max(map(abs, ends), default=0.0) or 1.0
        distances = [abs(cell.value or 0.0) for cell in self.differences]
        most = max([most, *(each for each in distances if each < 2 * most)])
        shown = [0.0, *(max(-most, min(most, value)) for value in ends), *([self.margin, -self.margin] if self.margin else [])]
        return (min(shown), max(shown)) if len(set(shown)) > 1 else (-most, most)
