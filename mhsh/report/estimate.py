"""Means over seeds with Student-t intervals, and the differences of two means."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import stdtrit

CONFIDENCE = 0.95

INTERVAL_RULE = (
    "An interval is the 95 % confidence interval of a mean over seeds, by Student's t with n - 1 degrees of freedom. It covers "
    "what another seed would change, and nothing else. One seed has no interval."
)
DIFFERENCE_RULE = (
    "A difference to the baseline is paired if both groups have the same seeds: its interval is that of the mean of the "
    "differences seed by seed. Else it is Welch's, which needs two seeds in each group. A difference is significant only if its "
    "interval excludes zero. Intervals are not widened for the number of groups."
)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95 % interval, both in the unit of the values."""

    mean: float
    low: float  # nan if there is no interval
    high: float
    seeds: int  # how many values the mean is of

    @property
    def has_interval(self) -> bool:
        """Whether there were enough seeds for an interval."""
        return math.isfinite(self.low)

    @property
    def excludes_zero(self) -> bool:
        """Whether there is an interval and zero lies outside."""
        return self.has_interval and not self.low <= 0 <= self.high


def mean_band(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, low and high over axis 0 (the seeds) by INTERVAL_RULE. A column with a nan is nan."""
    seeds = len(values)
    mean = values.mean(axis=0)
    if seeds < 2:
        return mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    half = _quantile(float(seeds - 1)) * values.std(axis=0, ddof=1) / math.sqrt(seeds)
    return mean, mean - half, mean + half


def estimate(values: Sequence[float]) -> Estimate:
    """The Estimate of one value a seed (at least one)."""
    mean, low, high = mean_band(np.array(values, dtype=np.float64)[:, None])
    return Estimate(float(mean[0]), float(low[0]), float(high[0]), len(values))


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
    parts = [group.var(ddof=1) / len(group) for group in (ours, theirs)]
    variance = sum(parts)
    if not variance:
        return Estimate(mean, mean, mean, smaller)
    # Welch 1947: the degrees of freedom of a sum of two variances that were estimated apart.
    freedom = variance**2 / sum(part**2 / (len(group) - 1) for part, group in zip(parts, (ours, theirs), strict=True))
    half = _quantile(freedom) * math.sqrt(variance)
    return Estimate(mean, mean - half, mean + half, smaller)


def _quantile(freedom: int | float) -> float:
    return float(stdtrit(freedom, 0.5 + CONFIDENCE / 2))
