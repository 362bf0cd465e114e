"""Quality against an axis of a sweep: the mean final validation loss over seeds at each value, with
intervals and differences.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from mhsh.report.estimate import Estimate, difference, estimate
from mhsh.report.render.format import format_loss
from mhsh.report.sweep.cells import Sweep, SweptCell, setting_words
from mhsh.sweep.axes import SEEDS, Axis, Value

QUALITY_RULE = (
    "Quality is the validation loss after the last step, its mean over the seeds that reached it with a finite loss; where some "
    "did not, it is told of how many the mean is, and a mean over the survivors flatters. Differences are against the axis's first "
    "value, each looked at by itself: of many intervals some leave out zero by chance."
)


@dataclasses.dataclass(frozen=True)
class Point:
    """One value of the axis on one line."""

    value: int | float
    quality: Estimate | None  # nats per predicted token; None where no seed reached the end
    losses: tuple[float, ...]  # what that is the mean of
    against_first: Estimate | None  # its difference to the first value of the axis; None there, or where either has no quality
    planned: int  # cells, a seed each
    missing: tuple[str, ...]  # what became of those that are not in the mean


@dataclasses.dataclass(frozen=True)
class Line:
    """All values of the axis at one setting of the other axes."""

    label: str  # printable; empty where there is no other axis
    points: tuple[Point, ...]  # in the axis's order


@dataclasses.dataclass(frozen=True)
class Quality:
    """Quality against one axis."""

    axis: Axis
    lines: tuple[Line, ...]


def qualities(sweep: Sweep, but: Sequence[str] = ()) -> tuple[Quality, ...]:
    """Quality against each axis of numbers that has two values or more, seeds and the paths in
    `but` left out.
    """
    return tuple(
        _quality(sweep, axis) for axis in sweep.axes if axis.path not in (*SEEDS, *but) and len(axis.values) > 1 and _numeric(axis)
    )


def claims(quality: Quality) -> list[str]:
    """A line's words each: where the loss is lowest, and how each value compares with the first
    one, and how sure that is.
    """
    sentences = []
    for line in quality.lines:
        reached = [point for point in line.points if point.quality is not None]
        if not reached:
            continue
        best = min(reached, key=lambda point: point.quality.mean if point.quality else 0.0)
        where = f"{line.label}: " if line.label else ""
        said = f"{where}lowest final validation loss at {quality.axis.name} = {best.value}: {in_words(best)}"
        compared = [(point.value, point.against_first) for point in reached if point.against_first is not None]
        against = [f"{value} is at {difference_in_words(estimated)}" for value, estimated in compared]
        if against:
            said += f". Against {quality.axis.name} = {quality.axis.values[0]}: {'; '.join(against)}"
        sentences.append(said)
    return sentences


def in_words(point: Point) -> str:
    """`2.512 (95 % interval 2.498 to 2.526, 3 seeds)`."""
    if point.quality is None:
        return "no seed reached the end"
    got = f"{point.quality.seeds} of {point.planned} seeds" if point.missing else _seeds(point.planned)
    interval = f"95 % interval {point.quality.low:.3f} to {point.quality.high:.3f}, " if point.quality.has_interval else ""
    return f"{format_loss(point.quality.mean)} ({interval}{got})"


def difference_in_words(estimated: Estimate) -> str:
    """`-0.012 (-0.020 to -0.004), lower`."""
    if not estimated.has_interval:
        return f"{estimated.mean:+.3f} (too few seeds to tell how sure)"
    told = ("lower" if estimated.mean < 0 else "higher") if estimated.excludes_zero else "not told apart"
    return f"{estimated.mean:+.3f} ({estimated.low:+.3f} to {estimated.high:+.3f}), {told}"


def _seeds(number: int) -> str:
    return "1 seed" if number == 1 else f"{number} seeds"


def _numeric(axis: Axis) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in axis.values)


def _quality(sweep: Sweep, axis: Axis) -> Quality:
    lines: dict[str, dict[Value, list[SweptCell]]] = {}
    for cell in sweep.cells:
        by_value = lines.setdefault(setting_words(cell.without(axis.path)), {value: [] for value in axis.values})
        by_value[cell.plan.settings[axis.path]].append(cell)
    return Quality(axis, tuple(Line(label, _points(by_value)) for label, by_value in lines.items()))


def _points(by_value: Mapping[Value, Sequence[SweptCell]]) -> tuple[Point, ...]:
    places: dict[tuple[Value, ...], int] = {}  # a seed's number, whatever and however many its axes are
    losses: list[dict[int, float]] = []
    for cells in by_value.values():
        placed = {places.setdefault(cell.seeds, len(places)): cell.final_loss for cell in cells}
        losses.append({seed: loss for seed, loss in placed.items() if loss is not None})
    points = []
    for index, ((value, cells), reached) in enumerate(zip(by_value.items(), losses, strict=True)):
        assert isinstance(value, int | float)
        missing = tuple(
            ", ".join(["seed " + " and ".join(map(str, cell.seeds))] * bool(cell.seeds) + [cell.verdict])
            for cell in cells
            if cell.final_loss is None
        )
        against = difference(reached, losses[0]) if index and reached and losses[0] else None
        losses_here = tuple(reached.values())
        points.append(Point(value, estimate(losses_here) if reached else None, losses_here, against, len(cells), missing))
    return tuple(points)
