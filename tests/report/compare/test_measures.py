"""Tests of the results by group: values, intervals and differences, by hand-computed cases."""

from __future__ import annotations

import pytest

from mhsh.report.compare.comparison import Comparison, compare
from mhsh.report.compare.measures import LEVEL, LOWER, MeasureCell, measure_rows
from mhsh.verdict.runs import load_runs


def cells(comparison: Comparison, what: str) -> tuple[MeasureCell, ...]:
    (row,) = (row for row in measure_rows(comparison) if row.name == what)
    return row.cells


def test_a_mean_its_interval_and_the_paired_difference(two_groups: Comparison) -> None:
    shallow, deep = cells(two_groups, "final validation loss")
    # 2.50, 2.51, 2.52: mean 2.51; t(2) = 4.3027, times 0.01 / sqrt(3), is 0.0248.
    assert shallow == MeasureCell("2.510", "2.485 to 2.535", "", "", lowest=False)
    assert (deep.number, deep.spread, deep.lowest) == ("2.410", "2.385 to 2.435", True)
    assert deep.change.startswith("\u22120.100 (")  # seed by seed the same but for rounding
    assert deep.sign == LOWER


def test_every_axis_has_its_target_and_its_mean(two_groups: Comparison) -> None:
    assert [row.name for row in measure_rows(two_groups)] == [
        "final validation loss",
        "lowest validation loss",
        "steps to validation loss 2.520",
        "tokens to validation loss 2.520",
        "FLOPs to validation loss 2.520",
        "device seconds to validation loss 2.520",
        "mean validation loss by steps, 10 to 30",
        "mean validation loss by tokens, 5,120 to 15,360",
        "mean validation loss by FLOPs, 10.0G to 30.0G",
        "mean validation loss by device seconds, 1.0 s to 3.0 s",
    ]
    assert all(len(row.cells) == 2 for row in measure_rows(two_groups))


def test_one_seed_has_values_and_no_interval(make_run) -> None:
    paths = [make_run("a", [3.0] * 20, [3.0, 2.0]), make_run("b", [3.0] * 20, [3.0, 2.5], model={"residual": "pre_ln"})]
    comparison = compare(load_runs(paths))
    one, other = cells(comparison, "final validation loss")
    assert (one.number, one.spread, one.lowest) == ("2.000", "", True)
    assert (other.number, other.change, other.sign) == ("2.500", "+0.500", "")
    # From 3.0 at step 10 to 2.0 at step 20 the curve is at 2.5 in the middle.
    one, other = cells(comparison, "steps to validation loss 2.500")
    assert [(cell.number, cell.spread) for cell in (one, other)] == [("15", "10 to 20"), ("20", "10 to 20")]
    assert (other.change, other.sign) == ("+5", LEVEL)  # not beyond the spacing of the evaluations
    assert [cell.number for cell in cells(comparison, "mean validation loss by steps, 10 to 20")] == ["2.500", "2.750"]


@pytest.mark.parametrize(("loss", "lowest"), [(2.0, False), (1.5, True)])
def test_equal_values_have_no_lowest(make_run, loss: float, lowest: bool) -> None:
    paths = [make_run("a", [3.0], [loss]), make_run("b", [3.0], [2.0], model={"residual": "pre_ln"})]
    assert cells(compare(load_runs(paths)), "final validation loss")[0].lowest == lowest


def test_what_a_run_does_not_have_is_said_in_words(make_run) -> None:
    nan = float("nan")
    paths = [make_run(f"a {seed}", [3.0] * 20, [3.0, nan if seed else 2.0], training={"seed": seed}) for seed in range(2)]
    paths.append(make_run("b", [3.0] * 20, [3.0, nan], model={"residual": "pre_ln"}))
    some, none = cells(compare(load_runs(paths)), "final validation loss")
    assert (some.number, none.number, none.change) == ("in 1 of 2 runs only", "not finite", "")
    assert cells(compare(load_runs(paths)), "steps to validation loss 2.000")[1].number == "not reached"


def test_a_difference_that_could_be_chance_is_not_significant(make_run) -> None:
    finals = {"a": (2.0, 2.2), "b": (2.2, 2.1)}
    paths = [
        make_run(f"{name} {seed}", [3.0], [final], training={"seed": seed}, model={"residual": "pre_ln"} if name == "b" else {})
        for name, losses in finals.items()
        for seed, final in enumerate(losses)
    ]
    # Differences +0.2 and -0.1: mean 0.05, t(1) = 12.706 times 0.15.
    _, other = cells(compare(load_runs(paths)), "final validation loss")
    assert (other.change, other.sign) == ("+0.050 (\u22121.856 to +1.956)", LEVEL)
