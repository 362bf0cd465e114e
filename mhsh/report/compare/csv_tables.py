"""curves.csv and groups.csv: the numbers of a report for other programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from mhsh.report.compare.comparison import Comparison
from mhsh.report.compare.results import Cost, Score
from mhsh.report.render.csv_file import to_csv
from mhsh.report.render.outputs import MARK
from mhsh.report.render.table import Table
from mhsh.report.runs import downsample
from mhsh.verdict.curves import AXES

CURVE_COLUMNS = ("group", "run", "seed", "split", *AXES, "loss", "smoothed_loss")
GROUP_COLUMNS = (
    "group", "seeds", "measure", "axis", "mean", "low", "high", "runs", "known", "last_above", "first_below",
    "difference", "difference_low", "difference_high", "paired", "baseline",
)  # fmt: skip


def curves_table(comparison: Comparison) -> bytes:
    """A line a row of every curve, thinned as on the page. Cells are empty where not finite."""
    return _table(CURVE_COLUMNS, _curve_rows(comparison))


def groups_table(comparison: Comparison) -> bytes:
    """A line a measure and axis of every group, with intervals and the difference to the baseline.

    `mean` is empty unless every run has a value; `known` of the `runs` have one. A target is
    reached between `last_above` and `first_below`, which are means too; `mean` is interpolated.
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
    results = comparison.results
    baseline = comparison.groups[results.baseline].name if comparison.groups else ""
    for group, scores in zip(comparison.groups, results.scores, strict=True):
        measures: list[tuple[str, str, Score]] = [(results.measure, "", scores.final), ("best loss", "", scores.best)]
        measures += [(f"final validation {name}", "", score) for name, score in scores.metrics.items()]
        measures += [("mean loss", axis, score) for axis, score in scores.mean_loss.items()]
        measures += [(f"reached loss {results.target}", axis, score) for axis, score in scores.cost_to_target.items()]
        seeds = " ".join(map(str, group.seeds))
        for name, axis, score in measures:
            estimates = []
            for estimate in (score.estimate, score.difference):
                estimates.append(_numbers((estimate.mean, estimate.low, estimate.high) if estimate else (math.nan,) * 3))
            paired = ("yes" if score.paired else "no") if score.difference else ""
            counts = (len(score.each), score.known)
            rows = _numbers((score.bounds if isinstance(score, Cost) else None) or (math.nan, math.nan))
            yield (group.name, seeds, name, axis, *estimates[0], *counts, *rows, *estimates[1], paired, baseline)


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    # The last heading is the mark of files that a later report may replace. Its cells are empty.
    return to_csv(Table([*columns, MARK], ([*row, ""] for row in rows)))


def _numbers(values: Sequence[float] | np.ndarray) -> list[float | None]:
    """Numbers, and None (an empty cell) where not finite."""
    numbers = np.asarray(values, dtype=np.float64)
    cells = numbers.astype(object)
    cells[~np.isfinite(numbers)] = None
    return cells.tolist()
