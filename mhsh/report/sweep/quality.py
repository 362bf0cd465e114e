"""Quality against an axis of a sweep: mean final validation losses, intervals and differences."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from mhsh.report.estimate import Estimate, difference, estimate, holm
from mhsh.report.sweep.cells import Sweep, SweptCell
from mhsh.sweep.axes import SEEDS, Axis, Value
from mhsh.verdict.words import format_loss

QUALITY_RULE = (
    "Quality is the validation loss after the last step, its mean over the seeds whose runs have ended at every value of the axis "
    "that is shown, as seeds can have texts of their own. A run that diverged has no loss; where there is one, the number of seeds "
    "is given, and the mean over the others is too good. Differences are against the axis's first value."
)


@dataclasses.dataclass(frozen=True)
class QualityPoint:
    """One value of the axis on one line."""

    value: int | float
    quality: Estimate | None  # nats per predicted token; None where no common seed reached the end
    losses: tuple[float, ...]  # the losses that it is the mean of
    against_first: Estimate | None  # difference to the first value; None for that itself, and where either has no quality
    planned: int  # cells, a seed each
    missing: tuple[str, ...]  # the verdicts of those that are not in the mean


@dataclasses.dataclass(frozen=True)
class QualityLine:
    """All values of the axis at one setting of the other axes."""

    label: str  # printable; empty where there is no other axis
    points: tuple[QualityPoint, ...]  # in the axis's order


@dataclasses.dataclass(frozen=True)
class Quality:
    """Quality against one axis."""

    axis: Axis
    lines: tuple[QualityLine, ...]


def qualities(sweep: Sweep, but: Sequence[str] = ()) -> tuple[Quality, ...]:
    """Quality against each numeric axis of several values, without seeds and the paths in `but`."""
    return tuple(
        quality_against(sweep, axis)
        for axis in sweep.axes
        if axis.path not in (*SEEDS, *but) and len(axis.values) > 1 and is_numeric(axis)
    )


def claims(quality: Quality) -> list[str]:
    """A sentence for each line: the lowest loss, and how each value compares with the first."""
    sentences = []
    for line in quality.lines:
        reached = [point for point in line.points if point.quality is not None]
        if not reached:
            continue
        best = min(reached, key=lambda point: point.quality.mean if point.quality else 0.0)
        where = f"{line.label}: " if line.label else ""
        said = f"{where}lowest final validation loss at {quality.axis.name} = {best.value}: {format_quality(best)}"
        compared = [(point.value, point.against_first) for point in reached if point.against_first is not None]
        against = [f"{value} is at {format_difference(estimated)}" for value, estimated in compared]
        if against:
            said += f". Against {quality.axis.name} = {quality.axis.values[0]}: {'; '.join(against)}"
        sentences.append(said)
    return sentences


def format_quality(point: QualityPoint) -> str:
    """`2.512 (95 % interval 2.498 to 2.526, 3 seeds)`."""
    if point.quality is None:
        return "no seed reached the end"
    got = (
        f"{point.quality.seeds} of {point.planned} seeds"
        if point.quality.seeds < point.planned
        else format_number(point.planned, "seed")
    )
    return format_mean(point.quality, got)


def format_mean(of: Estimate, seeds: str) -> str:
    """As `format_quality`, of any loss; `seeds` says how many it is the mean of."""
    interval = f"95 % interval {of.low:.3f} to {of.high:.3f}, " if of.has_interval else ""
    return f"{format_loss(of.mean)} ({interval}{seeds})"


def format_difference(estimated: Estimate, words: tuple[str, str] = ("lower", "higher")) -> str:
    """`-0.012 (-0.020 to -0.004), lower`. `words`: of a significant one below and above 0."""
    if not estimated.has_interval:
        return f"{estimated.mean:+.3f} (too few seeds for an interval)"
    said = words[estimated.mean > 0] if estimated.is_significant else "no significant difference"
    correction = " by Holm's correction" if estimated.excludes_zero and not estimated.is_significant else ""
    return f"{estimated.mean:+.3f} ({estimated.low:+.3f} to {estimated.high:+.3f}), {said}{correction}"


def format_number(count: int, noun: str) -> str:
    """`1 seed`, `2 seeds`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def is_numeric(axis: Axis) -> bool:
    """Whether all values of the axis are numbers."""
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in axis.values)


def spans_decades(values: Sequence[Value]) -> bool:
    """Whether numbers are so far apart that a logarithmic axis suits them."""
    low, high = float(min(values)), float(max(values))
    return low > 0 and high / low >= 4


def quality_against(sweep: Sweep, axis: Axis) -> Quality:
    """Quality against one numeric axis: a line for each setting of the other axes."""
    lines: dict[str, dict[Value, list[SweptCell]]] = {}
    for cell in sweep.cells:
        by_value = lines.setdefault(sweep.words(cell, axis.path), {value: [] for value in axis.values})
        by_value[cell.plan.settings[axis.path]].append(cell)
    return Quality(axis, tuple(QualityLine(label, _points(by_value)) for label, by_value in lines.items()))


def _points(by_value: Mapping[Value, Sequence[SweptCell]]) -> tuple[QualityPoint, ...]:
    ended = [{cell.seeds for cell in cells if cell.has_ended} for cells in by_value.values()]
    common = set.intersection(*filter(None, ended)) if any(ended) else set()
    places: dict[tuple[Value, ...], int] = {}  # a number for each combination of seeds
    losses: list[dict[int, float]] = []
    for cells in by_value.values():
        placed = {places.setdefault(cell.seeds, len(places)): cell.final_loss for cell in cells if cell.seeds in common}
        losses.append({seed: loss for seed, loss in placed.items() if loss is not None})
    apart = holm([difference(each, losses[0]) if index and each and losses[0] else None for index, each in enumerate(losses)])
    points = []
    for (value, cells), reached, against in zip(by_value.items(), losses, apart, strict=True):
        assert isinstance(value, int | float)
        missing = tuple(
            ", ".join(["seed " + " and ".join(map(str, cell.seeds))] * bool(cell.seeds) + [cell.verdict])
            for cell in cells
            if cell.final_loss is None
        )
        losses_here = tuple(reached.values())
        points.append(QualityPoint(value, estimate(losses_here) if reached else None, losses_here, against, len(cells), missing))
    return tuple(points)
