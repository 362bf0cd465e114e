"""Tests of the one table: its columns, in a terminal, as CSV and on a page."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from mhsh.report.render.csv_file import to_csv
from mhsh.report.render.html import _environment
from mhsh.report.render.table import Table
from mhsh.report.render.terminal import print_table, print_wide_table
from mhsh.report.styles import curve_style

TABLE = Table(["name", "loss (nats)", "device", "remark"], [["a", "2.5", "cpu", ""], ["[red]b", "<b>3</b>", "cpu", ""]])


def printed(table: Table, width: int, printer=print_table) -> list[str]:
    stream = io.StringIO()
    printer(table, Console(file=stream, width=width, highlight=False))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_columns_are_cells_of_items() -> None:
    assert Table.of([("n", str), ("square", lambda n: str(n * n))], [2, 3]) == Table(["n", "square"], [["2", "4"], ["3", "9"]])


def test_columns_that_say_nothing_are_left_out() -> None:
    assert TABLE.without_empty_columns().columns == ["name", "loss (nats)", "device"]
    assert TABLE.without_constant_columns() == Table(["name", "loss (nats)"], [["a", "2.5"], ["[red]b", "<b>3</b>"]])
    assert Table(["a"], [["x"]]).without_constant_columns() == Table(["a"], [["x"]])


def test_a_line_a_row_where_it_fits() -> None:
    lines = printed(TABLE, 80)
    assert [line.split() for line in lines if line] == [
        ["loss"],
        ["name", "(nats)", "device", "remark"],
        ["a", "2.5", "cpu"],
        ["[red]b", "<b>3</b>", "cpu"],
    ]


@pytest.mark.parametrize("width", [20, 25])
def test_a_narrow_terminal_cuts_nothing_off(width: int) -> None:
    lines = printed(TABLE, width)
    assert max(map(len, lines)) <= width
    for text in ("[red]b", "<b>3</b>", "cpu", "remark"):
        assert text in "".join(lines)


def test_a_wide_table_keeps_a_line_a_row() -> None:
    assert "[red]b  <b>3</b>  cpu" in printed(TABLE, 10, print_wide_table)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx"])
def test_csv_holds_no_formulas(text: str) -> None:
    assert to_csv(Table([text], [[text]])).decode().count("'") == 2


def test_csv_holds_numbers_in_full() -> None:
    assert to_csv(Table(["a", "b", "c"], [[1 / 3, None, 7]])) == b"a,b,c\n0.3333333333333333,,7\n"


def test_a_page_escapes_every_cell_and_heading() -> None:
    macros = _environment().get_template("render/macros.html").make_module()
    evil = Table(["<i>", "\"'>"], [["<script>", "&lt;"]])
    text = str(macros.table(evil, '"><img>', styles=[curve_style(0)]))
    assert not re.findall(r"<(i|script|img)\b", text)
    for escaped in ("&lt;i&gt;", "&#34;&#39;&gt;", "&lt;script&gt;", "&amp;lt;", 'aria-label="&#34;&gt;&lt;img&gt;"'):
        assert escaped in text
    assert '<svg class="swatch"' in text
