"""Means over seeds with Student-t intervals, and the differences of two means."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import stdtr, stdtrit

CONFIDENCE = 0.95

INTERVAL_RULE = (
    "An interval is the 95 % confidence interval of a mean over seeds, by Student's t with n - 1 degrees of freedom. It covers "
    "what another seed would change, and nothing else. One seed has no interval."
)
DIFFERENCE_RULE = (
    "A difference to the baseline is paired if both groups have the same seeds: its interval is that of the mean of the "
    "differences seed by seed. Else it is Welch's with as many degrees of freedom as the smaller group alone has, which few seeds "
    "of unequal spread need; it takes two seeds in each group. Intervals are not widened for the number of groups, but a "
    "difference is significant only by Holm's correction (1979) for all groups that are compared with the same one."
)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95 % interval, both in the unit of the values."""

    mean: float
    low: float  # nan if there is no interval
    high: float
    seeds: int  # how many values the mean is of
    p_value: float = math.nan  # two-sided, of a mean of zero; after `holm` adjusted; nan if there is no interval

    @property
    def has_interval(self) -> bool:
        """Whether there were enough seeds for an interval."""
        return math.isfinite(self.low)

    @property
    def excludes_zero(self) -> bool:
        """Whether there is an interval and zero lies outside."""
        return self.has_interval and not self.low <= 0 <= self.high

    @property
    def is_significant(self) -> bool:
        """Whether the mean differs from zero at the 5 % level."""
        return self.p_value <= 1 - CONFIDENCE  # False where it is nan


def mean_band(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, low and high over axis 0 (the seeds) by INTERVAL_RULE. A column with a nan is nan."""
    seeds = len(values)
    mean = values.mean(axis=0)
    if seeds < 2:
        return mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    half = _quantile(seeds - 1) * values.std(axis=0, ddof=1) / math.sqrt(seeds)
    return mean, mean - half, mean + half


def estimate(values: Sequence[float]) -> Estimate:
    """The Estimate of one value a seed (at least one)."""
    numbers = np.array(values, dtype=np.float64)
    if len(numbers) < 2:
        return Estimate(float(numbers.mean()), math.nan, math.nan, len(numbers))
    return _student(float(numbers.mean()), float(numbers.std(ddof=1)) / math.sqrt(len(numbers)), len(numbers))


def holm(differences: Sequence[Estimate | None]) -> list[Estimate | None]:
    """The differences with p-values adjusted for their number (Holm 1979); those without a p-value
    are not counted.
    """
    known = {index: each for index, each in enumerate(differences) if each is not None and not math.isnan(each.p_value)}
    adjusted, largest = list(differences), 0.0
    for place, index in enumerate(sorted(known, key=lambda index: known[index].p_value)):
        largest = max(largest, min(1.0, (len(known) - place) * known[index].p_value))
        adjusted[index] = dataclasses.replace(known[index], p_value=largest)
    return adjusted


def difference(values: Mapping[int, float], baseline: Mapping[int, float]) -> Estimate:
    """How much larger the mean of `values` is than that of `baseline`, both by seed, by
    DIFFERENCE_RULE.

    `seeds` is that of the smaller group.
    """
    if values.keys() == baseline.keys():
        return estimate([values[seed] - baseline[seed] for seed in values])
    ours, theirs = (np.array(list(group.values()), dtype=np.float64) for group in (values, baseline))
    mean = float(ours.mean() - theirs.mean())
    smaller = min(len(ours), len(theirs))
    if smaller < 2:
        return Estimate(mean, math.nan, math.nan, smaller)
    error = math.sqrt(sum(group.var(ddof=1) / len(group) for group in (ours, theirs)))
    # Welch's own degrees of freedom cover too seldom where few seeds have the wider spread
    # (tests/report/test_calibration.py).
    return _student(mean, error, smaller)


def _student(mean: float, error: float, seeds: int) -> Estimate:
    """The Estimate of a mean with this standard error, from `seeds` - 1 degrees of freedom."""
    half = _quantile(seeds - 1) * error
    p_value = 2 * float(stdtr(seeds - 1, -abs(mean) / error)) if error else float(mean == 0)
    return Estimate(mean, mean - half, mean + half, seeds, p_value)


def _quantile(freedom: int) -> float:
    return float(stdtrit(freedom, 0.5 + CONFIDENCE / 2))
