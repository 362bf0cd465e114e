"""Tests of curves made ready to draw: spikes and gaps stay, the rest is what plain loops give."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from mhsh.report.curves import (
    MOST_POINTS,
    SMOOTHING_MOST,
    describe_metrics,
    difference_lines,
    drawn_curve,
    group_lines,
    most_points,
    round_digits,
    smooth,
    smoothing_rows,
    thin,
)
from mhsh.report.report import CurveGroup, CurveRun, Curves, DrawnCurve
from tests.report.reports import half_intervals, planted_report


def curve(steps: list[float], losses: list[float]) -> DrawnCurve:
    step = np.array(steps)
    return drawn_curve({"step": step, "tokens": 512 * step}, {"loss": np.array(losses)}, 5000)


def curves_of(*runs: DrawnCurve, groups: tuple[CurveGroup, ...]) -> Curves:
    return Curves(
        runs=tuple(CurveRun(f"run {place}", {"validation": run}) for place, run in enumerate(runs)),
        groups=groups,
        baseline="a",
        axes={"step": "steps", "tokens": "tokens"},
        metrics=describe_metrics([]),
        splits={"validation": "validation"},
        half_intervals=half_intervals(len(runs)),
    )


def test_a_difference_is_that_of_the_pairs_at_the_steps_that_both_logged() -> None:
    runs = (
        curve([10, 20, 30], [5, 4, 3]),
        curve([10, 20, 30], [5.1, 4.2, 3.0]),
        curve([20, 25, 30], [4.5, 9.0, 3.3]),
        curve([20, 30], [4.4, 3.5]),
    )
    groups = (CurveGroup("a", (0, 1)), CurveGroup("b", (2, 3), pairs=((2, 0), (3, 1))))
    (line,) = difference_lines(curves_of(*runs, groups=groups), 1, "validation")
    each = np.array([[4.5 - 4, 3.3 - 3], [4.4 - 4.2, 3.5 - 3.0]])  # not at 25: the baseline has nothing there
    np.testing.assert_array_equal(line.x, [20, 30])
    np.testing.assert_allclose(line.y, each.mean(axis=0))
    np.testing.assert_allclose(line.high - line.y, 12.706204736 * np.abs(each[0] - each[1]) / 2)
    assert difference_lines(curves_of(*runs, groups=groups), 0, "validation") == []


def test_a_group_of_two_kinds_of_run_has_no_mean() -> None:
    runs = (curve([10, 20], [5, 2]), curve([10, 20], [5, 4.9]))
    mixed = CurveGroup("a", (0, 1), averaged=False)
    lines = group_lines(curves_of(*runs, groups=(mixed,)), 0, "validation")
    assert [line.y.tolist() for line in lines] == [[5, 2], [5, 4.9]] and np.isnan(lines[0].low).all()
    (mean,) = group_lines(curves_of(*runs, groups=(dataclasses.replace(mixed, averaged=True),)), 0, "validation")
    assert mean.y.tolist() == [5, 3.45]


def test_a_long_curve_keeps_its_spike_its_gap_and_its_end() -> None:
    loss = np.linspace(3, 2, 20_000)
    loss[7_777], loss[12_345] = 50, np.nan
    made = drawn_curve({"step": np.arange(1.0, 20_001)}, {"loss": loss, "accuracy": loss / 10}, 600)
    assert len(made.rows.y["loss"]) <= 600
    assert 50 in made.rows.y["loss"] and None in made.rows.y["loss"] and made.rows.y["loss"][-1] == 2
    assert made.even is not None and len(made.even.y["loss"]) <= 302 and len(made.even.y["accuracy"]) == len(made.even.y["loss"])
    assert made.window == 100


def test_an_axis_in_proportion_to_steps_is_a_factor() -> None:
    assert curve([10, 20], [3, 2]).rows.x["tokens"] == 512
    assert curve([], []).rows.x == {"step": (), "tokens": ()}


@pytest.mark.parametrize("value", [0.0, 1.0, -2.5, 123456.789, 1e-300, 1.7e308, math.pi * 1e17, 0.00123456789])
def test_rounding_keeps_six_digits(value: float) -> None:
    assert round_digits(np.array([value, math.nan, math.inf]), 6) == (pytest.approx(value, rel=5e-6), None, None)


def test_training_is_smoothed_and_validation_is_not() -> None:
    curves = planted_report(rows=200).curves
    assert curves is not None
    (line,) = group_lines(curves, 0, "train")
    raw = np.array([curves.runs[run].curves["train"].rows.y["loss"] for run in (0, 1, 2)], dtype=float).mean(axis=0)
    assert line.y[100] == pytest.approx(raw[97:101].mean())
    (line,) = group_lines(curves, 0, "validation")
    assert line.y[0] == pytest.approx(2 + 3 / 10 + 0.01, abs=1e-5)


@pytest.mark.parametrize("most", [5, 9, 700, 2500])
def test_thinning_keeps_the_lowest_the_highest_and_each_gap(most: int) -> None:
    rng = np.random.default_rng(most)
    loss = rng.normal(size=7777).round(1)  # with equal values
    loss[rng.random(7777) < 0.01] = math.nan
    loss[3000:4500] = math.nan
    kept = thin(loss, most)
    assert len(kept) <= most and (np.diff(kept) > 0).all() and kept[0] == 0 and kept[-1] == 7776
    for start, end in itertools.pairwise(np.linspace(0, 7777, max(1, (most - 2) // 3) + 1).astype(int)):
        here, own = loss[start:end], loss[kept[(kept >= start) & (kept < end)]]
        assert np.isnan(own).any() == np.isnan(here).any()
        if not np.isnan(here).all():
            assert (np.nanmin(own), np.nanmax(own)) == (np.nanmin(here), np.nanmax(here))
    assert thin(loss[:most], most).tolist() == list(range(most))
    assert len(thin(np.full(8000, math.nan), most)) <= most


def test_many_curves_get_fewer_points_each() -> None:
    assert [most_points(curves) for curves in (0, 1, 8, 40, 1000)] == [MOST_POINTS, MOST_POINTS, 5000, 1000, 600]


def test_smoothing_by_hand() -> None:
    loss = np.arange(100.0)
    assert smoothing_rows(100) == 2
    assert smooth(loss).tolist() == [0.0, *(i - 0.5 for i in range(1, 100))]
    assert smooth(loss[:40]).tolist() == loss[:40].tolist()
    assert smoothing_rows(1_000_000) == SMOOTHING_MOST


def test_smoothing_never_bridges_a_gap() -> None:
    loss = np.ones(100)
    loss[50] = math.nan
    assert np.flatnonzero(np.isnan(smooth(loss))).tolist() == [50, 51]
