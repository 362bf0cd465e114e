"""The report's files: the page, JSON, CSV, Markdown and figures, written beside each other. Former
reports are replaced as a whole; anything else is refused.
"""

from __future__ import annotations

import csv
import functools
import io
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from matplotlib.figure import Figure

from mhsh.config.recorded import WRITER
from mhsh.errors import UserError
from mhsh.report.figure_files import TEXT, figure_bytes, figure_style, pdf_bytes
from mhsh.report.figures import curves_figure, forest_figure, map_figure, points_figure
from mhsh.report.html import to_html
from mhsh.report.markdown import report_to_markdown
from mhsh.report.report import MARK, Report, Row, Table
from mhsh.report.tex import report_to_tex
from mhsh.storage.files import make_folder, write_atomically
from mhsh.storage.questions import is_file

_START = 4096  # bytes at both ends, searched for the mark
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def prepare_files(page: Path, with_png: bool = False, for_paper: bool = False) -> Callable[[Report], list[Path]]:
    """A function that writes a report to `page` and beside it: report.json, report.md, report.csv
    (the results of all sections), and an svg for each figure; with `with_png` also a png, and with
    `for_paper` report.pdf (all figures) and report.tex. The function returns the paths.

    Raises UserError where one of these files exists and is not a former report: checked before
    anything is computed, and again for the figures, whose number is known only then.
    """
    kinds = ("svg", "png") if with_png else ("svg",)
    stem = page.with_suffix("")
    ends = (".json", ".md", ".csv", *(f".{kind}" for kind in kinds), *((".pdf", ".tex") if for_paper else ()))
    for path in (page, *(Path(f"{stem}{end}") for end in ends)):
        check_replaceable(path)

    def write_files(report: Report) -> list[Path]:
        contents = {page: to_html(report), Path(f"{stem}.json"): to_json(report)}
        figures = _named_figures(report)
        with figure_style():
            pictures = [(end, draw()) for end, _, draw in figures]
            contents |= {Path(f"{stem}{end}.{kind}"): figure_bytes(each, kind, MARK) for kind in kinds for end, each in pictures}
        if for_paper:
            with figure_style(serif=True):
                contents[Path(f"{stem}.pdf")] = pdf_bytes([draw(TEXT) for _, _, draw in figures], MARK)
            contents[Path(f"{stem}.tex")] = report_to_tex(report, MARK)
        contents[Path(f"{stem}.md")] = report_to_markdown(report, {f"{stem.name}{end}.svg": title for end, title, _ in figures})
        contents[Path(f"{stem}.csv")] = tables_to_csv(report.results)
        for path in contents:
            check_replaceable(path)
        for path, content in contents.items():
            try:
                make_folder(path.parent)
                write_atomically(path, content)
            except OSError as error:
                raise UserError(f"cannot write {path}: {error.strerror}; choose another --out") from error
        return list(contents)

    return write_files


def _named_figures(report: Report) -> list[tuple[str, str, Callable[..., Figure]]]:
    """For each figure: the end of its file's name, its title, and a function that draws it in a
    width.
    """
    found: list[tuple[str, str, Callable[..., Figure]]] = []
    if report.differences:
        found.append(("_forest", "Differences", functools.partial(forest_figure, report)))
    if report.curves is not None:
        found.append(("", "Curves", functools.partial(curves_figure, report.curves)))
    for number, table in enumerate(report.rates, 1):
        found.append((f"_rates_{number}" if number > 1 else "_rates", table.title, functools.partial(map_figure, table)))
    found += [
        (f"_{number}", points.title, functools.partial(points_figure, points)) for number, points in enumerate(report.points, 1)
    ]
    return found


def check_replaceable(path: Path) -> None:
    """Raises UserError unless `path` is free or a former report, which holds the mark near one end,
    and where it cannot be read.
    """
    if not os.path.lexists(path):
        return
    if not is_file(path):
        raise UserError(f"{path} exists and is not a file; choose another --out")
    try:
        with open(path, "rb") as file:
            start = file.read(_START)
            file.seek(max(0, path.stat().st_size - _START))
            start += file.read()  # a PDF names its author at its end
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; choose another --out") from error
    if start and MARK.encode() not in start:
        raise UserError(f"{path} exists and was not {MARK}; move it away or choose another --out")


def to_json(report: Report) -> bytes:
    """The whole report. Numbers that are not finite are null."""
    # First the mark by which it may be replaced.
    return msgspec.json.encode({"generator": MARK, **WRITER, "report": report}) + b"\n"


def tables_to_csv(tables: Sequence[Table]) -> bytes:
    """A line a row of every table, with the columns that hold something: the numbers behind cells
    in full, and the ends of their intervals. Text that begins like a formula gets an apostrophe in
    front, for spreadsheets.
    """
    rows = [{"section": table.section} | _row_values(table, row) for table in tables for row in table.rows]
    headings = [name for name in dict.fromkeys(itertools.chain(*rows)) if any(row.get(name) not in (None, "") for row in rows)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    # The last heading is the mark of files that a later report may replace. Its cells are empty.
    writer.writerow([*map(_escape_formula, headings), MARK])
    writer.writerows([*(_escape_formula(row.get(name)) for name in headings), ""] for row in rows)
    return text.getvalue().encode()


def _row_values(table: Table, row: Row) -> dict[str, object]:
    """The values of a row, by heading."""
    found: dict[str, object] = {}
    for column, cell in zip(table.columns, row.full_cells, strict=True):
        ends = {f"{column.name} low": cell.low, f"{column.name} high": cell.high}
        found |= {column.name: cell.value, **ends} if column.numeric else {column.name: cell.words}
    return found


def _escape_formula(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_STARTS) else value
