"""Tests of thinning and smoothing: spikes and gaps stay, and the means are those computed by
hand.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from mhsh.report.downsample import MOST_POINTS, SMOOTHING_MOST, gap_starts, most_points, smooth, smoothing_rows, thin


def test_short_curves_are_drawn_whole() -> None:
    assert thin(np.arange(10.0), most=10).tolist() == list(range(10))


@pytest.mark.parametrize("most", [5, 7, 100, 5000])
@pytest.mark.parametrize("rows", [5001, 100_000])
def test_long_curves_keep_their_spikes_gaps_and_ends(rows: int, most: int) -> None:
    loss = 3 + np.random.default_rng(0).normal(size=rows)
    loss[rows // 3], loss[rows // 2], loss[rows // 5] = 99.0, -99.0, math.nan
    kept = thin(loss, most)
    assert len(kept) <= most
    assert {0, rows // 3, rows // 2, rows - 1} <= set(kept.tolist())
    assert np.isnan(loss[kept]).any()
    assert (np.diff(kept) > 0).all()


def thin_slowly(loss: np.ndarray, most: int) -> list[int]:
    """The rule of `thin`, bucket by bucket."""
    kept = {0, len(loss) - 1}
    edges = np.linspace(0, len(loss), max(1, (most - 2) // 3) + 1).astype(int)
    for start, end in itertools.pairwise(edges):
        rows = range(start, end)
        finite = [row for row in rows if math.isfinite(loss[row])]
        kept |= {min(finite, key=lambda row: loss[row]), max(finite, key=lambda row: loss[row])} if finite else set()
        kept |= {row for row in rows if not math.isfinite(loss[row])} and {
            next(row for row in rows if not math.isfinite(loss[row]))
        }
    return sorted(kept)


@pytest.mark.parametrize("most", [5, 9, 700, 2500])
def test_thinning_is_its_rule(most: int) -> None:
    rng = np.random.default_rng(most)
    loss = rng.normal(size=7777).round(1)  # with equal values
    loss[rng.random(7777) < 0.01] = math.nan
    loss[3000:4500] = math.nan
    assert thin(loss, most).tolist() == thin_slowly(loss, most)


def test_many_curves_get_fewer_points_each() -> None:
    assert [most_points(curves) for curves in (0, 1, 8, 40, 1000)] == [MOST_POINTS, MOST_POINTS, 5000, 1000, 600]


def test_a_long_curve_that_is_nowhere_finite_can_be_thinned() -> None:
    assert np.isnan(np.full(100, math.nan)[thin(np.full(100, math.nan), 10)]).all()


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


def test_gap_starts() -> None:
    nan = math.nan
    assert gap_starts(np.array([nan, 1, nan, nan, 2, nan])).tolist() == [0, 2, 5]
    assert gap_starts(np.array([])).tolist() == []
