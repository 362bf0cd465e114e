"""The cells of a sweep that are to be trained."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Sequence

from mhsh.errors import UserError
from mhsh.storage.files import absolute
from mhsh.sweep.axes import Axis, Value, cells_of, parents
from mhsh.sweep.folder import ENDED, FAILED, Plan, SweepFolder, Tuning
from mhsh.verdict.experiment import Experiment, load_experiment, planned_experiment
from mhsh.verdict.findings import compare
from mhsh.verdict.runs import real_path
from mhsh.verdict.tuning import field_of, tune, values_to_add


class CellSelection:
    """The cells of a sweep that are to be trained: all; or where its plan chooses, those that
    choose, and of the others those at the values that are chosen.
    """

    def __init__(self, folder: SweepFolder, says_new: bool = True) -> None:
        """With `says_new`, a value is said when it is chosen."""
        self._folder, self._says_new = folder, says_new
        self._plan: Plan | None = None  # that `_choosing` is of
        self._choosing: list[tuple[str, ...]] = []  # the choosing cells of each setting
        self._reporting: tuple[int, list[str]] = 0, []  # of so many settings whose choosing cells have ended
        self._said: set[str] = set()
        self.undecided: list[str] = []  # groups whose choosing cells have ended without a value, as one failed or lost rows

    def __call__(self, plan: Plan, ended: Collection[str]) -> list[str]:
        if plan.choosing is None:
            return [cell.name for cell in plan.cells]
        if self._plan is not plan:
            tuned = tune(planned_experiment(plan), plan.choosing.over, plan.choosing.seeds)
            self._plan, self._choosing, self._reporting = plan, [choice.choosing for choice in tuned.choices], (0, [])
        decided = sum(all(name in ended for name in names) for names in self._choosing)
        if decided != self._reporting[0]:
            planned = {cell.name for cell in plan.cells}  # the folder's plan may have grown since this one was read
            self._reporting = decided, [name for name in self._reporting_cells(plan.choosing, ended) if name in planned]
        return _add_parents(plan, [*itertools.chain(*self._choosing), *self._reporting[1]])

    def _reporting_cells(self, choosing: Tuning, ended: Collection[str]) -> list[str]:
        """The reporting cells of the settings whose value is chosen; says what is new."""
        names, self.undecided = [], []
        for group in _load_tuned(self._folder, choosing).groups:
            if group.choice is None or not group.choice.is_final:
                if group.choice is not None and all(name in ended for name in group.choice.choosing):
                    self.undecided.append(group.name)
                continue
            best = group.choice.optimum
            if self._says_new and group.name not in self._said:
                self._said.add(group.name)
                value = f"{best.rate:g}" if best else "no value trains" if group.choice.measured else "no value is chosen"
                print(f"{choosing.over} of {group.name}: {value}", flush=True)
            names += [] if best is None else [member.name for member in group.members]
        return names


def cells_left(folder: SweepFolder, plan: Plan, retry: bool = False) -> list[str]:
    """The cells that are to be trained, and have not ended; with `retry` or have failed."""
    kinds = {kind for kind in ENDED if kind != FAILED or not retry}
    ended = {cell.name for cell in plan.cells if folder.outcome(cell.name).kind in kinds}
    return [name for name in CellSelection(folder, says_new=False)(plan, ended) if name not in ended]


def values_to_try(folder: SweepFolder, choosing: Tuning) -> list[int | float]:
    """The values of the tuned field that are to be tried next, in ascending order."""
    tuned = _load_tuned(folder, choosing)
    # Without the choices these intervals hold the noise alone, not what the grid hides.
    untuned = dataclasses.replace(tuned, groups=tuple(dataclasses.replace(group, choice=None) for group in tuned.groups))
    differences = [finding.difference for finding in compare(untuned).findings if finding is not None]
    half_widths = [(each.high - each.low) / 2 for each in differences if each is not None and each.has_interval]
    plan, path = folder.read_plan(), field_of(choosing.over)
    return [value for value in values_to_add(min(half_widths, default=0.0), tuned.choices) if _is_allowed(plan, path, value)]


def _is_allowed(plan: Plan, path: str, value: Value) -> bool:
    """Whether every cell may have the value: one beyond the grid may be out of range."""
    try:
        cells_of([Axis(path, (value,)) if axis.path == path else axis for axis in plan.axes], plan.fields, lambda config: {})
    except UserError:
        return False
    return True


def _load_tuned(folder: SweepFolder, choosing: Tuning) -> Experiment:
    """The sweep as it has run, each setting at its best value. Other runs below the folder, as a
    copy of a cell, are not of the plan: their seeds would be among those that choose.
    """
    loaded, sweep = load_experiment([str(folder.path)]), real_path(absolute(folder.path))
    own = tuple(group for group in loaded.groups if group.sweep == sweep)
    return tune(dataclasses.replace(loaded, groups=own), choosing.over, choosing.seeds)


def _add_parents(plan: Plan, names: Sequence[str]) -> list[str]:
    """The names of the cells with those of their parents: each cell stands after the one whose
    first steps it has.
    """
    shorter = parents(plan.cells)
    needed: dict[str, None] = {}
    for name in names:
        line = [name]
        while line[-1] in shorter:
            line.append(shorter[line[-1]].name)
        needed |= dict.fromkeys(reversed(line))
    return list(needed)
