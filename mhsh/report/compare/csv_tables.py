"""curves.csv and groups.csv: the numbers of a report for other programs, a value a line, and
nothing a spreadsheet would run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from mhsh.report.compare.comparison import Comparison
from mhsh.report.compare.targets import Score
from mhsh.report.render.csv_file import to_csv
from mhsh.report.render.outputs import MARK
from mhsh.report.render.table import Table
from mhsh.report.runs import downsample
from mhsh.report.runs.curves import AXES

CURVE_COLUMNS = ("group", "run", "seed", "split", *AXES, "loss", "smoothed_loss")
GROUP_COLUMNS = (
    "group", "seeds", "measure", "axis", "mean", "low", "high", "runs", "known",
    "difference", "difference_low", "difference_high", "paired", "baseline",
)  # fmt: skip


def curves_table(comparison: Comparison) -> bytes:
    """Every curve of every run, thinned as the page draws it: a line a row. An empty cell is a
    value that is not finite.
    """
    return _table(CURVE_COLUMNS, _curve_rows(comparison))


def groups_table(comparison: Comparison) -> bytes:
    """Every measure of every group with its interval, and the difference to the baseline: a line a
    measure and axis.

    `mean` is empty where not every run has a value; `known` says how many of the `runs` have.
    """
    return _table(GROUP_COLUMNS, _group_rows(comparison))


def _curve_rows(comparison: Comparison) -> Iterator[Sequence[object]]:
    for group in comparison.groups:
        for index in group.runs:
            run = comparison.runs[index]
            for split, curve in run.curves.items():
                smoothed = downsample.smooth(curve.loss) if split == "train" else curve.loss
                drawn = downsample.thin(curve.loss, comparison.drawn_points)
                columns = [_numbers(values[drawn]) for values in (*(curve.x[axis] for axis in AXES), curve.loss, smoothed)]
                names = (group.name, run.name, run.config.train.seed, split)
                for numbers in zip(*columns, strict=True):
                    yield (*names, *numbers)


def _group_rows(comparison: Comparison) -> Iterator[Sequence[object]]:
    standing = comparison.standing
    baseline = comparison.groups[standing.baseline].name if comparison.groups else ""
    for group, scores in zip(comparison.groups, standing.scores, strict=True):
        measures: list[tuple[str, str, Score]] = [(standing.measure, "", scores.final), ("best loss", "", scores.best)]
        measures += [("mean loss", axis, score) for axis, score in scores.mean_loss.items()]
        measures += [(f"reached loss {standing.target}", axis, score) for axis, score in scores.reach.items()]
        seeds = " ".join(map(str, group.seeds))
        for name, axis, score in measures:
            estimates = []
            for estimate in (score.estimate, score.against):
                estimates.append(_numbers((estimate.mean, estimate.low, estimate.high) if estimate else (math.nan,) * 3))
            paired = ("yes" if score.paired else "no") if score.against else ""
            counts = (len(score.each), score.known)
            yield (group.name, seeds, name, axis, *estimates[0], *counts, *estimates[1], paired, baseline)


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    # The last column, always empty, is the mark by which a later report knows what it may replace.
    return to_csv(Table([*columns, MARK], ([*row, ""] for row in rows)))


def _numbers(values: Sequence[float] | np.ndarray) -> list[float | None]:
    """None, an empty cell, for what is not finite."""
    numbers = np.asarray(values, dtype=np.float64)
    cells = numbers.astype(object)
    cells[~np.isfinite(numbers)] = None
    return cells.tolist()
