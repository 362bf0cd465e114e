"""Groups of runs that differ only in their seeds: the mean curve on every axis, and its band."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from mhsh.config.schema import Config
from mhsh.config.shapes import shape_name
from mhsh.report.estimate import mean_band
from mhsh.report.runs.downsample import smooth
from mhsh.text import sanitize
from mhsh.verdict.curves import AXES, SPLITS, Curve
from mhsh.verdict.runs import Run
from mhsh.verdict.seed_groups import seed_groups, without_seeds

BAND_POINTS = 500  # of one band

BAND_RULE = (
    "A group's curve is the mean of its runs' curves (training is smoothed first), interpolated linearly between logged rows, "
    "from the latest first row to the earliest last row, with the 95 % interval of the mean. Where a run has no finite loss, the "
    "group has a gap."
)


@dataclasses.dataclass(frozen=True)
class Band:
    """The mean loss of a group and its 95 % interval on one x-axis; at most BAND_POINTS values."""

    x: np.ndarray  # ascending
    mean: np.ndarray  # nats per predicted token; nan: a gap
    low: np.ndarray  # nan where there is no mean, and everywhere where there is but one run
    high: np.ndarray


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs of one config with different seeds, by GROUP_RULE."""

    name: str  # sanitized and unique
    runs: tuple[int, ...]  # their indices in the comparison
    seeds: tuple[int, ...]  # train.seed of each
    bands: Mapping[str, Mapping[str, Band]]  # by split, then by axis; empty where the runs share no range


def group_runs(runs: Sequence[Run]) -> tuple[Group, ...]:
    """The groups, in the order of their first runs."""
    members = seed_groups([_without_seeds_of_all(run) for run in runs], [run.config for run in runs])
    names = _names([[runs[index] for index in group] for group in members])
    return tuple(
        Group(
            name,
            tuple(group),
            tuple(runs[index].config.train.seed for index in group),
            {split: bands([runs[index].curves[split] for index in group], split == "train") for split in SPLITS},
        )
        for name, group in zip(names, members, strict=True)
    )


def bands(curves: Sequence[Curve], smoothed: bool) -> dict[str, Band]:
    """The Band of at least one curve on every axis, by BAND_RULE."""
    losses = [smooth(curve.loss) if smoothed else curve.loss for curve in curves]
    return {axis: _band([_placed(curve.x[axis], loss) for curve, loss in zip(curves, losses, strict=True)]) for axis in AXES}


def _band(placed: Sequence[tuple[np.ndarray, np.ndarray]]) -> Band:
    if not all(len(x) for x, _ in placed):
        return Band(*(np.array([]),) * 4)
    first, last = max(x[0] for x, _ in placed), min(x[-1] for x, _ in placed)
    # Thinned before they are joined: sorting all rows of many runs is slow.
    grid = np.unique(np.concatenate([_thinned(x[(x >= first) & (x <= last)]) for x, _ in placed]))
    grid = _thinned(grid)
    mean, low, high = mean_band(np.array([np.interp(grid, x, loss) for x, loss in placed]))
    return Band(grid, mean, low, high)


def _thinned(x: np.ndarray) -> np.ndarray:
    return x if len(x) <= BAND_POINTS else x[np.linspace(0, len(x) - 1, BAND_POINTS).round().astype(int)]


def _placed(x: np.ndarray, loss: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x and loss. A row without x is placed between its neighbours, as a gap."""
    known = np.isfinite(x)
    if known.all() or not known.any():
        return x[known], loss[known]
    return np.interp(np.arange(len(x)), np.flatnonzero(known), x[known]), np.where(known, loss, np.nan)


def _without_seeds_of_all(run: Run) -> tuple[Config, ...]:
    """The configs of the run and of those that it started from, without their seeds. Where those
    are known, the folder that it started from does not matter: every seed may have its own.
    """
    parents = run.lineage
    recorded = [parent.config for parent in parents if parent.config is not None]
    if not parents or len(recorded) < len(parents):
        return (without_seeds(run.config),)
    configs = [without_seeds(config) for config in (run.config, *recorded)]
    steps = [run.config.train.num_steps, *(parent.step for parent in parents)]
    return tuple(
        replace(config, train=replace(config.train, start_from="", num_steps=step))
        for config, step in zip(configs, steps, strict=True)
    )


def _names(groups: Sequence[Sequence[Run]]) -> list[str]:
    shown: list[str] = []
    for runs in groups:
        text = runs[0].name if len(runs) == 1 else _common_name(runs)
        number = next(n for n in range(1, len(groups) + 1) if (text if n == 1 else f"{text} ({n})") not in shown)
        shown.append(text if number == 1 else f"{text} ({number})")
    return shown


def _common_name(runs: Sequence[Run]) -> str:
    """The common start of the runs' names without what introduces the seed, else their common end,
    else the shape.
    """
    names = [run.name for run in runs]
    start = _common_start(names)
    if any(name[len(start) :][:1].isdigit() for name in names):
        start = start.rstrip("0123456789")  # seeds 10 and 11 have a digit in common
    start = re.sub(r"(^|[^0-9A-Za-z])(seed|s)?[^0-9A-Za-z]*$", "", start)
    end = _common_start([name[::-1] for name in names])[::-1]
    parents = {str(run.path.parent.name) for run in runs}
    if not start and len(parents) == 1 and all(re.fullmatch(r"(seed|s)?[^0-9A-Za-z]*[0-9]+", name) for name in names):
        return sanitize(parents.pop())
    model = runs[0].config.model
    return start or re.sub(r"^[^A-Za-z]*/", "", end) or f"{shape_name(model)} {model.residual}"


def _common_start(texts: Sequence[str]) -> str:
    return "".join(column[0] for column in itertools.takewhile(lambda column: len(set(column)) == 1, zip(*texts, strict=False)))
