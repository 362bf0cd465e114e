"""Tests of a Report's files and of what it prints: read back, kept from harm, and narrow."""

from __future__ import annotations

import csv
import dataclasses
import html
import io
import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console

from mhsh.errors import UserError
from mhsh.report.curves import drawn_curve
from mhsh.report.figure_files import figure_bytes, log_ticks
from mhsh.report.figures import forest_figure, points_figure
from mhsh.report.files import prepare_files, tables_to_csv, to_json
from mhsh.report.markdown import escape, report_to_markdown
from mhsh.report.report import MARK, Column, CurveRun, Point, Points, Reference, Report, Row, Series, Table, TableCell
from mhsh.report.terminal import UNBOUNDED, print_report, print_table
from mhsh.report.tex import report_to_tex
from tests.report.reports import planted_report

READ = MarkdownIt("commonmark", {"html": True}).enable("table")
HOSTILE = ("=HYPERLINK(1)", "[red]$x^{2}$_[/red]", "<b>|`\\ & *a* _b_", "\x1b[31mc\u202ed\n# e")
CLEAN = (*HOSTILE[:3], "\ufffd[31mc\ufffdd # e")  # as it is shown


def read_json(content: bytes) -> Report:
    return msgspec.convert(json.loads(content)["report"], Report)


@pytest.mark.parametrize("names", [("6x4 post_ln", "24x1 admin"), HOSTILE])
def test_json_holds_the_whole_report(names: tuple[str, ...]) -> None:
    report = planted_report(names)
    content = to_json(report)
    assert read_json(content) == report
    assert content.startswith(b'{"generator":"' + MARK.encode())


def test_what_is_not_finite_is_null(report: Report) -> None:
    assert report.curves is not None
    x = {"step": np.array([1.0, 2.0]), "tokens": np.array([1.0, math.nan]), "seconds": np.array([1.0, math.nan])}
    run = CurveRun("a", {"train": drawn_curve(x, {"loss": np.array([math.nan, 2.0])}, 100)})
    curves = dataclasses.replace(report.curves, runs=(run, *report.curves.runs[1:]))
    assert read_json(to_json(dataclasses.replace(report, curves=curves))).curves == curves


def test_the_csv_of_a_table_holds_its_numbers_in_full() -> None:
    cells = (TableCell("2.103", "*", "2.010 to 2.196", value=2.1034567, low=2.01, high=2.196), TableCell("not known"))
    table = Table(
        "",
        (Column("group"), Column("loss", numeric=True), Column("note")),
        tuple(Row((name, cell, "x")) for name, cell in zip("ab", cells, strict=True)),
    )
    rows = list(csv.reader(io.StringIO(tables_to_csv([table]).decode())))
    assert rows == [
        ["group", "loss", "loss low", "loss high", "note", MARK],
        ["a", "2.1034567", "2.01", "2.196", "x", ""],
        ["b", "", "", "", "x", ""],
    ]
    # Of several sections, which need not have reached one target.
    first, second = (
        dataclasses.replace(table, section=name, columns=(*table.columns[:2], Column(f"steps to {name}"))) for name in ("1", "2")
    )
    rows = list(csv.reader(io.StringIO(tables_to_csv([first, second]).decode())))
    assert rows[0] == ["section", "group", "loss", "loss low", "loss high", "steps to 1", "steps to 2", MARK]
    assert rows[1] == ["1", "a", "2.1034567", "2.01", "2.196", "x", "", ""] and rows[4] == ["2", "b", "", "", "", "", "x", ""]


def test_csv_has_no_formulas() -> None:
    content = tables_to_csv(planted_report(HOSTILE).results)
    cells = [cell for row in csv.reader(io.StringIO(content.decode())) for cell in row]
    assert "'=HYPERLINK(1)" in cells and not [cell for cell in cells if cell.startswith(("=", "@", "\t"))]


@given(st.floats(1e-6, 1e9), st.floats(1.05, 1e4))
def test_a_logarithmic_axis_has_several_ticks_and_not_many(low: float, ratio: float) -> None:
    ticks = log_ticks(low, low * ratio)
    assert 2 <= len(ticks) <= 8 and ticks == sorted(ticks) and low <= ticks[0] and ticks[-1] <= low * ratio


@pytest.mark.parametrize(("name", "shown"), list(zip(HOSTILE, CLEAN, strict=True)))
def test_markdown_is_read_back_as_it_is(name: str, shown: str) -> None:
    assert READ.render(escape(name)) == f"<p>{html.escape(shown, quote=False)}</p>\n"
    page = READ.render(report_to_markdown(planted_report((name, "b")), {"my report.svg": name}).decode())
    cells = [html.unescape(cell) for cell in re.findall("<td.*?>(.*?)</td>", page)]
    assert cells[:6] == [shown, "2.103 (2.010 to 2.196)", shown, "b", "2.103 * (2.010 to 2.196)", "b"]
    assert f"<li>{html.escape(shown, quote=False)} ended lowest.</li>" in page
    assert f"<li>Problem: {html.escape(shown, quote=False)}: is cut short</li>" in page
    assert page.count("<table>") == 4 and 'src="my%20report.svg"' in page  # a space would end its address


@pytest.mark.parametrize(("far", "most"), [(0.3, 0.3), (0.1, 0.275), (0.6, 0.275)])
def test_a_picture_of_differences_cuts_intervals_and_no_difference_that_is_near(far: float, most: float) -> None:
    ends = [(0.05, 0.04, 0.06), (-0.05, -0.06, -0.04), (0.05, 0.04, 0.06), (far, far - 0.01, 2.0)]
    rows = tuple(Row((f"{place}", TableCell("", value=mean, low=low, high=high))) for place, (mean, low, high) in enumerate(ends))
    report = Report("", tables=(Table("", (Column("group"), Column("difference", forest=True)), rows),))
    assert report.bounds == (-0.06, pytest.approx(most))


def test_all_files_are_written_replaced_and_equal(report: Report, tmp_path: Path) -> None:
    page = tmp_path / "sub" / "report.html"
    names = ["html", "json", "md", "csv"]
    paths = prepare_files(page, with_png=True, for_paper=True)(report)
    pictures = {f"report{end}.{kind}" for end in ("", "_forest", "_rates", "_1") for kind in ("svg", "png")}
    expected = {f"report.{kind}" for kind in names} | pictures | {"report.pdf", "report.tex"}
    assert {path.name for path in paths} == expected == {path.name for path in page.parent.iterdir()}
    assert all(MARK.encode() in path.read_bytes()[:4096] + path.read_bytes()[-4096:] for path in paths)
    first = {path: path.read_bytes() for path in paths}
    assert {path: path.read_bytes() for path in prepare_files(page, with_png=True, for_paper=True)(planted_report())} == first
    assert len(prepare_files(page)(report)) == 8  # no png unless it is asked for
    pdf = (page.parent / "report.pdf").read_bytes()
    assert pdf.count(b"/MediaBox [ 0 0 396 ") == 4  # a page a figure, 5.5 inches wide
    assert b"STIXGeneral" in pdf and b"/CIDFontType2" in pdf and b"/Type3" not in pdf


def test_a_table_for_a_paper_is_latex_whatever_the_names_are() -> None:
    names = (r"50 % & \input{a} $x_1^2$ #1 ~{}", "24x1 \u2212")
    text = report_to_tex(planted_report(names), MARK).decode()
    body = text[text.index(r"\midrule") : text.index(r"\bottomrule")].splitlines()[1:]
    assert body[0].startswith(
        r"50 \% \& \textbackslash{}input\{a\} \$x\_1\textasciicircum{}2\$ \#1 \textasciitilde{}\{\} & 2.103 (2.010 to 2.196) & "
    )
    assert all(line.endswith(r" \\") and len(re.findall(r"(?<!\\)&", line)) == 2 for line in body) and len(body) == 2
    assert r"\begin{tabular}{lrl}" in text and r"\caption{" in text and "About 50" in text
    assert text.count("{") == text.count("}") and re.findall(r"\\begin{(\w+)}", text) == ["table", "tabular"]


@pytest.mark.parametrize("name", ["report.html", "report.json", "report.csv", "report_1.svg"])
def test_what_is_no_report_is_kept(report: Report, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(UserError, match=f"{name} exists and was not {MARK}"):
        prepare_files(tmp_path / "report.html")(report)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_figures_show_names_as_they_are_and_clip_bands(report: Report, tmp_path: Path) -> None:
    names = ("a $x^{2}$ _b", "_24x1 $")
    prepare_files(tmp_path / "report.html")(planted_report(names))
    for name in ("report.svg", "report_1.svg"):
        text = (tmp_path / name).read_text()
        ElementTree.fromstring(text)
        assert "<!-- a $x^{2}$ _b -->" in text and "_24x1 $" in text
    assert "\u2260" in (tmp_path / "report.svg").read_text()


def test_intervals_at_one_place_are_drawn_beside_each_other() -> None:
    def intervals(*places: tuple[float, ...]) -> list[float]:
        series = tuple(Series("", tuple(Point(x, 1.0, 0.5, 1.5) for x in each)) for each in places)
        drawn = figure_bytes(points_figure(Points("", "x", "y", series)), "svg", "").decode()
        groups = re.findall('<g id="LineCollection.*?</g>', drawn, re.DOTALL)
        return [float(x) for group in groups for x in re.findall(r'd="M ([\d.]+) ', group)]

    one, other, third, last = intervals((1.0, 4.0), (1.0, 4.0))  # each series' interval at 1, then at 4
    assert one < third < other < last and third - one == pytest.approx(last - other, abs=1e-3)
    assert third - one < (other - one) / 20
    alone = intervals((1.0, 4.0), (2.0,))
    assert len(alone) == 3 and (alone[2] - alone[0]) / (alone[1] - alone[0]) == pytest.approx(1 / 2, abs=1e-3)


def test_an_interval_that_is_open_goes_on_to_the_frame() -> None:
    points = (Point(1.0, 2.0, 1.9, None, is_open=True), Point(2.0, 2.0, None, 2.1, is_open=True), Point(4.0, 2.0))
    (axes,) = points_figure(Points("", "x", "y", (Series("", points),), (Reference(0.0, "zero"),))).axes
    low, high = axes.get_ylim()
    drawn = [[float(y) for y in np.asarray(line.get_ydata())] for line in axes.lines if len(set(np.asarray(line.get_xdata()))) == 1]
    assert low < 0 and [2.0, high] in drawn and [low, 2.0] in drawn and len(drawn) == 2


@pytest.mark.parametrize("ends", [(-0.1, None, -0.02), (0.1, 0.02, None)])
def test_a_difference_without_a_bound_goes_on_to_the_frame_on_whichever_side_it_is(ends: tuple[float | None, ...]) -> None:
    """All that is drawn lies on one side of zero."""
    cell = TableCell("", note="no bound", value=ends[0], low=ends[1], high=ends[2])
    table = Table("", (Column("group"), Column("difference", forest=True)), (Row(("a", cell)),))
    (axes,) = forest_figure(Report("", tables=(table,))).axes
    low, high = axes.get_xlim()
    (interval,) = (np.asarray(line.get_xdata(), float) for line in axes.lines if len(set(np.asarray(line.get_xdata()))) == 2)
    assert interval[0] <= low if ends[1] is None else interval[1] >= high


def printed(report: Report, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), highlight=False, force_terminal=False)
    print_report(report, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(("width", "values"), [(120, "2.010 to 2.196"), (80, "2.010 to 2.196"), (40, "2.010 to 2.196"), (25, "")])
def test_a_terminal_shows_the_answer_each_group_on_a_line_and_intervals(report: Report, width: int, values: str) -> None:
    text = printed(report, width)
    assert text.replace("\n", " ").startswith("6x4 post_ln ended lowest ")
    assert max(map(len, text.splitlines())) <= width
    lines = [line for line in text.splitlines() if line.startswith(("6x4 post_ln  ", "24x1 admin  "))]
    assert len(lines) == 2 and all("2.103" in line and values in line for line in lines)
    assert ("Intervals follow." in text) == bool(values)
    assert "- How sure: 6x4 post_ln" in text and "\n- Fourth." in text and "Fifth" not in text


def test_a_terminal_is_told_of_groups_that_it_does_not_show() -> None:
    text = printed(planted_report([f"{layers}x1 admin" for layers in range(60)], seeds=1), 80)
    assert len(text.splitlines()) <= 36 and "and 34 more, in the report" in text


@pytest.mark.parametrize("width", [100, 30])
def test_a_terminal_shows_hostile_names_and_does_not_obey_them(width: int) -> None:
    report = planted_report(HOSTILE)
    text = printed(report, width)
    for table in (*report.tables, *report.conditions):
        console = Console(width=UNBOUNDED, file=io.StringIO(), highlight=False)
        print_table(table, console)
        assert isinstance(console.file, io.StringIO)
        text += console.file.getvalue()
    assert "\x1b" not in text and "\u202e" not in text
    assert "[red]$x^{2}$_[/red]" in text.replace("\n", "")
