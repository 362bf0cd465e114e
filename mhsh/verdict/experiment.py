"""The experiment that is compared: the runs that were named, and the plans of their sweeps."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from etils import epath

from mhsh.config.fields import format_differences
from mhsh.errors import UserError
from mhsh.storage.files import absolute
from mhsh.storage.questions import exists
from mhsh.storage.run_folder import CONFIG_FILE, METRICS_FILE
from mhsh.sweep.axes import BUDGET, SEEDS, SHORT_NAMES, Axis, Value
from mhsh.sweep.folder import FAILED, WAITING, CellState, Plan, SweepFolder
from mhsh.text import format_list, sanitize
from mhsh.verdict.groups import CUT, Choice, Group, Member, PlannedCell, find_groups, names_of
from mhsh.verdict.runs import RecordedRun, distinct_names, load_runs, real_path


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The groups of the named runs and sweeps."""

    groups: tuple[Group, ...]  # in the order of their first runs
    axes: tuple[Axis, ...]  # of all sweeps, without seeds
    problems: tuple[str, ...]  # a line each
    plans: Mapping[str, Plan] = dataclasses.field(default_factory=dict)  # by the paths of sweeps named whole

    @property
    def runs(self) -> tuple[RecordedRun, ...]:
        """All runs that are drawn, group by group."""
        return tuple(run for group in self.groups for run in group.runs)

    @property
    def choices(self) -> list[Choice]:
        """How the value of every group was chosen; empty without --over."""
        return [group.choice for group in self.groups if group.choice]

    def sections(self, by: Sequence[str] = (), tuned: Mapping[str, str] | None = None) -> dict[tuple[str, ...], Experiment]:
        """The parts of the experiment that are compared each by itself: each sweep if there are
        several; and with `by`, which names some of the axes, each setting of the other axes.
        Without `by`, each budget of a sweep of shapes and budgets. The keys say which part it is:
        `("small", "budget 400")`. `tuned` has the fields whose values a part keeps together, as the
        best of them is taken there, by the paths of their sweeps. Raises UserError where `by` names
        no axis.
        """
        known = {name: axis.path for axis in self.axes for name in (axis.name, axis.path)}
        known |= {short: path for short, path in SHORT_NAMES.items() if path in known.values()}
        for name in by:
            if name not in known:
                allowed = format_list([sanitize(axis.name) for axis in self.axes] or ["none"])
                raise UserError(f"--by={sanitize(name)} is not an axis of these sweeps; allowed: {allowed}")
        sweeps = _sweep_names(self.groups)
        own_axes = [known[name] for name in by]
        if not by and BUDGET in known:
            own_axes = [axis.path for axis in self.axes if axis.path != BUDGET]
        varied = {axis.path for axis in self.axes if len(axis.values) > 1}
        parts: dict[tuple[str, ...], list[Group]] = {}
        for group in self.groups:
            words = [sweeps[group.sweep]] if len(sweeps) > 1 else []
            kept = {*own_axes, (tuned or {}).get(group.sweep)}
            others = {path: value for path, value in group.settings.items() if own_axes and path not in kept}
            words += [f"{path.split('.')[-1]} {sanitize(str(value))}" for path, value in others.items() if path in varied]
            parts.setdefault(tuple(words), []).append(group)
        return {words: self._section(groups, renamed=bool(own_axes)) for words, groups in parts.items()} or {(): self}

    def _section(self, groups: Sequence[Group], renamed: bool) -> Experiment:
        """An experiment of these groups; `renamed`: they are named by what differs among them."""
        names = names_of([group.config for group in groups]) if renamed else [group.name for group in groups]
        return dataclasses.replace(
            self, groups=tuple(dataclasses.replace(group, name=name) for group, name in zip(groups, names, strict=True))
        )


def _sweep_names(groups: Sequence[Group]) -> dict[str, str]:
    """A name for the path of each sweep and for the runs outside sweeps; no two are equal."""
    sweeps = dict.fromkeys(group.sweep for group in groups)
    paths = [path for path in sweeps if path]
    names = dict(zip(paths, distinct_names([epath.Path(path) for path in paths]), strict=True))
    outside = "runs" if "runs" not in names.values() else "other runs"
    return names | ({"": outside} if "" in sweeps else {})


def load_experiment(paths: Sequence[str | os.PathLike[str]]) -> Experiment:
    """Reads runs, sweeps and folders that hold runs.

    The plan of a sweep counts also where only some of its runs are named: the others of the same
    setting are members that were not named.
    """
    loaded = load_runs(paths)
    cells, axes, plans, problems = _read_plans(paths, [real_path(run.path) for run in loaded.runs])
    runs = {real_path(run.path): run for run in loaded.runs}
    unnamed = load_runs([path for path in cells if path not in runs and exists(epath.Path(path, CONFIG_FILE))])
    all_runs = runs | {real_path(run.path): run for run in unnamed.runs}
    # A sweep that has only its plan holds no run yet.
    empty = {cell.sweep for cell in cells.values()}
    refused = [line for line in loaded.refused if not any(line.startswith(f"{sweep} holds no run") for sweep in empty)]
    problems = [*dict.fromkeys((*refused, *unnamed.refused)), *problems]
    # The cells of a sweep come in the order of its plan, where its first run was named.
    order: dict[str, None] = {}
    for first in runs:
        sweep = cells[first].sweep if first in cells else None
        order |= dict.fromkeys([path for path, cell in cells.items() if cell.sweep == sweep] or [first])
    members = []
    for path in [*order, *(path for path in cells if path not in order)]:
        run, cell = all_runs.get(path), cells.get(path)
        if run is not None and cell is not None and run.config != cell.config:
            differing = format_differences(cell.config, run.config)
            problems.append(f"{run.path} is not the run that its sweep planned ({differing}); it is left out")
            run = None
        if run is not None and path in runs:
            problems += run.problems
        if cell is not None and cell.state.kind == FAILED:
            problems.append(f"{path} failed: {cell.state.reason}")
        planned = run or cell
        if planned is not None:
            is_named = path in runs or (cell is not None and cell.is_named)
            members.append(Member(cell.name if cell else Path(path).name, planned.config, run, is_named, cell))
            if run is not None and members[-1].state == CUT and not run.problems:
                problems.append(f"{run.path} ended at step {run.end:g}, and its last rows are lost; put {METRICS_FILE} back")
    groups, equal = find_groups(members)
    return Experiment(groups, axes, tuple(map(sanitize, (*problems, *equal))), plans)


def planned_experiment(plan: Plan) -> Experiment:
    """The experiment of a sweep of which nothing has run."""
    cells = {
        cell.name: PlannedCell(cell.name, "", cell.config, _drop_seeds(cell.settings), CellState(WAITING), True)
        for cell in plan.cells
    }
    groups, _ = find_groups([Member(name, cell.config, None, True, cell) for name, cell in cells.items()])
    return Experiment(groups, tuple(axis for axis in plan.axes if axis.path not in SEEDS), ())


def _drop_seeds(settings: Mapping[str, Value]) -> dict[str, Value]:
    return {path: value for path, value in settings.items() if path not in SEEDS}


def _read_plans(
    paths: Sequence[str | os.PathLike[str]], runs: Sequence[str]
) -> tuple[dict[str, PlannedCell], tuple[Axis, ...], dict[str, Plan], list[str]]:
    """The planned cells by the path of their run folder: all cells of the sweeps in `paths` or
    in folders of `paths`, and of the sweeps that `runs` belong to the cells with the settings of
    these runs. And their axes, the plans of the former, and a line for each plan that could not be
    read.
    """
    named = {real_path(absolute(path)) for path in paths}
    owners = [str(epath.Path(run).parent.parent) for run in runs if Path(run).parent.name == "runs"]
    cells: dict[str, PlannedCell] = {}
    axes: dict[str, Axis] = {}
    plans: dict[str, Plan] = {}
    problems: list[str] = []
    for sweep in dict.fromkeys([*named, *owners]):
        folder = SweepFolder(sweep)
        if not folder.has_plan():
            continue
        try:
            plan = folder.read_plan()
        except UserError as error:
            problems.append(str(error))
            continue
        # Who names a folder names what is in it.
        is_whole = not named.isdisjoint([sweep, *map(str, epath.Path(sweep).parents)])
        if is_whole:
            plans[sweep] = plan
        for axis in plan.axes:
            if axis.path not in SEEDS:
                known = axes[axis.path].values if axis.path in axes else ()
                axes[axis.path] = Axis(axis.path, tuple(dict.fromkeys((*known, *axis.values))))
        of_sweep = {real_path(folder.run_folder(cell.name).path): cell for cell in plan.cells}
        named_settings = [_drop_seeds(cell.settings) for path, cell in of_sweep.items() if path in runs]
        for path, cell in of_sweep.items():
            settings = _drop_seeds(cell.settings)
            if is_whole or settings in named_settings:
                cells[path] = PlannedCell(cell.name, sweep, cell.config, settings, folder.state(cell.name), is_whole)
    return cells, tuple(axes.values()), plans, problems
