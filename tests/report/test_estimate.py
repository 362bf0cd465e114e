"""Tests of means and intervals over seeds, against numbers worked out by hand and against scipy's
own tests.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mhsh.report.estimate import CONFIDENCE, Estimate, difference, estimate, holm, mean_band


def test_an_interval_by_hand() -> None:
    # Standard deviation 1, so half the interval is t(0.975, 2) / sqrt(3) = 4.30265 / 1.73205.
    found = estimate([1.0, 2.0, 3.0])
    assert (found.mean, found.seeds) == (2.0, 3)
    assert (found.low, found.high) == pytest.approx((2 - 2.484138, 2 + 2.484138), abs=1e-6)


def test_one_seed_has_a_mean_and_no_interval() -> None:
    found = estimate([2.5])
    assert found.mean == 2.5
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert not found.has_interval
    assert not found.excludes_zero


def test_a_band_has_a_gap_where_one_seed_has() -> None:
    mean, low, high = mean_band(np.array([[1.0, math.nan, 3.0], [1.0, 2.0, 5.0]]))
    assert np.isnan(mean).tolist() == np.isnan(low).tolist() == np.isnan(high).tolist() == [False, True, False]
    assert (mean[0], low[0], high[0]) == (1.0, 1.0, 1.0)


def test_equal_seeds_are_paired() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = (dict(enumerate(rng.normal(size=5).tolist())) for _ in range(2))
    found = difference(ours, dict(reversed(theirs.items())))
    expected = stats.ttest_rel(list(ours.values()), list(theirs.values())).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    # Two groups that move together differ by the same at every seed: that is sure, however far the
    # seeds are apart.
    sure = difference({0: 1.5, 1: 9.5}, {0: 1.0, 1: 9.0})
    assert (sure.mean, sure.low, sure.high) == (0.5, 0.5, 0.5)
    assert sure.excludes_zero


def test_other_seeds_are_compared_by_welch_with_the_freedom_of_the_smaller_group() -> None:
    ours, theirs = {0: 1.0, 1: 1.5, 2: 1.1}, {5: 2.0, 6: 2.9, 7: 2.2, 8: 2.4}
    found = difference(ours, theirs)
    welch = stats.ttest_ind(list(ours.values()), list(theirs.values()), equal_var=False)
    error = found.mean / welch.statistic
    assert (found.low, found.high) == pytest.approx((found.mean - 4.302653 * error, found.mean + 4.302653 * error))
    assert found.p_value == pytest.approx(2 * stats.t.sf(abs(welch.statistic), 2)) and found.p_value > welch.pvalue
    assert found.mean == pytest.approx(-1.175)
    assert found.seeds == 3


def closed_test(p_values: list[float], level: float) -> list[bool]:
    """What Holm's procedure is short for: a hypothesis falls if every set that holds it falls by
    Bonferroni.
    """
    places = range(len(p_values))
    sets = [each for size in range(1, len(p_values) + 1) for each in itertools.combinations(places, size)]
    falls = {each: min(p_values[place] for place in each) <= level / len(each) for each in sets}
    return [all(falls[each] for each in sets if place in each) for place in places]


@given(st.lists(st.one_of(st.floats(0, 0.1), st.floats(0, 1)), min_size=1, max_size=5))
def test_holm_is_the_closed_test_of_bonferroni(p_values: list[float]) -> None:
    found = holm([Estimate(1.0, 0.0, 2.0, 3, p_value) for p_value in p_values])
    assert [each is not None and each.is_significant for each in found] == closed_test(p_values, 1 - CONFIDENCE)


def test_holm_counts_only_what_was_compared() -> None:
    one = Estimate(1.0, 0.5, 1.5, 3, 0.03)
    assert holm([None, one, Estimate(1.0, math.nan, math.nan, 1)])[1] == one
    two = holm([one, None, one])
    assert two[0] is not None and not two[0].is_significant and two[0].p_value == pytest.approx(0.06)


@pytest.mark.parametrize("theirs", [{0: 2.0}, {1: 2.0}, {0: 2.0, 1: 2.0}])
def test_one_seed_in_a_group_leaves_no_error_bar(theirs: dict[int, float]) -> None:
    found = difference({0: 1.5}, theirs)
    assert found.mean == -0.5
    assert not found.has_interval


def test_seeds_without_any_spread() -> None:
    found = difference({0: 1.0, 1: 1.0}, {2: 2.0, 3: 2.0})
    assert (found.mean, found.low, found.high) == (-1.0, -1.0, -1.0)
