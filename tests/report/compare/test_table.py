"""Tests of the terminal table: a line a run, whatever the width and whatever the names hold."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from mhsh.report.compare.comparison import Comparison, compare
from mhsh.report.compare.table import print_comparison
from mhsh.verdict.runs import load_runs


def printed(comparison: Comparison, width: int) -> str:
    stream = io.StringIO()
    print_comparison(comparison, Console(file=stream, width=width, highlight=False))
    return stream.getvalue()


@pytest.mark.parametrize("width", [30, 60, 80, 160])
def test_every_run_has_a_line_that_fits(four_runs: Comparison, width: int) -> None:
    lines = printed(four_runs, width).splitlines()
    assert max(map(len, lines)) <= width
    for name, loss in {"shallow": "2.250", "stuck": "2.990", "cut": "2.900"}.items():
        (line,) = [line for line in lines if line.startswith(name) and loss in line]
        assert ("16L1H admin" in line) == (name == "stuck" and width == 160)
    assert any(line.startswith("diverged") and "not finite" in line for line in lines)


def test_lowest_first_with_cost_and_outcome(four_runs: Comparison) -> None:
    lines = printed(four_runs, 160).splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("run "))
    assert "steps to 2.900" in lines[first]
    assert [line.split() for line in lines[first + 1 : first + 5]] == [
        ["shallow", "2L8H", "admin", "1", "2.250", "baseline", "18", "3.0", "s", "trained"],
        ["cut", "2L8H", "pre_ln", "1", "2.900", "+0.650", "20", "3.0", "s", "trained,", "files", "damaged"],
        ["stuck", "16L1H", "admin", "1", "2.990", "+0.740", "not", "reached", "3.0", "s", "on", "plateau"],
        ["diverged", "2L8H", "rezero", "1", "not", "finite", "not", "reached", "3.0", "s", "diverged"],
    ]


def test_groups_have_intervals_and_marks(two_groups: Comparison) -> None:
    text = printed(two_groups, 120)
    (line,) = [line for line in text.splitlines() if line.startswith("deep \u2260")]
    assert "2.410 \u00b1 0.025" in line
    assert "\u22120.100 *" in line
    for said in ("\u00b1: 95 % interval over seeds", "*: significant", "\u2260: not comparable with the baseline"):
        assert said in " ".join(text.split())


def test_fifty_runs_fit_a_screen(fifty_runs: Comparison) -> None:
    for width in (80, 120):
        lines = printed(fifty_runs, width).splitlines()
        assert len(lines) <= 36  # of 40: the command adds the names of its files
        assert max(map(len, lines)) <= width
        shown = [line for line in lines if line.startswith("heads_per_layer-8") and "trained" in line]
        assert len(shown) >= 15
        assert f"... and {50 - len(shown)} more, in the report" in lines


def test_names_are_not_read_as_markup(make_run) -> None:
    text = printed(compare(load_runs([make_run("[red]x", [2.0]), make_run("[bold]", [2.1])])), 160)
    assert "[red]x" in text
    assert "[bold]" in text
    assert "\x1b" not in text


def test_a_long_name_loses_its_middle(make_run) -> None:
    text = printed(compare(load_runs([make_run("first" + "n" * 100 + "last", [2.0]), make_run("b", [2.1])])), 60)
    (line,) = [line for line in text.splitlines() if line.startswith("first") and "2.000" in line]
    assert "\u2026" in line
    assert "nlast " in line
