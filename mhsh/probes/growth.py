"""How a quantity grows with depth: the exponent of a power law, and the best of four laws."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

CONFIDENCE = 0.95

# The laws of the theory. Each has one free factor, so that the fits are comparable.
LAWS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "O(1/n)": lambda n: 1 / n,
    "O(1)": np.ones_like,
    "O(log n)": np.log,
    "O(n)": lambda n: n,
}


class Growth(NamedTuple):
    """How y grows with n. Deviations are of ln y: 0.1 is about 10 % of y."""

    exponent: float  # p of y ~ n^p
    low: float  # the ends of its interval
    high: float
    deviations: dict[str, float]  # root mean square, of y from each law times its best factor
    law: str  # the law with the smallest deviation


def growth(n: Sequence[int] | np.ndarray, y: Sequence[float] | np.ndarray) -> Growth | None:
    """The growth of positive y with n > 1, fitted in logarithms: small and large n weigh the same.
    None if fewer than three values are positive and finite.

    The exponent is the least-squares slope of ln y over ln n, with its t-interval of CONFIDENCE
    (number of values less two degrees of freedom). If no power law holds it is the mean slope over
    this range: log n from 12 to 768 has about 0.23.
    """
    depths, figures = np.asarray(n, float), np.asarray(y, float)
    usable = np.isfinite(figures) & (figures > 0)
    depths, logs = depths[usable], np.log(figures[usable])
    if len(np.unique(depths)) < 3:
        return None
    x = np.log(depths)
    exponent, intercept = np.polyfit(x, logs, 1)
    left = np.sum((logs - exponent * x - intercept) ** 2) / (len(x) - 2)
    error = math.sqrt(left / np.sum((x - x.mean()) ** 2))
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(x) - 2)) * error
    deviations = {law: float(np.std(logs - np.log(shape(depths)))) for law, shape in LAWS.items()}
    return Growth(
        float(exponent), float(exponent - half), float(exponent + half), deviations, min(deviations, key=deviations.__getitem__)
    )


def mean_interval(values: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """The mean of independent values and its t-interval of CONFIDENCE (infinite for one value)."""
    figures = np.asarray(values, float)
    mean = float(figures.mean())
    if len(figures) < 2:
        return mean, -math.inf, math.inf
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(figures) - 1) * stats.sem(figures))
    return mean, mean - half, mean + half
