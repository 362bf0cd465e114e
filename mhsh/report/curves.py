"""Logged curves made ready to draw: thinned so that every spike and gap stays, smoothed, averaged
over runs, and as differences of pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mhsh.report.report import Columns, Curves, DrawnCurve, Metric, Numbers

MOST_POINTS = 5000  # drawn of one curve
_MOST_TOGETHER = 40_000  # of all curves of a figure, so that a page of many long runs still opens at once
_LEAST_POINTS = 600  # of one curve, even so
SMOOTHING_SHARE = 0.02  # of a curve's rows, averaged for each smoothed row
SMOOTHING_MOST = 100  # rows; more would blur the steep start of a long curve
GRID_POINTS = 500  # of a mean
AS_LOGGED = ("learning_rate", "skipped")  # metrics that smoothing would only blur
_X_DIGITS, _Y_DIGITS = 7, 6  # more than a screen can show
# Name and unit. Any other metric is called by its key.
_METRICS = {
    "loss": ("loss", "nats per token"),
    "grad_norm": ("gradient norm", ""),
    "tokens_per_second": ("tokens per second", ""),
    "flops_per_second": ("FLOPs per second", ""),
    "mfu": ("share of the devices' peak FLOPs", ""),
    "skipped": ("skipped steps so far", ""),
}


class Line(NamedTuple):
    """The line of a group with its band; nan is a gap, and the interval of a single run."""

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray


def describe_metrics(keys: Sequence[str]) -> dict[str, Metric]:
    """The logged metrics that are called so, the loss first."""
    found = {}
    for key in dict.fromkeys(["loss", *keys]):
        name, unit = _METRICS.get(key, (key.replace("_", " "), "nats per token" if key.endswith("_loss") else ""))
        found[key] = Metric(name, unit, key not in AS_LOGGED)
    return found


def drawn_curve(x: Mapping[str, np.ndarray], metrics: Mapping[str, np.ndarray], most: int) -> DrawnCurve:
    """The rows to draw, about `most` at most: of the loss and of every other metric the lowest and
    the highest of each stretch.

    Args:
      x: the place of every row by axis, `step` among them; ascending.
      metrics: the logged numbers by key, the loss among them; nan is a gap.
    """
    count = len(metrics["loss"])
    if "skipped" in metrics:
        metrics = {**metrics, "skipped": np.cumsum(np.nan_to_num(metrics["skipped"]))}
    rows = np.arange(count)
    window = smoothing_rows(count)
    if count <= most:
        return DrawnCurve(_columns(x, metrics, rows), window)
    others = [values for key, values in metrics.items() if key != "loss"]
    indices = [thin(metrics["loss"], most // 2)]
    indices += [thin(values, most // (2 * len(others))) for values in others]
    spacing = math.ceil(2 * count / most)
    even = np.unique(np.concatenate([[0], rows[::-1][::spacing]]))  # ends with the last row
    smoothed = {key: values if key in AS_LOGGED else smooth(values) for key, values in metrics.items()}
    return DrawnCurve(_columns(x, metrics, np.unique(np.concatenate(indices))), window, _columns(x, smoothed, even), spacing)


def _columns(x: Mapping[str, np.ndarray], metrics: Mapping[str, np.ndarray], rows: np.ndarray) -> Columns:
    steps = x["step"]
    places: dict[str, Numbers | float] = {}
    for axis, values in x.items():
        factor = float(values[-1] / steps[-1]) if axis != "step" and len(steps) and steps[-1] else math.nan
        proportional = math.isfinite(factor) and np.allclose(values, factor * steps, rtol=1e-7, atol=0)
        places[axis] = factor if proportional else round_digits(values[rows], _X_DIGITS)
    return Columns(places, {key: round_digits(values[rows], _Y_DIGITS) for key, values in metrics.items()})


def round_digits(values: np.ndarray, digits: int) -> Numbers:
    """Rounds to so many significant digits: the page is a third smaller. None where not finite."""
    return tuple(_plain(float(f"{value:.{digits}g}")) if math.isfinite(value) else None for value in values.tolist())


def _plain(value: float) -> int | float:
    """5.0 as 5, which is shorter in JSON."""
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


def _run_line(curves: Curves, run: int, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and losses of a run, training smoothed; empty where it has no such curve."""
    curve = curves.runs[run].curves.get(split)
    if curve is None:
        return np.array([]), np.array([])
    columns = curve.even if split == "train" and curve.even is not None else curve.rows
    loss = np.array(columns.y["loss"], float)
    return np.array(columns.x["step"], float), smooth(loss) if split == "train" and curve.even is None else loss


def group_lines(curves: Curves, group: int, split: str) -> list[Line]:
    """The mean loss of a group against steps, where all its runs have rows; of one that is not
    averaged its runs' losses.
    """
    lines = [line for run in curves.groups[group].runs if len((line := _run_line(curves, run, split))[0])]
    sets = [lines] if curves.groups[group].averaged else [[line] for line in lines]
    return [_mean(each, curves.half_intervals) for each in sets if each]


def difference_lines(curves: Curves, group: int, split: str) -> list[Line]:
    """The mean over pairs of a group's loss minus the baseline's, at the steps that both logged;
    none where there are no pairs.
    """
    lines = []
    for run, other in curves.groups[group].pairs:
        (x, y), (other_x, other_y) = _run_line(curves, run, split), _run_line(curves, other, split)
        steps, ours, theirs = np.intersect1d(x, other_x, return_indices=True)
        if len(steps):
            lines.append((steps, y[ours] - other_y[theirs]))
    return [_mean(lines, curves.half_intervals)] if lines else []


def _mean(lines: Sequence[tuple[np.ndarray, np.ndarray]], half_intervals: Numbers) -> Line:
    first, last = max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines)
    grid = np.unique(np.concatenate([x[(x >= first) & (x <= last)] for x, _ in lines]))
    if len(grid) > GRID_POINTS:
        grid = grid[np.floor(np.linspace(0, len(grid) - 1, GRID_POINTS) + 0.5).astype(int)]
    values = np.array([np.interp(grid, x, y) for x, y in lines])
    mean, factor = values.mean(axis=0), half_intervals[len(lines)]
    half_width = np.full(len(grid), np.nan) if factor is None else factor * values.std(axis=0, ddof=1)
    return Line(grid, mean, mean - half_width, mean + half_width)


def thin(loss: np.ndarray, most: int = MOST_POINTS) -> np.ndarray:
    """The indices of the rows to draw, ascending, at most `most` of them (5 or more).

    All of them if they are at most `most`. Else the curve is cut into (most - 2) // 3 equal
    buckets, and each keeps its first lowest, its first highest and its first non-finite row. The
    first and the last row always stay.
    """
    if len(loss) <= most:
        return np.arange(len(loss))
    indices, finite = [np.array([0, len(loss) - 1])], np.isfinite(loss)
    edges = np.linspace(0, len(loss), max(1, (most - 2) // 3) + 1).astype(int)
    for rows in np.split(np.arange(len(loss)), edges[1:-1]):
        known = rows[finite[rows]]
        indices += [known[[loss[known].argmin(), loss[known].argmax()]]] if len(known) else []
        indices.append(rows[~finite[rows]][:1])
    return np.unique(np.concatenate(indices))


def most_points(curves: int) -> int:
    """The points drawn of each curve in a figure with that many curves."""
    return max(_LEAST_POINTS, min(MOST_POINTS, _MOST_TOGETHER // max(1, curves)))


def smoothing_rows(rows: int) -> int:
    """How many rows are averaged in the smoothed curve of a run with `rows` rows."""
    return min(SMOOTHING_MOST, max(1, round(rows * SMOOTHING_SHARE)))


def smooth(loss: np.ndarray) -> np.ndarray:
    """The mean of each row and the `smoothing_rows` - 1 rows before it (fewer at the start). nan if
    one of them is not finite.
    """
    width = smoothing_rows(len(loss))
    before = np.pad(np.where(np.isfinite(loss), loss, np.nan), (width - 1, 0))
    sums = np.lib.stride_tricks.sliding_window_view(before, width).sum(axis=1) if len(loss) else loss
    return sums / np.minimum(np.arange(len(loss)) + 1, width)
