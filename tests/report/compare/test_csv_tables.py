"""Tests of curves.csv and groups.csv: every number is there in full, and no cell is one that a
spreadsheet would run.
"""

from __future__ import annotations

import csv
import io
import math

import pytest

from mhsh.report.compare.comparison import compare
from mhsh.report.compare.csv_tables import CURVE_COLUMNS, GROUP_COLUMNS, curves_table, groups_table
from mhsh.report.render.outputs import MARK
from mhsh.verdict.runs import load_runs


def rows(table: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table.decode(), newline="")))


def test_curves_hold_every_row_in_full(make_run) -> None:
    losses = [3.0, math.nan, 1 / 3]
    comparison = compare(load_runs([make_run("a", losses, [2.5], training={"seed": 7})]))
    found = rows(curves_table(comparison))
    assert [row["loss"] for row in found] == ["3.0", "", repr(1 / 3), "2.5"]
    assert list(found[2].values())[:8] == ["a", "a", "7", "train", "3.0", "1536.0", "3000000000.0", repr(0.1 * 3)]
    assert [row["split"] for row in found] == ["train"] * 3 + ["validation"]


def test_groups_hold_every_measure_with_its_interval(make_run) -> None:
    runs = [make_run(f"a-{s}", [3.0] * 20, [3.0, 2.0 + s], training={"seed": s}) for s in (0, 1)]
    other = make_run("b", [3.0] * 20, [3.5, 2.0], model={"residual": "pre_ln"})
    found = rows(groups_table(compare(load_runs([*runs, other]))))
    assert len(found) == 2 * (2 + 4 + 4)
    final = found[0]
    assert (final["group"], final["seeds"], final["measure"], final["mean"]) == ("a", "0 1", "final validation loss", "2.5")
    assert float(final["high"]) == pytest.approx(2.5 + 12.706205 / 2)
    assert (final["runs"], final["known"], final["difference"], final["baseline"]) == ("2", "2", "", "a")
    against = found[10]
    assert (against["group"], against["difference"], against["difference_low"], against["paired"]) == ("b", "-0.5", "", "no")


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", '=HYPERLINK("http://x"),"y"'])
def test_names_are_no_formulas(make_run, name: str) -> None:
    comparison = compare(load_runs([make_run(name.replace("/", "_"), [3.0], [2.0])]))
    for table in (curves_table(comparison), groups_table(comparison)):
        for row in rows(table):
            assert row["group"] == "'" + name.replace("/", "_")
            assert not any(cell.startswith(("=", "+", "@")) for cell in row.values())


def test_the_header_names_the_columns_and_carries_the_mark(make_run) -> None:
    comparison = compare(load_runs([make_run("a", [3.0])]))
    for table, columns in ((curves_table(comparison), CURVE_COLUMNS), (groups_table(comparison), GROUP_COLUMNS)):
        assert next(csv.reader(io.StringIO(table.decode()))) == [*columns, MARK]
