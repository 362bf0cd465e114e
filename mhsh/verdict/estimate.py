"""Means over replicates and their differences with intervals, and counts of runs that trained.

A replicate's key is its (train seed, data seed). `python -m benchmarks.verdicts.coverage` shows how
often the intervals cover the truth.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Float
from scipy.special import stdtr, stdtrit

CONFIDENCE = 0.95
# Student's interval covers a mean of normal noise. One long tail (runs that leave the plateau late)
# needs it this much wider, with 3 to 10 seeds. The p-value is that of the wide interval: Student's
# own would mark up to a quarter of pages with ten equal groups, of skewed noise against a quiet
# baseline (benchmarks/verdicts/coverage.py).
WIDENING = 1.6
MIN_SEEDS = 3  # for a verdict on a difference
_NO_SPREAD = 1e-12  # of the largest value: what rounding alone can make

INTERVAL_RULE = (
    "An interval is the 95 % confidence interval of a mean over seeds: Student's t with n - 1 degrees of freedom, "
    f"{WIDENING} times as wide, which a few seeds of skewed noise need. It covers what other seeds would change, and nothing else. "
    "One seed has no interval, and neither have seeds with equal values."
)
DIFFERENCE_RULE = (
    "A difference to the baseline is the mean of the differences seed by seed, over the seeds that both groups have. With fewer "
    "than two seeds in common it is the difference of the two means (Welch's, with as many degrees of freedom as the smaller group "
    f"alone has). Its interval is {WIDENING} times as wide as Student's, and wider still by what other validation rows may change "
    "(half of Student's interval over twenty parts of these rows), by the last digit of the losses and by what the grid of a "
    "tuned field may hide. A difference is significant if its p-value is at most 5 % after Holm's correction (1979) for all "
    "groups that are compared with the baseline. The p-value is that of the interval: 5 % where its end is zero; where all "
    f"seeds differ by the same it is that of the sign test. It takes {MIN_SEEDS} seeds."
)
TOO_FEW = f"Fewer than {MIN_SEEDS} seeds are not enough to rule out chance."

Replicate = tuple[int, int]  # train.seed and data.seed


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95 % interval, both in the unit of the values."""

    mean: float
    low: float  # nan if there is no interval
    high: float
    seeds: int  # how many values the mean is of; of the smaller group where two are not paired
    p_value: float = math.nan  # two-sided, 5 % where an end of the interval is zero; nan if the seeds cannot tell
    paired: bool = False

    @property
    def has_interval(self) -> bool:
        """Whether there were enough seeds, with a spread, for an interval."""
        return not math.isnan(self.low)

    @property
    def excludes_zero(self) -> bool:
        """Whether there is an interval and zero lies outside."""
        return self.has_interval and not self.low <= 0 <= self.high

    @property
    def is_significant(self) -> bool:
        """Whether the mean differs from zero by DIFFERENCE_RULE."""
        return self.p_value <= 1 - CONFIDENCE  # False where it is nan


def estimate(values: Iterable[float]) -> Estimate:
    """The mean of one value a seed (at least one) by INTERVAL_RULE."""
    numbers = tuple(values)
    return _estimate(*_mean_and_error(numbers, max(map(abs, numbers))), len(numbers))


def known_estimate(values: Iterable[float]) -> Estimate | None:
    """As `estimate`, of those values that are finite; None if none is."""
    finite = [value for value in values if math.isfinite(value)]
    return estimate(finite) if finite else None


def half_interval(seeds: int) -> float | None:
    """What the deviation of so many values is multiplied with for half of the interval of their
    mean, by INTERVAL_RULE; None if they are too few.
    """
    return None if seeds < 2 else WIDENING * _quantile(seeds - 1) / math.sqrt(seeds)


def sampling_half(parts: Float[np.ndarray, " parts"]) -> float:
    """Half of Student's interval of a mean over equal parts of a sample; 0 of a single part."""
    return float(_quantile(len(parts) - 1) * parts.std(ddof=1) / math.sqrt(len(parts))) if len(parts) > 1 else 0.0


def difference(
    values: Mapping[Replicate, float],
    baseline: Mapping[Replicate, float],
    *,
    resolution: float = 0.0,
    hidden: tuple[float, float] = (0.0, 0.0),
) -> Estimate:
    """How much larger the mean of `values` is than that of `baseline`, by DIFFERENCE_RULE.

    Args:
      values: one finite value a replicate.
      baseline: the same.
      resolution: the interval is wider by this on both sides, and no smaller difference is
        significant; in the unit of the values.
      hidden: how much lower `values` and `baseline` may be where they are tuned on a finer grid:
        `hidden_upper` of the two optima.
    """
    slack = (hidden[0] + resolution, hidden[1] + resolution)
    scale = max(map(abs, (*values.values(), *baseline.values())))
    if len(common := values.keys() & baseline.keys()) > 1:
        mean, error = _mean_and_error([values[key] - baseline[key] for key in common], scale)
        found = _estimate(mean, error, len(common), slack, paired=True)
        # Equal differences are evidence, but of seeds that change nothing.
        spread = all(len({group[key] for key in common}) > 1 for group in (values, baseline))
        if found.has_interval or not spread or len(common) < MIN_SEEDS or -slack[1] <= mean <= slack[0]:
            return found
        return dataclasses.replace(found, p_value=0.5 ** (len(common) - 1))
    (ours, our_error), (theirs, their_error) = (_mean_and_error(tuple(group.values()), scale) for group in (values, baseline))
    # Welch's own degrees of freedom cover too seldom where the smaller group has the wider spread.
    return _estimate(ours - theirs, math.hypot(our_error, their_error), min(len(values), len(baseline)), slack)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values adjusted for their number (Holm 1979); nan stays nan and is not counted."""
    adjusted, largest = list(p_values), 0.0
    known = sorted((index for index, each in enumerate(p_values) if not math.isnan(each)), key=lambda index: p_values[index])
    for rank, index in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def wilson(count: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a share, `count` of `total` > 0 (Wilson 1927)."""
    z_squared = 1.959963984540054**2
    middle = (count + z_squared / 2) / (total + z_squared)
    half = math.sqrt(z_squared * (count * (total - count) / total + z_squared / 4)) / (total + z_squared)
    return max(0.0, middle - half), min(1.0, middle + half)


def fisher(count: int, total: int, baseline_count: int, baseline_total: int) -> float:
    """The two-sided p-value of Fisher's exact test: are the two shares equal? Tables with the same
    margins count if they are as improbable as this one.
    """
    both = count + baseline_count
    fewest = max(0, both - baseline_total)
    ways = [math.comb(total, ours) * math.comb(baseline_total, both - ours) for ours in range(fewest, min(both, total) + 1)]
    return sum(each for each in ways if each <= ways[count - fewest]) / sum(ways)


def _mean_and_error(values: Sequence[float], scale: float) -> tuple[float, float]:
    """The mean and its standard error, which is nan without a spread."""
    mean = math.fsum(values) / len(values)
    if max(values) - min(values) <= _NO_SPREAD * scale:
        return mean, math.nan
    return mean, math.sqrt(math.fsum((each - mean) ** 2 for each in values) / (len(values) - 1) / len(values))


def _estimate(mean: float, error: float, seeds: int, slack: tuple[float, float] = (0.0, 0.0), paired: bool = False) -> Estimate:
    """The Estimate that may be too high by slack[0] and too low by slack[1]."""
    if math.isnan(error):
        return Estimate(mean, math.nan, math.nan, seeds, paired=paired)
    half = WIDENING * _quantile(seeds - 1) * error
    nearest = max(0.0, mean - slack[0], -mean - slack[1])  # to zero
    p_value = 2 * float(stdtr(seeds - 1, -nearest / (WIDENING * error))) if seeds >= MIN_SEEDS else math.nan
    return Estimate(mean, mean - half - slack[0], mean + half + slack[1], seeds, p_value, paired)


@functools.cache
def _quantile(freedom: int) -> float:
    return float(stdtrit(freedom, 0.5 + CONFIDENCE / 2))
