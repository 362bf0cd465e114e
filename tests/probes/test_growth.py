"""Fitted growth against laws that are known, and against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import linregress, t

from mhsh.probes.growth import growth, mean_interval

N = np.array([12, 24, 48, 96, 192, 384, 768])
LAWS = {"O(1)": lambda n: np.full(len(n), 3.0), "O(log n)": lambda n: 0.2 * np.log(n), "O(n)": lambda n: 5.0 * n}


@pytest.mark.parametrize(("law", "exponent"), [("O(1)", 0), ("O(log n)", 0.23), ("O(n)", 1)])
def test_each_law_is_found_and_fits_exactly(law, exponent):
    found = growth(N, LAWS[law](N))
    assert found.law == law and found.deviations[law] == pytest.approx(0, abs=1e-12)
    assert all(deviation > 0.1 for name, deviation in found.deviations.items() if name != law)
    assert found.exponent == pytest.approx(exponent, abs=0.005)
    if law != "O(log n)":
        assert (found.low, found.high) == pytest.approx((exponent, exponent), abs=1e-9)


def test_the_interval_is_that_of_the_slope_and_covers_it():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        y = N**0.7 * np.exp(0.2 * rng.standard_normal(len(N)))
        found = growth(N, y)
        hits += found.low < 0.7 < found.high
    assert 0.92 < hits / 400 < 0.98
    line = linregress(np.log(N), np.log(y))
    assert found.high - found.exponent == pytest.approx(t.ppf(0.975, 5) * line.stderr)


def test_what_cannot_be_fitted():
    assert growth(N, np.zeros(7)) is None
    assert growth(N[:2], N[:2]) is None
    with_gaps = np.where(N == 48, np.nan, 1.0 * N)
    assert growth(N, with_gaps).exponent == pytest.approx(1)


def test_the_interval_of_a_mean():
    assert mean_interval([1.0, 2.0, 6.0]) == pytest.approx((3, 3 - 4.3027 * 1.5275, 3 + 4.3027 * 1.5275), rel=1e-4)
    assert mean_interval([2.0]) == (2.0, -np.inf, np.inf)
