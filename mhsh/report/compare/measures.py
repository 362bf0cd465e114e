"""The table of results by group: every measure with its interval and difference to the baseline."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable

from mhsh import text
from mhsh.report.compare.chart import metric_name
from mhsh.report.compare.comparison import Comparison
from mhsh.report.compare.results import Cost, GroupScores, Score
from mhsh.report.estimate import Estimate
from mhsh.verdict.curves import AXES
from mhsh.verdict.words import format_loss, format_signed

AXIS_NAMES = {"step": "steps", "tokens": "tokens", "flops": "FLOPs", "seconds": "device seconds"}
LOWER, HIGHER, LEVEL = "\u25bc", "\u25b2", "\u2248"  # than the baseline, significantly; or not significantly different
_Words = Callable[[float], str]


@dataclasses.dataclass(frozen=True)
class MeasureCell:
    """One measure of one group."""

    number: str  # the mean over its runs, or why there is none
    spread: str  # its interval, or between which rows the target is reached; may be empty
    change: str  # the difference to the baseline with its interval; empty for the baseline, and where there is none
    sign: str  # LOWER, HIGHER or LEVEL; empty where there is no interval
    lowest: bool  # of all groups, unless all are equal


@dataclasses.dataclass(frozen=True)
class MeasureRow:
    """One measure, with a cell for every group."""

    name: str
    cells: tuple[MeasureCell, ...]


def measure_rows(comparison: Comparison) -> tuple[MeasureRow, ...]:
    """Final and best loss, final metrics; by axis the cost to a target and the mean loss."""
    results = comparison.results
    loss = {"validation": "validation loss", "train": "smoothed training loss"}[results.split]

    def row(what: str, score: Callable[[GroupScores], Score], words: _Words, absent: str) -> MeasureRow:
        return _row(what, [score(scores) for scores in results.scores], words, absent)

    rows = [
        row(results.measure, lambda scores: scores.final, format_loss, "not finite"),
        row(f"lowest {loss}", lambda scores: scores.best, format_loss, "not finite"),
    ]
    rows += metric_rows(comparison)
    if results.target is not None:
        for axis in AXES:
            what = f"{AXIS_NAMES[axis]}{comparison.axis_suffix} to {loss} {format_loss(results.target)}"
            costs = [scores.cost_to_target[axis] for scores in results.scores]
            words = axis_words(axis, [value for cost in costs for value in (*cost.each.values(), *(cost.bounds or ()))])
            rows.append(row(what, lambda scores, axis=axis: scores.cost_to_target[axis], words, "not reached"))
    for axis in AXES:
        span = results.ranges[axis]
        if span is not None:
            words = axis_words(axis, span)
            what = f"mean {loss} by {AXIS_NAMES[axis]}{comparison.axis_suffix}, {words(span[0])} to {words(span[1])}"
            rows.append(row(what, lambda scores, axis=axis: scores.mean_loss[axis], format_loss, "none: a gap"))
    return tuple(rows)


def metric_rows(comparison: Comparison) -> tuple[MeasureRow, ...]:
    """What the last validation gave besides the loss, such as BLEU. Higher may be better: none is
    marked as lowest.
    """
    scores = comparison.results.scores
    return tuple(
        MeasureRow(
            f"final validation {metric_name(name)}", tuple(_cell(each.metrics[name], _digits, "not known", None) for each in scores)
        )
        for name in (scores[0].metrics if scores else ())
    )


def _digits(value: float) -> str:
    return f"{value:.4g}"


def axis_words(axis: str, values: Iterable[float | None]) -> _Words:
    """One format for all these values of an axis."""
    return text.durations_alike(values) if axis == "seconds" else text.counts_alike(values)


def _row(what: str, scores: list[Score], words: _Words, absent: str) -> MeasureRow:
    means = [score.estimate.mean for score in scores if score.estimate is not None]
    low = min(means) if len(set(means)) > 1 else None
    return MeasureRow(what, tuple(_cell(score, words, absent, low) for score in scores))


def _cell(score: Score, words: _Words, absent: str, low: float | None) -> MeasureCell:
    number, spread = _value(score, words, absent)
    change, sign = _difference(score, words)
    return MeasureCell(number, spread, change, sign, lowest=score.estimate is not None and score.estimate.mean == low)


def _value(score: Score, words: _Words, absent: str) -> tuple[str, str]:
    """The number and the spread of a cell."""
    if score.estimate is None:
        return absent if score.known == 0 else f"in {score.known} of {len(score.each)} runs only", ""
    if not isinstance(score, Cost) or score.bounds is None:
        return words(score.estimate.mean), _interval(score.estimate, words)
    if all(each is not None and each.at_most for each in score.crossings.values()):
        return f"at most {words(score.bounds[1])}", ""
    rows = f"{words(score.bounds[0])} to {words(score.bounds[1])}"
    # Of a cost, no interval begins below zero.
    seeds = f"{words(max(score.estimate.low, 0.0))} to {words(score.estimate.high)}" if score.estimate.has_interval else ""
    return words(score.estimate.mean), seeds or rows


def _difference(score: Score, words: _Words) -> tuple[str, str]:
    """The signed number with its interval, and the sign of what it means."""
    difference = score.difference
    if difference is None:
        return "", ""
    if isinstance(score, Cost) and score.spacing is not None and score.spacing[0] <= 0 <= score.spacing[1]:
        sign = LEVEL  # no difference beyond the spacing of the evaluations
    elif not difference.has_interval:
        sign = ""
    else:
        sign = (LOWER if difference.mean < 0 else HIGHER) if difference.is_significant else LEVEL
    signed = functools.partial(format_signed, words=words)
    interval = _interval(difference, signed)
    return f"{signed(difference.mean)}{f' ({interval})' if interval else ''}", sign


def _interval(value: Estimate, words: _Words) -> str:
    return f"{words(value.low)} to {words(value.high)}" if value.has_interval else ""
