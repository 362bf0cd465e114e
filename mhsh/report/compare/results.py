"""Results by group: final, best and mean losses, the cost to reach a target loss, and differences
to a baseline.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mhsh.outcome import smoothed_final
from mhsh.report.compare.groups import Group
from mhsh.report.estimate import Estimate, difference, estimate
from mhsh.report.runs.curves import AXES, Curve
from mhsh.report.runs.downsample import smooth
from mhsh.report.runs.loading import Run

FINAL_NAMES = {"validation": "final validation loss", "train": "final training loss"}

MEASURE_RULE = (
    "All runs are measured on their validation curves if each run that did not diverge has one, else on their smoothed training "
    "curves. The final loss is then the last validation loss, or the final training loss as defined above."
)
TARGET_RULE = (
    "A run reaches the target at the first row with a loss at or below it, interpolated linearly from the row before (not over a "
    "gap; at the first row: there). Unless --target is given, the target is the highest final loss of the runs with a finite one, "
    "so that each of them reaches it. A group in which a run does not reach it has no mean; the runs that do are counted."
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
class GroupScores:
    """All measures of one group. Losses in nats per predicted token."""

    final: Score
    best: Score  # the lowest finite loss
    mean_loss: Mapping[str, Score]  # by axis, by AREA_RULE
    cost_to_target: Mapping[str, Score]  # by axis, in its unit, by TARGET_RULE


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
    compared = [run for run in runs if run.drawable and not _diverged(run)]
    split = "validation" if compared and all(len(run.curves["validation"]) for run in compared) else "train"
    curves = [_measured(run, split) for run in runs]
    finals = [_final(run, split) for run in runs]
    finite = [index for index, final in enumerate(finals) if math.isfinite(final)]
    if target is None and finite:
        target = max(finals[index] for index in finite)
    ranges = {axis: _common_range([curves[index].x[axis] for index in finite]) for axis in AXES}

    def scores(value: Callable[[int], float]) -> list[Score]:
        return _scores(runs, groups, [value(index) for index in range(len(runs))], baseline)

    final, best = scores(finals.__getitem__), scores(lambda index: _lowest(curves[index].loss))
    means = {axis: scores(lambda index, axis=axis: _mean_loss(curves[index], axis, ranges[axis])) for axis in AXES}
    costs = {axis: scores(lambda index, axis=axis: _crossing(curves[index], axis, target)) for axis in AXES}
    return Results(
        split,
        target,
        baseline,
        ranges,
        tuple(
            GroupScores(
                final[place], best[place], {axis: means[axis][place] for axis in AXES}, {axis: costs[axis][place] for axis in AXES}
            )
            for place in range(len(groups))
        ),
    )


def crossing(x: np.ndarray, loss: np.ndarray, target: float) -> float:
    """The x at which the curve first reaches `target`, by TARGET_RULE; nan if it never does, or if
    x is not known there.
    """
    below = np.flatnonzero(loss <= target)
    if not len(below):
        return math.nan
    row = int(below[0])
    if row == 0 or not math.isfinite(loss[row - 1]) or not math.isfinite(x[row - 1]):
        return float(x[row])
    share = (loss[row - 1] - target) / (loss[row - 1] - loss[row])
    return float(x[row - 1] + share * (x[row] - x[row - 1]))


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


def _diverged(run: Run) -> bool:
    """By PLATEAU_RULE of mhsh.outcome."""
    train, validation = smoothed_final(run.curves["train"].loss), run.curves["validation"].loss
    return (train is not None and not math.isfinite(train)) or bool(len(validation) and not math.isfinite(validation[-1]))


def _final(run: Run, split: str) -> float:
    """nan for a run that diverged, and for one without rows."""
    loss = run.curves[split].loss
    if _diverged(run) or not len(loss):
        return math.nan
    final = float(loss[-1]) if split == "validation" else smoothed_final(loss)
    return math.nan if final is None else final


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


def _crossing(curve: Curve, axis: str, target: float | None) -> float:
    return math.nan if target is None else crossing(curve.x[axis], curve.loss, target)


def _scores(runs: Sequence[Run], groups: Sequence[Group], values: Sequence[float], baseline: int) -> list[Score]:
    by_seed = [{runs[index].config.train.seed: values[index] for index in group.runs} for group in groups]
    estimates = [estimate(list(each.values())) if all(map(math.isfinite, each.values())) else None for each in by_seed]
    scores = []
    for place, each in enumerate(by_seed):
        paired = place != baseline and each.keys() == by_seed[baseline].keys()
        compared = place != baseline and estimates[place] is not None and estimates[baseline] is not None
        scores.append(Score(each, estimates[place], difference(each, by_seed[baseline]) if compared else None, paired))
    return scores
