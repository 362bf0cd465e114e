"""Means over replicates and their differences with intervals, and counts of runs that trained.

A replicate's key is its (train seed, data seed). `python -m benchmarks.verdicts.coverage` shows how
often the intervals cover the truth.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri, stdtrit

CONFIDENCE = 0.95
MIN_SEEDS = 3  # for a verdict on a difference
# Chosen by simulation (benchmarks/verdicts/pages.py): the least widths with which at most 5 % of
# pages mark an equal group, whatever the noise.
WIDENING = 1.6  # of Student's interval where nothing but its own seeds says how wide it is: one long tail needs that
POOLED_WIDENING = 1.14  # of the interval by the typical spread of a section's groups
MEDIANS = 1.2  # that the typical spread is at most
OWN_SHARE = 0.8  # of a group's own quantile in that by which its own spread is judged; the rest is the other groups'
_NORMAL = float(ndtri(0.5 + CONFIDENCE / 2))
_NO_SPREAD = 1e-12  # of the largest value: what rounding alone can make

INTERVAL_RULE = (
    "An interval is the 95 % confidence interval of a mean over seeds: Student's t with n - 1 degrees of freedom, "
    f"{WIDENING} times as wide, which a few seeds of skewed noise need. It covers what other seeds would change, and nothing else. "
    "One seed has no interval, and neither have seeds with equal values."
)
DIFFERENCE_RULE = (
    "A difference to the baseline is the mean of the differences seed by seed, over the seeds that both groups have; with fewer "
    "than two in common, that of the two means. The intervals of a page's tested differences hold together with 95 % (Bonferroni), "
    "and a difference is significant where its interval leaves out zero. The spread of the seeds' differences is typical where it "
    f"is the mean of that of the section's groups, or {MEDIANS} times their median if that is less. Half of an interval is the "
    f"wider of two. The first is {POOLED_WIDENING} times Student's by the typical spread, with the degrees of freedom of the other "
    "groups. The second is the group's own error, times the ratio of its spread to the typical one, times a quantile of which "
    f"{OWN_SHARE} is Student's with the group's own degrees of freedom and {1 - OWN_SHARE:.1f} that of the other groups; it is "
    f"at most {WIDENING} times Student's by the group's own spread; without another group an interval is that. "
    "Added in quadrature is what other validation rows may change (by parts "
    "of them) and what the grid of a tuned field may hide. Where all seeds differ by the same, the test is that of signs. It "
    f"takes {MIN_SEEDS} seeds."
)
TOO_FEW = f"Fewer than {MIN_SEEDS} seeds are not enough to rule out chance."

Replicate = tuple[int, int]  # train.seed and data.seed


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95 % interval, both in the unit of the values."""

    mean: float
    low: float  # nan: it has no interval
    high: float
    seeds: int  # how many values the mean is of; of the smaller group where two are not paired
    p_value: float = math.nan  # two-sided, of all tests of the page: 5 % where an end of the interval is zero; nan: cannot tell
    paired: bool = False
    error: float = math.nan  # the standard error of the mean over the seeds; nan without a spread
    centre: float = math.nan  # of the interval of a difference: the mean, moved by what the grid of a tuned field may hide

    @property
    def has_interval(self) -> bool:
        """Whether there were enough seeds, with a spread, for an interval."""
        return not math.isnan(self.low)

    @property
    def has_bound(self) -> bool:
        """Whether one end of the interval at least is finite."""
        return math.isfinite(self.low) or math.isfinite(self.high)

    @property
    def is_moved(self) -> bool:
        """Whether the mean lies in an outer quarter of its interval, which a grid has moved."""
        return abs(self.centre - self.mean) > (self.high - self.low) / 4  # False where one of them is nan or infinite

    @property
    def is_significant(self) -> bool:
        """Whether the mean differs from zero by DIFFERENCE_RULE."""
        return self.p_value <= 1 - CONFIDENCE  # False where it is nan


class Doubt(NamedTuple):
    """The part of a difference's uncertainty that more seeds do not change, in its unit."""

    shift: float = 0.0  # how much lower it is by what the grids of a tuned field hide
    error: float = 0.0  # of that and of the validation rows, a standard error; inf: not known
    resolution: float = 0.0  # no smaller difference is one
    open_below: bool = False  # whether it may be lower by any amount, as a best rate is at an edge
    open_above: bool = False

    def subtract(self, other: Doubt) -> Doubt:
        """The doubt of a difference with this doubt minus a difference with the other doubt."""
        return Doubt(
            self.shift - other.shift,
            math.hypot(self.error, other.error),
            max(self.resolution, other.resolution),
            self.open_below or other.open_above,
            self.open_above or other.open_below,
        )


class Spread(NamedTuple):
    """The spread that is typical of the groups beside one."""

    typical: float = 0.0  # a deviation of the seeds' differences; 0: nothing is known
    freedom: int = 0


_ALONE, _NO_DOUBT = Spread(), Doubt()


def estimate(values: Iterable[float]) -> Estimate:
    """The mean of one value a seed (at least one) by INTERVAL_RULE."""
    numbers = tuple(values)
    mean, error = _mean_and_error(numbers, max(map(abs, numbers)))
    half_width = math.nan if math.isnan(error) else WIDENING * _quantile(len(numbers) - 1) * error
    return Estimate(mean, mean - half_width, mean + half_width, len(numbers), error=error)


def estimate_finite(values: Iterable[float]) -> Estimate | None:
    """The `estimate` of those values that are finite; None if none is."""
    finite = [value for value in values if math.isfinite(value)]
    return estimate(finite) if finite else None


def half_width_factor(seeds: int) -> float | None:
    """The factor that makes the deviation of so many values half of the width of their mean's
    interval, by INTERVAL_RULE; None if they are too few.
    """
    return None if seeds < 2 else WIDENING * _quantile(seeds - 1) / math.sqrt(seeds)


def difference(values: Mapping[Replicate, float], baseline: Mapping[Replicate, float]) -> Estimate:
    """How much larger the mean of `values` is than that of `baseline`, by one finite value a
    replicate and DIFFERENCE_RULE, as the only test of its page and without doubts.
    """
    scale = max(map(abs, (*values.values(), *baseline.values())))
    if len(common := values.keys() & baseline.keys()) > 1:
        mean, error = _mean_and_error([values[key] - baseline[key] for key in common], scale)
        # Equal differences are evidence, but of seeds that change nothing.
        spread = all(len({group[key] for key in common}) > 1 for group in (values, baseline))
        signs = 0.5 ** (len(common) - 1) if math.isnan(error) and spread and len(common) >= MIN_SEEDS else math.nan
        found = Estimate(mean, math.nan, math.nan, len(common), signs, paired=True, error=error)
    else:
        (ours, one), (theirs, other) = (_mean_and_error(tuple(group.values()), scale) for group in (values, baseline))
        # Welch's own degrees of freedom cover too seldom if the smaller group has the wider spread.
        found = Estimate(ours - theirs, math.nan, math.nan, min(len(values), len(baseline)), error=math.hypot(one, other))
    return judge(found)


def spreads(differences: Sequence[Estimate]) -> list[Spread]:
    """For each difference of a section, what the others say of its spread."""
    known = [each for each in differences if each.seeds > 1 and (each.paired or not math.isnan(each.error))]
    if len(known) < 2:
        return [_ALONE] * len(differences)
    deviations = [0.0 if math.isnan(each.error) else each.error * math.sqrt(each.seeds) for each in known]
    typical = min(statistics.fmean(deviations), MEDIANS * math.sqrt(statistics.median(each**2 for each in deviations)))
    freedom = sum(each.seeds - 1 for each in known)
    return [Spread(typical, freedom - max(each.seeds - 1, 0) * (each in known)) for each in differences]


def judge(difference: Estimate, spread: Spread = _ALONE, doubt: Doubt = _NO_DOUBT, tests: int = 1) -> Estimate:
    """A difference with interval and p-value by DIFFERENCE_RULE, as one of so many tests."""
    typical = spread.typical / math.sqrt(difference.seeds)  # of a mean
    has_spread = not math.isnan(difference.error)
    mean = difference.mean - doubt.shift
    is_open = math.isinf(doubt.error) or mean * difference.mean <= 0 or (doubt.open_below if mean > 0 else doubt.open_above)
    if not (has_spread or (typical and difference.paired)):
        is_within = is_open or abs(mean) <= doubt.resolution + _NORMAL * doubt.error
        p_value = math.nan if is_within else min(tests * difference.p_value, 1.0)  # nan stays nan
        return dataclasses.replace(difference, p_value=p_value)
    error = difference.error if has_spread else 0.0

    def half_width(level: float) -> float:
        """Half of the width of the interval that leaves out the truth so often."""
        quantile = _quantile(difference.seeds - 1, level)
        by_seeds = WIDENING * quantile * error
        if typical:
            pooled = _quantile(spread.freedom, level)
            by_both = (OWN_SHARE * quantile + (1 - OWN_SHARE) * pooled) * error * (error / typical)
            by_seeds = max(min(by_both, by_seeds), POOLED_WIDENING * pooled * typical)
        return math.hypot(by_seeds, -float(ndtri(level / 2)) * doubt.error) + doubt.resolution

    wide = half_width((1 - CONFIDENCE) / tests)
    # The mean at the rates that were tried is not ruled out by what lies between them.
    low = -math.inf if doubt.open_below else min(mean - wide, difference.mean)
    high = math.inf if doubt.open_above else max(mean + wide, difference.mean)
    p_value = math.nan if difference.seeds < MIN_SEEDS else 1.0 if is_open else min(1.0, tests * _level(half_width, abs(mean)))
    return dataclasses.replace(difference, low=low, high=high, p_value=p_value, centre=mean)


def normal_error(error: float, freedom: int) -> float:
    """The normal error with the 95 % interval that Student's with this error has."""
    return error * _quantile(freedom) / _NORMAL


def _level(half_width: Callable[[float], float], nearest: float) -> float:
    """The level, from 1e-12 to 1, at which half of an interval is as wide as `nearest`."""
    low, high = math.log(1e-12), 0.0
    if half_width(1.0) >= nearest:
        return 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if half_width(math.exp(middle)) > nearest else (low, middle)
    return math.exp(high)


def rank_sum(values: Sequence[float], baseline: Sequence[float]) -> float:
    """The two-sided p-value of Wilcoxon's exact rank test: is neither group above the other? Equal
    values have their mean rank, infinite ones the last, or the first.
    """
    pooled = np.array([*values, *baseline])
    twice = (2 * (pooled[:, None] > pooled).sum(axis=1) + (pooled[:, None] == pooled).sum(axis=1) + 1).tolist()  # each rank
    count, total = len(values), sum(twice)
    ways = np.zeros((count + 1, total + 1))  # to choose so many of them with that sum
    ways[0, 0] = 1
    for rank in twice:
        ways[1:, rank:] += ways[:-1, :-rank].copy()
    distance = abs(np.arange(total + 1) - count * total / len(pooled))
    return float(ways[count, distance >= distance[sum(twice[:count])] - 1e-9].sum() / ways[count].sum())


def _mean_and_error(values: Sequence[float], scale: float) -> tuple[float, float]:
    """The mean and its standard error, which is nan without a spread."""
    mean = math.fsum(values) / len(values)
    if max(values) - min(values) <= _NO_SPREAD * scale:
        return mean, math.nan
    return mean, math.sqrt(math.fsum((each - mean) ** 2 for each in values) / (len(values) - 1) / len(values))


def _quantile(freedom: int, level: float = 1 - CONFIDENCE) -> float:
    """The quantile of Student's t that is exceeded so often, to both sides together."""
    return float(stdtrit(freedom, 1 - level / 2))
