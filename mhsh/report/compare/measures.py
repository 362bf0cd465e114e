"""The table of results by group: every measure with its interval and difference to the baseline."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from mhsh import text
from mhsh.report.compare.comparison import Comparison
from mhsh.report.compare.results import Cost, GroupScores, Score
from mhsh.report.estimate import Estimate
from mhsh.report.render.format import format_loss, format_signed
from mhsh.report.runs.curves import AXES

AXIS_NAMES = {"step": "steps", "tokens": "tokens", "flops": "FLOPs", "seconds": "device seconds"}
_Words = Callable[[float], str]


@dataclasses.dataclass(frozen=True)
class MeasureCell:
    """One measure of one group, in words."""

    value: str
    difference: str  # to the baseline; empty for the baseline, and where there is none
    lowest: bool  # of all groups, unless all are equal


@dataclasses.dataclass(frozen=True)
class MeasureRow:
    """One measure, with a cell for every group."""

    name: str
    cells: tuple[MeasureCell, ...]


def measure_rows(comparison: Comparison) -> tuple[MeasureRow, ...]:
    """Final and best loss, then by axis the cost to reach the target and the mean loss."""
    results = comparison.results
    loss = {"validation": "validation loss", "train": "smoothed training loss"}[results.split]

    def row(what: str, score: Callable[[GroupScores], Score], words: _Words, absent: str) -> MeasureRow:
        return _row(what, [score(scores) for scores in results.scores], words, absent)

    rows = [
        row(results.measure, lambda scores: scores.final, format_loss, "not finite"),
        row(f"lowest {loss}", lambda scores: scores.best, format_loss, "not finite"),
    ]
    if results.target is not None:
        for axis in AXES:
            what = f"{AXIS_NAMES[axis]}{comparison.axis_suffix} to {loss} {format_loss(results.target)}"
            rows.append(row(what, lambda scores, axis=axis: scores.cost_to_target[axis], _axis_words(axis), "not reached"))
    for axis in AXES:
        span = results.ranges[axis]
        if span is not None:
            words = _axis_words(axis)
            what = f"mean {loss} by {AXIS_NAMES[axis]}{comparison.axis_suffix}, {words(span[0])} to {words(span[1])}"
            rows.append(row(what, lambda scores, axis=axis: scores.mean_loss[axis], format_loss, "none: a gap"))
    return tuple(rows)


def _axis_words(axis: str) -> _Words:
    return text.duration if axis == "seconds" else text.count


def _row(what: str, scores: list[Score], words: _Words, absent: str) -> MeasureRow:
    means = [score.estimate.mean for score in scores if score.estimate is not None]
    low = min(means) if len(set(means)) > 1 else None
    return MeasureRow(
        what,
        tuple(
            MeasureCell(
                _value(score, words, absent), _difference(score, words), score.estimate is not None and score.estimate.mean == low
            )
            for score in scores
        ),
    )


def _value(score: Score, words: _Words, absent: str) -> str:
    if score.estimate is None:
        return absent if score.known == 0 else f"in {score.known} of {len(score.each)} runs only"
    if isinstance(score, Cost) and score.bounds is not None:
        return _place(score, score.estimate, score.bounds, words)
    return f"{words(score.estimate.mean)}{_interval(score.estimate, words)}"


def _place(cost: Cost, estimate: Estimate, bounds: tuple[float, float], words: _Words) -> str:
    """Between which rows, the interpolated place, and the interval of the mean."""
    if all(each is not None and each.at_most for each in cost.crossings.values()):
        return f"at most {words(bounds[1])}"
    between = f"{words(bounds[0])} to {words(bounds[1])}"
    seeds = f"; 95 % {words(max(estimate.low, 0.0))} to {words(estimate.high)}" if estimate.has_interval else ""
    return f"{between} (interpolated {words(estimate.mean)}{seeds})"


def _difference(score: Score, words: _Words) -> str:
    difference = score.difference
    if difference is None:
        return ""
    if isinstance(score, Cost) and score.spacing is not None and score.spacing[0] <= 0 <= score.spacing[1]:
        verdict = "no difference beyond the spacing of the evaluations"
    elif not difference.has_interval:
        verdict = "too few seeds for an interval"
    elif difference.is_significant:
        verdict = "lower" if difference.mean < 0 else "higher"
    else:
        verdict = "no significant difference"

    signed = functools.partial(format_signed, words=words)
    return f"{signed(difference.mean)}{_interval(difference, signed)}: {verdict}"


def _interval(value: Estimate, words: _Words) -> str:
    return f" ({words(value.low)} to {words(value.high)})" if value.has_interval else ""
