"""Every setting at its own best value of one axis: chosen on some seeds, reported on others."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from mhsh import text
from mhsh.errors import UserError
from mhsh.report.estimate import Estimate, difference, estimate, holm
from mhsh.report.sweep.cells import Sweep, SweptCell
from mhsh.report.sweep.quality import Quality, format_mean, format_number, is_numeric, quality_against
from mhsh.sweep.axes import SEEDS, SHORT_NAMES, Axis, Value
from mhsh.text import sanitize
from mhsh.verdict.words import format_list

TUNING_RULE = (
    "A setting's value is the one with the lowest mean validation loss after the last step over the choosing seeds. A value at "
    "which one of these has no finite loss is not chosen. The loss reported is the mean over the other seeds at that value: the "
    "loss of the choosing seeds is too good, because the luckiest value was taken. Trials are the choosing runs that have ended, "
    "finished or diverged. Differences are against the first setting."
)

Seeds = tuple[Value, ...]  # a value for each seed axis


@dataclasses.dataclass(frozen=True)
class Budget:
    """What choosing a setting's value cost: runs that have ended, and what they did."""

    trials: int
    tokens: int
    flops: float


@dataclasses.dataclass(frozen=True)
class Tuned:
    """One setting at its best value."""

    label: str  # printable
    budget: Budget
    value: int | float | None  # None where no value has a finite loss in every choosing run
    at_edge: bool  # no larger, or no smaller, value was tried
    choosing_loss: float | None  # its mean over the choosing seeds
    losses: Mapping[int, float]  # at that value, by the place of the reporting seed
    reported: Estimate | None  # the mean of `losses`; None where no reporting run has a finite loss
    missing: tuple[str, ...]  # the verdicts of the reporting runs without a finite loss
    runs: tuple[str, ...]  # names of the reporting cells at that value
    choosing_cells: tuple[str, ...]  # names
    is_chosen: bool  # whether all of these have ended
    against_first: Estimate | None = None


@dataclasses.dataclass(frozen=True)
class Tuning:
    """A sweep, tuned over one axis."""

    over: Axis
    by: tuple[Axis, ...]
    choosing: tuple[Seeds, ...]
    reporting: tuple[Seeds, ...]
    settings: tuple[Tuned, ...]
    sensitivity: Quality  # the loss against the axis

    @property
    def choosing_cells(self) -> tuple[str, ...]:
        """The names of all cells that choose."""
        return tuple(name for setting in self.settings for name in setting.choosing_cells)

    @property
    def verdict(self) -> str:
        """Whether every setting had the same number of trials, in one sentence."""
        trials = [setting.budget.trials for setting in self.settings]
        if len(set(trials)) == 1:
            return f"Equal tuning budget: {format_number(trials[0], 'trial')} for each of {len(trials)} settings."
        each = format_list([f"{setting.budget.trials} for {setting.label}" for setting in self.settings])
        return f"Not an equal tuning budget: trials that have ended: {each}."

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence for each setting whose value is missing, not final, or at the grid's edge."""
        name, values = self.over.name, sorted(self.over.values)
        return tuple(
            f"{setting.label}: not all choosing runs have ended; the {name} may change."
            if not setting.is_chosen
            else f"{setting.label}: no {name} has a finite loss in every choosing run."
            if setting.value is None
            else f"{setting.label}: the best {name} ({setting.value}) is at the edge of the values tried ({values[0]} to "
            f"{values[-1]}); a value beyond it may be better."
            for setting in self.settings
            if not setting.is_chosen or setting.value is None or setting.at_edge
        )


def tune(sweep: Sweep, over: str, by: Sequence[str], choose: int | None = None) -> Tuning:
    """Chooses the value of the axis `over` for every setting of the axes `by`.

    Args:
      over: the name of a numeric axis with several values.
      by: the names of all other axes but the seeds.
      choose: how many of the seeds choose, from the first on; half of them, rounded down, by
        default.

    Raises:
      UserError: an axis is not of the sweep or left out, or there are too few seeds.
    """
    axis = _find(sweep, over, "--over")
    if not is_numeric(axis) or len(axis.values) < 2:
        raise UserError(f"--over={sanitize(over)} must be an axis of two numbers or more")
    others = tuple(dict.fromkeys(_find(sweep, name, "--by") for name in by))
    if axis in others:
        raise UserError(f"--over and --by both name {sanitize(axis.name)}; what is tuned cannot also be compared")
    left = [each.name for each in sweep.axes if each not in (axis, *others) and each.path not in SEEDS]
    if left:
        raise UserError(f"the sweep also varies {sanitize(format_list(left))}; name every axis in --by")
    seeds = tuple(dict.fromkeys(cell.seeds for cell in sweep.cells))
    if len(seeds) < 2:
        raise UserError("choosing on some seeds and reporting on others takes two seeds; add the axis seed=0,1,2 to the sweep")
    choose = len(seeds) // 2 if choose is None else choose
    if not 1 <= choose < len(seeds):
        raise UserError(f"--choosing-seeds={choose} must be from 1 to {len(seeds) - 1}: the sweep has {len(seeds)} seeds")
    lines: dict[str, list[SweptCell]] = {}
    for cell in sweep.cells:
        lines.setdefault(sweep.words(cell, axis.path) or "the config", []).append(cell)
    settings = [_tuned(label, cells, axis, seeds, choose) for label, cells in lines.items()]
    first = settings[0].losses
    apart = holm(
        [difference(each.losses, first) if index and each.losses and first else None for index, each in enumerate(settings)]
    )
    return Tuning(
        axis,
        others,
        seeds[:choose],
        seeds[choose:],
        tuple(dataclasses.replace(each, against_first=against) for each, against in zip(settings, apart, strict=True)),
        quality_against(sweep, axis),
    )


def tune_all(sweep: Sweep, over: str, choose: int | None = None) -> Tuning:
    """`tune` by all axes but `over` and the seeds."""
    names = (SHORT_NAMES.get(over, over), over)
    by = [axis.path for axis in sweep.axes if axis.path not in SEEDS and axis.path not in names and axis.name not in names]
    return tune(sweep, over, by, choose)


def format_reported(setting: Tuned) -> str:
    """`2.512 (95 % interval 2.498 to 2.526, 3 seeds)`."""
    if setting.reported is None:
        return "no reporting run has a finite loss"
    return format_mean(setting.reported, format_number(setting.reported.seeds, "seed"))


def format_budget(budget: Budget) -> str:
    """`8 trials, 9.83M tokens, 4.1T FLOPs`."""
    return f"{format_number(budget.trials, 'trial')}, {text.count(budget.tokens)} tokens, {text.count(budget.flops)} FLOPs"


def _find(sweep: Sweep, name: str, flag: str) -> Axis:
    known = {key: axis for axis in sweep.axes if axis.path not in SEEDS for key in (axis.path, axis.name)}
    path = SHORT_NAMES.get(name, name)
    if path not in known:
        allowed = format_list([sanitize(axis.name) for axis in sweep.axes if axis.path not in SEEDS] or ["none"])
        raise UserError(f"{flag}={sanitize(name)} is no axis of this sweep; allowed: {allowed}")
    return known[path]


def _tuned(label: str, cells: Sequence[SweptCell], over: Axis, seeds: Sequence[Seeds], choose: int) -> Tuned:
    at = {value: {cell.seeds: cell for cell in cells if cell.plan.settings[over.path] == value} for value in over.values}
    choosing = [at[value][seed] for value in over.values for seed in seeds[:choose]]
    budget = _budget([cell for cell in choosing if cell.has_ended])
    names, is_chosen = tuple(cell.plan.name for cell in choosing), all(cell.has_ended for cell in choosing)
    means = {}
    for value in over.values:
        assert isinstance(value, int | float)
        losses = [at[value][seed].final_loss for seed in seeds[:choose]]
        finite = [loss for loss in losses if loss is not None]
        if len(finite) == len(losses):
            means[value] = math.fsum(finite) / len(finite)
    if not means:
        return Tuned(label, budget, None, False, None, {}, None, (), (), names, is_chosen)
    best = min(means, key=lambda value: means[value])
    reporting = {place: at[best][seed] for place, seed in enumerate(seeds[choose:])}
    reached = {place: loss for place, cell in reporting.items() if (loss := cell.final_loss) is not None}
    return Tuned(
        label,
        budget,
        best,
        best in (min(over.values), max(over.values)),
        means[best],
        reached,
        estimate(tuple(reached.values())) if reached else None,
        tuple(
            f"seed {' and '.join(map(str, cell.seeds))}, {cell.verdict}" for cell in reporting.values() if cell.final_loss is None
        ),
        tuple(cell.plan.name for cell in reporting.values()),
        names,
        is_chosen,
    )


def _budget(cells: Sequence[SweptCell]) -> Budget:
    done = [cell.summary for cell in cells if cell.summary is not None]
    return Budget(len(cells), int(math.fsum(each.tokens or 0 for each in done)), math.fsum(each.flops or 0 for each in done))
