"""Results by group: final, best and mean losses, the cost to reach a target loss, and differences
to a baseline.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mhsh.outcome import DIVERGED, ON_PLATEAU, smoothed_final
from mhsh.report.compare.groups import Group
from mhsh.report.estimate import Estimate, difference, estimate, holm
from mhsh.report.runs.downsample import smooth
from mhsh.verdict.curves import AXES, Curve
from mhsh.verdict.runs import Run
from mhsh.verdict.summary import summarize

FINAL_NAMES = {"validation": "final validation loss", "train": "final training loss"}

MEASURE_RULE = (
    "All runs are measured on their validation curves if each run that did not diverge has one, else on their smoothed training "
    "curves. The final loss is then the last validation loss, or the final training loss as defined above."
)
TARGET_RULE = (
    "A run reaches the target between the last row above it and the first row at or below it; a run whose first row is at or below "
    "it, at most there. The number given is interpolated linearly between the two rows (not over a gap: the later one). Intervals "
    "and differences hold for every place between the rows of each run: no difference is significant that the spacing of the "
    "evaluations alone could make. Unless --target is given, the target is the highest final loss of the runs with a finite one, "
    "without those on the unigram plateau unless all are. A group in which a run does not reach it has no mean; the runs that do "
    "are counted."
)
AREA_RULE = (
    "The mean loss over a range is the area under the curve, by trapezoids, divided by the range. The range is the same for all "
    "runs with a finite final loss: from the latest first row to the earliest last row. A run with a gap in it has no mean loss."
)


@dataclasses.dataclass(frozen=True)
class Score:
    """One measure of the runs of a group."""

    each: Mapping[int, float]  # by seed; nan: the run has none (not finite, target not reached, nothing recorded)
    estimate: Estimate | None  # None unless every run has one
    difference: Estimate | None  # to the baseline; None for the baseline itself, and where either has no estimate
    paired: bool  # whether `difference` is the mean of differences seed by seed

    @property
    def known(self) -> int:
        """How many runs have a value."""
        return sum(math.isfinite(value) for value in self.each.values())


@dataclasses.dataclass(frozen=True)
class Crossing:
    """Where a curve first reaches a target, in the unit of an axis."""

    low: float  # it is above the target there; 0 where no row is
    high: float  # the first row at or below the target
    interpolated: float  # between the two rows; else `high`
    is_interpolated: bool  # False: the row before has no loss, or there is none

    @property
    def at_most(self) -> bool:
        """Whether no row is above the target."""
        return self.low == 0 and not self.is_interpolated


@dataclasses.dataclass(frozen=True)
class Cost(Score):
    """The cost to reach the target: `each` is interpolated, and the intervals of `estimate` and
    `difference` hold for every place between the rows.
    """

    crossings: Mapping[int, Crossing | None]  # by seed; None: not reached
    spacing: tuple[float, float] | None  # between which the difference lies by the spacing alone, without other seeds

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The mean of the last rows above the target, and of the first ones below it; None unless
        every run reaches it.
        """
        known = [each for each in self.crossings.values() if each is not None]
        if not known or len(known) < len(self.crossings):
            return None
        return statistics.fmean(each.low for each in known), statistics.fmean(each.high for each in known)


@dataclasses.dataclass(frozen=True)
class GroupScores:
    """All measures of one group. Losses in nats per predicted token."""

    final: Score
    best: Score  # the lowest finite loss
    metrics: Mapping[str, Score]  # every other number of the last validation row, such as bleu; empty without validation
    mean_loss: Mapping[str, Score]  # by axis, by AREA_RULE
    cost_to_target: Mapping[str, Cost]  # by axis, in its unit, by TARGET_RULE


@dataclasses.dataclass(frozen=True)
class Results:
    """What was measured, and the scores of every group."""

    split: str  # of which the curves are measured, by MEASURE_RULE
    target: float | None  # nats per predicted token; None: no run ended finite
    baseline: int  # the index of the group that the others are compared with
    ranges: Mapping[str, tuple[float, float] | None]  # by axis, by AREA_RULE; None: the runs have none in common
    scores: tuple[GroupScores, ...]  # one for each group

    @property
    def measure(self) -> str:
        """The name of `final`."""
        return FINAL_NAMES[self.split]

    @property
    def ranked(self) -> tuple[int, ...]:
        """The groups of which every run has a finite final loss, the lowest mean first."""
        finals = {index: item.final.estimate for index, item in enumerate(self.scores)}
        known = {index: final.mean for index, final in finals.items() if final is not None}
        return tuple(sorted(known, key=lambda index: known[index]))


def measure_groups(runs: Sequence[Run], groups: Sequence[Group], target: float | None = None, baseline: int = 0) -> Results:
    """Measures every run and group, and compares the groups with the one at index `baseline`."""
    outcomes = [summarize(run).outcome for run in runs]
    compared = [run for run, outcome in zip(runs, outcomes, strict=True) if run.drawable and outcome != DIVERGED]
    split = "validation" if compared and all(len(run.curves["validation"]) for run in compared) else "train"
    curves = [_measured(run, split) for run in runs]
    finals = [math.nan if outcome == DIVERGED else _final(run, split) for run, outcome in zip(runs, outcomes, strict=True)]
    finite = [index for index, final in enumerate(finals) if math.isfinite(final)]
    if target is None and finite:
        trained = [index for index in finite if outcomes[index] != ON_PLATEAU]
        target = max(finals[index] for index in trained or finite)
    ranges = {axis: _common_range([curves[index].x[axis] for index in finite]) for axis in AXES}

    def scores(value: Callable[[int], float]) -> list[Score]:
        return _scores(runs, groups, [value(index) for index in range(len(runs))], baseline)

    final, best = scores(finals.__getitem__), scores(lambda index: _lowest(curves[index].loss))
    metrics = {
        name: scores(lambda index, name=name: _final_metric(curves[index], name, finals[index]))
        for name in dict.fromkeys(name for index in finite for name in curves[index].metrics)
    }
    means = {axis: scores(lambda index, axis=axis: _mean_loss(curves[index], axis, ranges[axis])) for axis in AXES}
    costs = {axis: _costs(runs, groups, [_crossing(curve, axis, target) for curve in curves], baseline) for axis in AXES}
    return Results(
        split,
        target,
        baseline,
        ranges,
        tuple(
            GroupScores(
                final[place],
                best[place],
                {name: each[place] for name, each in metrics.items()},
                {axis: means[axis][place] for axis in AXES},
                {axis: costs[axis][place] for axis in AXES},
            )
            for place in range(len(groups))
        ),
    )


def crossing(x: np.ndarray, loss: np.ndarray, target: float) -> Crossing | None:
    """Where the curve first reaches `target`, by TARGET_RULE; None if it never does, or if x is not
    known there.
    """
    below = np.flatnonzero(loss <= target)
    if not len(below) or not math.isfinite(x[below[0]]):
        return None
    row = int(below[0])
    high = float(x[row])
    above = np.flatnonzero(np.isfinite(loss[:row]) & np.isfinite(x[:row]))
    low = float(x[above[-1]]) if len(above) else 0.0
    if not len(above) or above[-1] < row - 1:
        return Crossing(low, high, high, is_interpolated=False)
    share = (loss[row - 1] - target) / (loss[row - 1] - loss[row])
    return Crossing(low, high, float(low + share * (high - low)), is_interpolated=True)


def mean_loss(x: np.ndarray, loss: np.ndarray, start: float, end: float) -> float:
    """The mean of the curve from `start` to `end`, by AREA_RULE; nan if there is a gap between."""
    # A row whose place is not known is a gap at an unknown place.
    if not np.isfinite(x).all():
        return math.nan
    inside = (x > start) & (x < end)
    places = np.concatenate([[start], x[inside], [end]])
    heights = np.concatenate([[np.interp(start, x, loss)], loss[inside], [np.interp(end, x, loss)]])
    return float(np.trapezoid(heights, places) / (end - start))


def _measured(run: Run, split: str) -> Curve:
    curve = run.curves[split]
    return curve if split == "validation" else Curve(curve.x, smooth(curve.loss))


def _final(run: Run, split: str) -> float:
    """nan for a run without rows."""
    loss = run.curves[split].loss
    if not len(loss):
        return math.nan
    final = float(loss[-1]) if split == "validation" else smoothed_final(loss)
    return math.nan if final is None else final


def _final_metric(curve: Curve, name: str, final: float) -> float:
    """nan for a run without a final loss, too."""
    return float(curve.metrics[name][-1]) if name in curve.metrics and math.isfinite(final) else math.nan


def _lowest(loss: np.ndarray) -> float:
    return float(np.nanmin(loss)) if np.isfinite(loss).any() else math.nan


def _common_range(places: Sequence[np.ndarray]) -> tuple[float, float] | None:
    if not places or not all(len(x) and np.isfinite(x).all() for x in places):
        return None
    start, end = max(float(x[0]) for x in places), min(float(x[-1]) for x in places)
    return (start, end) if start < end else None


def _mean_loss(curve: Curve, axis: str, span: tuple[float, float] | None) -> float:
    x = curve.x[axis]
    if span is None or not len(x) or not x[0] <= span[0] < span[1] <= x[-1]:
        return math.nan
    return mean_loss(x, curve.loss, *span)


def _crossing(curve: Curve, axis: str, target: float | None) -> Crossing | None:
    return None if target is None else crossing(curve.x[axis], curve.loss, target)


def _costs(runs: Sequence[Run], groups: Sequence[Group], crossings: Sequence[Crossing | None], baseline: int) -> list[Cost]:
    """The costs of every group, from one crossing a run."""

    def scores(value: Callable[[Crossing], float]) -> list[Score]:
        return _scores(runs, groups, [math.nan if each is None else value(each) for each in crossings], baseline)

    by_seed = [{runs[index].config.train.seed: crossings[index] for index in group.runs} for group in groups]
    middle, low, high = (
        scores(lambda each: each.interpolated),
        scores(lambda each: each.low),
        scores(lambda each: each.high),
    )
    costs = []
    for place, score in enumerate(middle):
        widest = _widened(score.estimate, low[place].estimate, high[place].estimate)
        apart, spacing = None, None
        if score.difference is not None:
            least = difference(low[place].each, high[baseline].each)
            most = difference(high[place].each, low[baseline].each)
            apart, spacing = _widened(score.difference, least, most), (least.mean, most.mean)
        costs.append(Cost(score.each, widest, apart, score.paired, by_seed[place], spacing))
    adjusted = holm([cost.difference for cost in costs])
    return [dataclasses.replace(cost, difference=apart) for cost, apart in zip(costs, adjusted, strict=True)]


def _widened(middle: Estimate | None, least: Estimate | None, most: Estimate | None) -> Estimate | None:
    """`middle` with an interval from that of `least` to that of `most`, and the p-value of the one
    that is nearer to zero; 1 where zero lies between them.
    """
    if middle is None or least is None or most is None:
        return None
    p_value = least.p_value if least.mean > 0 else most.p_value if most.mean < 0 else 1.0
    return dataclasses.replace(middle, low=least.low, high=most.high, p_value=p_value if middle.has_interval else math.nan)


def _scores(runs: Sequence[Run], groups: Sequence[Group], values: Sequence[float], baseline: int) -> list[Score]:
    by_seed = [{runs[index].config.train.seed: values[index] for index in group.runs} for group in groups]
    estimates = [estimate(list(each.values())) if all(map(math.isfinite, each.values())) else None for each in by_seed]
    differences = [
        difference(each, by_seed[baseline])
        if place != baseline and estimates[place] is not None and estimates[baseline] is not None
        else None
        for place, each in enumerate(by_seed)
    ]
    return [
        Score(each, estimates[place], apart, place != baseline and each.keys() == by_seed[baseline].keys())
        for place, (each, apart) in enumerate(zip(by_seed, holm(differences), strict=True))
    ]
