"""Smoothing, and thinning of long curves that keeps every spike and every gap."""

from __future__ import annotations

import numpy as np

MOST_POINTS = 5000  # drawn of one curve
_MOST_TOGETHER = 40_000  # of all curves of a figure, so that a page of many long runs still opens at once
_LEAST_POINTS = 600  # of one curve, even so
SMOOTHING_SHARE = 0.02  # of a curve's rows, averaged for each smoothed row
SMOOTHING_MOST = 100  # rows; more would blur the steep start of a long curve


def thin(loss: np.ndarray, most: int = MOST_POINTS) -> np.ndarray:
    """The indices of the rows to draw, ascending, at most `most` of them (5 or more).

    All of them if they are at most `most`. Else the curve is cut into (most - 2) // 3 equal
    buckets, and each keeps its first lowest, its first highest and its first non-finite row. The
    first and the last row always stay.
    """
    if len(loss) <= most:
        return np.arange(len(loss))
    edges = np.linspace(0, len(loss), max(1, (most - 2) // 3) + 1).astype(int)
    buckets = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    finite = np.isfinite(loss)
    low, high = np.where(finite, loss, np.inf), np.where(finite, loss, -np.inf)
    kept = (
        finite & (low == np.minimum.reduceat(low, edges[:-1])[buckets]),
        finite & (high == np.maximum.reduceat(high, edges[:-1])[buckets]),
        ~finite,
    )
    firsts = []
    for rows in map(np.flatnonzero, kept):
        # The first such row of each bucket that has one.
        firsts.append(rows[np.unique(buckets[rows], return_index=True)[1]])
    return np.unique(np.concatenate([[0, len(loss) - 1], *firsts]))


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
    if width == 1:
        return loss.copy()
    starts = np.maximum(np.arange(len(loss)) - width + 1, 0)
    ends = np.arange(len(loss)) + 1
    finite = np.isfinite(loss)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, loss, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    means = (sums[ends] - sums[starts]) / (ends - starts)
    return np.where(counts[ends] - counts[starts] == ends - starts, means, np.nan)


def gap_starts(loss: np.ndarray) -> np.ndarray:
    """The indices of the first rows of each stretch without a finite loss."""
    bad = ~np.isfinite(loss)
    return np.flatnonzero(bad & ~np.concatenate([[False], bad[:-1]]))
