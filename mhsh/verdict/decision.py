"""Decisions on a difference by a margin that was fixed beforehand, the seeds or values that would
decide it, and the mean of several differences.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence

from scipy.special import stdtr, stdtrit

from mhsh.verdict.estimate import CONFIDENCE, Doubt, Estimate, Spread, judge

LOWER, HIGHER = "lower", "higher"
EQUIVALENT, UNDECIDED = "equivalent", "undecided"
MOST_SEEDS = 100  # that are proposed

MARGIN_RULE = (
    "Against a margin a difference is lower or higher where its whole interval is beyond it, equivalent where all of it is within, "
    "and else undecided. A margin is fixed beforehand if the plans of the sweeps have it (mhsh sweep --margin). The seeds that "
    "would decide are those with which the interval would be narrow enough if mean and spread stayed; where values that were not "
    "tried leave it open, it takes these values."
)
POOLED_RULE = (
    "Differences of several sections are pooled as random effects: the variance between sections by DerSimonian and Laird (1986), "
    "the 95 % interval by Hartung and Knapp (2001), with as many degrees of freedom as there are other sections. The error of a "
    "section counts its seeds, validation rows and grids. It is post hoc unless all plans have it (mhsh sweep --pooled)."
)


@dataclasses.dataclass(frozen=True)
class Decision:
    """A difference against a margin."""

    words: str  # LOWER, HIGHER, EQUIVALENT or UNDECIDED
    margin: float
    seeds: int | None = None  # how many more a group would decide; None: decided, or it takes more than MOST_SEEDS
    values: tuple[float, ...] = ()  # of the tuned field, that would


@dataclasses.dataclass(frozen=True)
class PooledDifference:
    """A difference over sections."""

    relation: str  # what the groups have in common, as in `1 head a layer`
    sections: tuple[str, ...]
    left_out: tuple[str, ...]  # sections whose difference has no bound or no spread
    estimate: Estimate  # `seeds` counts the sections
    between: float  # the standard deviation between sections
    same_sign: int  # seeds whose difference has the sign of the mean
    pairs: int  # seeds
    planned: bool
    unfair: tuple[str, ...] = ()  # sections whose two groups are not comparable


def margin_verdict(difference: Estimate, margin: float) -> str:
    """LOWER, HIGHER, EQUIVALENT or UNDECIDED, by MARGIN_RULE and the interval of a difference."""
    if difference.low > margin:
        return HIGHER
    if difference.high < -margin:
        return LOWER
    return EQUIVALENT if -margin < difference.low and difference.high < margin else UNDECIDED


def decide(
    difference: Estimate, spread: Spread, doubt: Doubt, tests: int, margin: float, values: Callable[[float], Sequence[float]]
) -> Decision:
    """The decision on a difference that was judged with this spread and doubt, as one of `tests`.
    `values` gives the values of the tuned field to try next, by half of the width of the interval
    without what the grid hides.
    """
    words = margin_verdict(difference, margin)
    if words != UNDECIDED or not difference.has_interval:
        return Decision(words, margin)

    def is_decided(more: int) -> bool:
        seeds = difference.seeds + more
        wider = spread._replace(freedom=spread.freedom * (seeds - 1) // (difference.seeds - 1))
        error = difference.error * math.sqrt(difference.seeds / seeds)
        expected = dataclasses.replace(difference, seeds=seeds, error=error)
        return margin_verdict(judge(expected, wider, doubt, tests), margin) != UNDECIDED

    more = bisect.bisect_left(range(MOST_SEEDS + 1), True, 1, key=is_decided)
    if more <= MOST_SEEDS:
        return Decision(words, margin, more)
    without_doubt = judge(difference, spread, tests=tests)
    return Decision(words, margin, values=tuple(values((without_doubt.high - without_doubt.low) / 2)))


def is_bounded(difference: Estimate, doubt: Doubt) -> bool:
    """Whether a difference has a spread and a bound, without which it is not pooled."""
    return math.isfinite(difference.error) and math.isfinite(doubt.error) and not (doubt.open_below or doubt.open_above)


def pool(differences: Sequence[Estimate], doubts: Sequence[Doubt]) -> tuple[Estimate, float] | None:
    """The mean of differences that are bounded, by POOLED_RULE, and the standard deviation between
    them; None where they are fewer than three.
    """
    if len(differences) < 3:
        return None
    means = [each.mean - doubt.shift for each, doubt in zip(differences, doubts, strict=True)]
    errors = [math.hypot(each.error, doubt.error) for each, doubt in zip(differences, doubts, strict=True)]
    freedom = len(means) - 1
    fixed = [error**-2 for error in errors]
    level = statistics.fmean(means, fixed)
    excess = math.fsum(weight * (mean - level) ** 2 for mean, weight in zip(means, fixed, strict=True)) - freedom
    between = max(0.0, excess / (math.fsum(fixed) - math.fsum(weight**2 for weight in fixed) / math.fsum(fixed)))
    weights = [1 / (error**2 + between) for error in errors]
    mean = statistics.fmean(means, weights)
    dispersion = math.fsum(weight * (each - mean) ** 2 for each, weight in zip(means, weights, strict=True)) / freedom
    error = math.sqrt(max(1.0, dispersion) / math.fsum(weights))  # never surer than the sections themselves
    half_width = float(stdtrit(freedom, 0.5 + CONFIDENCE / 2)) * error
    p_value = 2 * float(stdtr(freedom, -abs(mean) / error))
    return Estimate(mean, mean - half_width, mean + half_width, len(means), p_value, error=error), math.sqrt(between)
