"""Medians and their intervals: against hand-computed figures, and by how often they hold the true
median.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mhsh.bench.results import CONFIDENCE, Interval, coverage, median_interval, ratios


def test_coverage_is_that_of_all_ways_to_fall_on_either_side():
    """Each value is above or below the median with probability 1/2: the 2^n cases, counted."""
    for n in range(1, 11):
        below = [sum(case) for case in itertools.product((0, 1), repeat=n)]
        for k in range(1, (n + 1) // 2 + 1):
            assert coverage(n, k) == pytest.approx(sum(k <= count <= n - k for count in below) / 2**n, abs=1e-12)


def test_estimates_by_hand():
    assert median_interval([3.0, 1.0, 2.0]) == Interval(2.0, 1.0, 3.0, 0.75)
    assert median_interval([5.0]) == Interval(5.0, 5.0, 5.0, 0.0)
    assert median_interval([4.0, 1.0, 3.0, 2.0]) == Interval(2.5, 1.0, 4.0, 0.875)
    # of nine, the second smallest and the second largest: 96.1 %
    assert median_interval([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]) == Interval(5.0, 2.0, 8.0, 1 - 20 / 512)
    with pytest.raises(ValueError, match="no values"):
        median_interval([])


@pytest.mark.parametrize("n", [6, 9, 15, 30])
def test_intervals_hold_the_true_median_as_often_as_they_say(n):
    """Of a skewed distribution, 4,000 times; within four standard deviations of the count."""
    draws = np.random.default_rng(n).exponential(size=(4_000, n))
    found = [median_interval(row.tolist()) for row in draws]
    promised = found[0].confidence
    held = np.mean([each.low <= np.log(2) <= each.high for each in found])
    assert promised >= CONFIDENCE
    assert abs(held - promised) < 4 * np.sqrt(promised * (1 - promised) / 4_000)


def test_ratios_are_of_the_same_round():
    """A machine that becomes ten times slower in the middle changes no ratio."""
    load = np.array([1.0, 1.0, 10.0, 10.0, 10.0])
    assert ratios((3 * load).tolist(), (2 * load).tolist()) == [1.5] * 5
    with pytest.raises(ValueError):
        ratios([1.0], [1.0, 2.0])


def test_an_inverse_keeps_its_order():
    assert Interval(2.0, 1.0, 4.0, 0.9).inverse() == Interval(0.5, 0.25, 1.0, 0.9)
