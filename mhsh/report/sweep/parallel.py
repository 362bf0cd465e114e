"""Parallel coordinates of a sweep: an axis for each swept field and one for the final loss, and a
line a cell. Only places and words; the page draws them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.ticker import MaxNLocator

from mhsh.report.sweep.cells import Sweep, setting_words
from mhsh.report.sweep.quality import is_numeric, spans_decades
from mhsh.sweep.axes import SEEDS, Axis, Value
from mhsh.text import sanitize
from mhsh.verdict.words import format_loss

_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 810, 40, 316  # of the axes
_SPREAD = 16  # between the lines of one value, so that none hides another
_COLORS = LinearSegmentedColormap.from_list("loss", ["#0072B2", "#9A8FB0", "#D55E00"])  # readable on white and on black


@dataclasses.dataclass(frozen=True)
class ParallelAxis:
    """One vertical axis."""

    name: str
    x: float
    ticks: tuple[tuple[float, str], ...]  # y and label


@dataclasses.dataclass(frozen=True)
class ParallelLine:
    """One cell."""

    points: str  # of an SVG polyline
    color: str | None  # by its final loss; None where it has none, and it ends at the last swept axis
    title: str  # its settings, and its final loss or verdict


@dataclasses.dataclass(frozen=True)
class Parallel:
    """The picture of a sweep."""

    axes: tuple[ParallelAxis, ...]
    lines: tuple[ParallelLine, ...]  # the lowest loss last, on top
    width: int = 900  # in units of the picture, as all places
    height: int = 340
    top: int = _TOP  # of every axis
    bottom: int = _BOTTOM


def parallel(sweep: Sweep) -> Parallel | None:
    """None where no cell has a final loss, or no field but seeds has several values."""
    swept = [axis for axis in sweep.axes if len(axis.values) > 1 and axis.path not in SEEDS]
    finals = [cell.final_loss for cell in sweep.cells if cell.final_loss is not None]
    if not swept or not finals:
        return None
    low, high = min(finals), max(finals)
    xs = [_LEFT + (_RIGHT - _LEFT) * index / len(swept) for index in range(len(swept) + 1)]
    scales = [_scale(axis) for axis in swept]
    axes = [
        ParallelAxis(sanitize(axis.name), x, tuple((_y(scale(value)), sanitize(str(value))) for value in axis.values))
        for axis, x, scale in zip(swept, xs, scales, strict=False)
    ]
    losses = [loss for loss in MaxNLocator(5).tick_values(low, high) if low <= loss <= high] if high > low else [low]
    ticks = tuple((_y(_share(loss, low, high)), format_loss(loss)) for loss in losses)
    axes.append(ParallelAxis("final validation loss", xs[-1], ticks))
    lines = []
    worst_first = sorted(sweep.cells, key=lambda cell: math.inf if cell.final_loss is None else cell.final_loss, reverse=True)
    for rank, cell in enumerate(worst_first):
        loss = cell.final_loss
        offset = _SPREAD * (0.5 - (rank + 0.5) / len(worst_first))
        ys = [_y(scale(cell.plan.settings[axis.path])) + offset for axis, scale in zip(swept, scales, strict=True)]
        ys += [] if loss is None else [_y(_share(loss, low, high))]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=False))
        color = None if loss is None else to_hex(_COLORS(_share(loss, low, high)))
        said = cell.verdict if loss is None else f"{format_loss(loss)} nats per token"
        lines.append(ParallelLine(points, color, f"{setting_words(cell.plan.settings)}: {said}"))
    return Parallel(tuple(axes), tuple(lines))


def _scale(axis: Axis) -> Callable[[Value], float]:
    """Where on its axis a value lies, from 0 to 1: by its logarithm where values span decades, and
    in equal steps where they are no numbers.
    """
    if not is_numeric(axis):
        return lambda value: axis.values.index(value) / (len(axis.values) - 1)
    logarithmic = spans_decades(axis.values)

    def place(value: Value) -> float:
        numbers = [float(each) for each in (min(axis.values), value, max(axis.values))]
        low, here, high = map(math.log, numbers) if logarithmic else numbers
        return _share(here, low, high)

    return place


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5


def _y(share: float) -> float:
    return round(_BOTTOM + (_TOP - _BOTTOM) * share, 1)
