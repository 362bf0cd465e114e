"""Tests of the terminal table: nothing is cut off, whatever the width and whatever the names
hold.
"""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from mhsh.report.compare.comparison import Comparison, compare
from mhsh.report.compare.table import print_comparison
from mhsh.report.runs.loading import load_runs


def printed(comparison: Comparison, width: int) -> str:
    stream = io.StringIO()
    print_comparison(comparison, Console(file=stream, width=width, highlight=False))
    return stream.getvalue()


@pytest.mark.parametrize("width", [30, 60, 80, 100, 160])
def test_every_number_is_there_at_every_width(four_runs: Comparison, width: int) -> None:
    text = printed(four_runs, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    words = " ".join(text.split())
    for number in ("2.250 (30)", "15,360", "30.0G", "3.0 s", "2.320", "150k", "16L x 1H"):
        assert number in words


def test_wide_terminals_get_one_line_a_run(four_runs: Comparison) -> None:
    line = next(line for line in printed(four_runs, 160).splitlines() if line.startswith("stuck ") and "16L" in line)
    assert line.split()[:6] == ["stuck", "16L", "x", "1H", "admin", "2.990"]
    assert "on the unigram plateau" in line
    assert "15,360" in line


def test_names_are_not_read_as_markup(make_run) -> None:
    text = printed(compare(load_runs([make_run("[red]x", [2.0]), make_run("[bold]", [2.1])])), 160)
    assert "[red]x" in text
    assert "[bold]" in text
    assert "\x1b" not in text


def test_a_long_name_is_folded_not_cut(make_run) -> None:
    name = "n" * 100
    text = printed(compare(load_runs([make_run(name, [2.0]), make_run("b", [2.1])])), 60)
    assert name in "".join(text.split())
