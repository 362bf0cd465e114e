"""What is compared: the runs that were named, what was planned of them, and their groups."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path

import numpy as np
from etils import epath
from msgspec.structs import replace

from mhsh.config.fields import flatten, format_differences
from mhsh.config.schema import Config
from mhsh.config.shapes import shape_name
from mhsh.errors import UserError
from mhsh.storage import outcome
from mhsh.storage.files import absolute
from mhsh.storage.questions import exists
from mhsh.storage.run_folder import METRICS_FILE
from mhsh.sweep.axes import BUDGET, SEEDS, SHORT_NAMES, Axis, Value
from mhsh.sweep.folder import FAILED, FINISHED, GAVE_UP, RUNNING, STOPPED, WAITING, CellState, Plan, SweepFolder
from mhsh.text import format_list, numbered, sanitize
from mhsh.verdict.estimate import Replicate
from mhsh.verdict.runs import Run, distinct_names, load_runs, real_path, with_pretraining

TRAINED = "trained"
STUCK = "on the unigram plateau"
DIVERGED = "diverged"
CUT = "without last rows"

GROUP_RULE = (
    "Runs are one group if their configs are equal in every field but the seeds, and the runs that they start from likewise. The "
    "unit of replication is the pair of train.seed and data.seed: runs of one group whose curves are equal in every digit count as "
    "one. A second run of the same config and seeds with another curve starts another group. Within a group data.seed is equal in "
    "all runs or different in each; else the group is divided."
)
OUTCOME_RULE = (
    "A run has trained if it made all its steps and left the unigram plateau, or if no entropy is recorded to judge by. "
    f"{outcome.PLATEAU_RULE} A run that failed for another reason, is not finished, was lost (or its last rows) or was not named "
    "says nothing about its config; it is counted as missing. "
)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One cell of a sweep's plan."""

    sweep: str  # the path of the sweep
    config: Config
    settings: Mapping[str, Value]  # without seeds
    state: CellState
    is_named: bool  # whether the whole sweep was named


@dataclasses.dataclass(frozen=True)
class Member:
    """One run of a group, which a sweep may have planned."""

    name: str  # of its run folder
    config: Config
    run: Run | None
    named: bool  # False: its sweep planned it, and it was not named
    cell: Cell | None = None  # None outside a sweep

    @property
    def replicate(self) -> Replicate:
        """Its two seeds."""
        return self.config.train.seed, self.config.data.seed

    @functools.cached_property
    def state(self) -> str:
        """TRAINED, STUCK or DIVERGED; else FAILED, RUNNING, STOPPED, WAITING or CUT."""
        kind, run = self.cell.state.kind if self.cell else FINISHED, self.run
        if kind == GAVE_UP or (run is not None and run.recorded("outcome") == outcome.DIVERGED):
            return DIVERGED
        if kind != FINISHED:
            return kind
        if run is None or not run.has_logged:
            return WAITING
        status = run.recorded("status")
        if status != "finished" and (run.end != self.config.train.num_steps or run.is_cut):
            return RUNNING if status == "running" else STOPPED
        if run.is_cut and run.outcome != outcome.DIVERGED:
            return CUT
        return {outcome.ON_PLATEAU: STUCK, outcome.DIVERGED: DIVERGED}.get(run.outcome, TRAINED)

    @property
    def trained(self) -> bool:
        """Whether its loss counts."""
        return self.named and self.state == TRAINED

    @property
    def untrained(self) -> bool:
        """Whether it stayed on the plateau or diverged, named or not."""
        return self.state in (STUCK, DIVERGED)


@dataclasses.dataclass(frozen=True)
class Optimum:
    """The best rate of a grid. Losses are in the unit of those given."""

    rate: float
    loss: float  # mean over the choosing seeds
    hidden: float  # how much lower it is between `rate` and its neighbours, by the OPTIMUM_RULE of tuning
    hidden_error: float  # the standard error of that; inf if there is no bound
    at_edge: bool  # no lower or no higher rate was tried


@dataclasses.dataclass(frozen=True)
class Choice:
    """How the value of one group was chosen."""

    over: str  # the field's path
    measure: str  # by which it was chosen, as in `validation loss`
    measured: Mapping[float, Mapping[Replicate, float]]  # of the choosing runs that trained, by each value that was tried
    optimum: Optimum | None  # None: at no value all choosing runs trained
    trials: int  # choosing runs that have ended
    choosing: tuple[str, ...]  # names of the choosing runs

    @property
    def highest(self) -> float | None:
        """The highest value that was tried at which all choosing runs trained; None: none."""
        every = {key for losses in self.measured.values() for key in losses}
        return max((value for value, losses in self.measured.items() if losses.keys() >= every and losses), default=None)

    @property
    def is_final(self) -> bool:
        """Whether all choosing runs have ended."""
        return self.trials == len(self.choosing)


@dataclasses.dataclass(frozen=True)
class Group:
    """The runs of one config, one a replicate."""

    name: str  # printable and unique, as in `24x1 admin`
    config: Config  # of one of its runs
    members: tuple[Member, ...]  # in the order of their replicates
    cell: Cell | None = None  # of that run; None outside a sweep
    choice: Choice | None = None  # None without --over

    @property
    def settings(self) -> Mapping[str, Value]:
        """Its values on the axes of its sweep, without seeds; empty outside a sweep."""
        return self.cell.settings if self.cell else {}

    @property
    def sweep(self) -> str:
        """The path of its sweep; empty outside a sweep."""
        return self.cell.sweep if self.cell else ""

    @property
    def hidden(self) -> tuple[float, float]:
        """How much better its measure is at values between those tried, and the standard error."""
        if self.choice is None:
            return 0.0, 0.0
        optimum = self.choice.optimum
        return (optimum.hidden, optimum.hidden_error) if optimum else (0.0, math.inf)

    @property
    def runs(self) -> list[Run]:
        """The runs that were named and have logged something."""
        return list(self.by_replicate.values())

    @property
    def by_replicate(self) -> dict[Replicate, Run]:
        """The runs that were named and have logged something, by their seeds."""
        named = {member.replicate: member.run for member in self.members if member.named}
        return {replicate: run for replicate, run in named.items() if run is not None and run.has_logged}

    @property
    def trained(self) -> list[Member]:
        """The members whose losses count."""
        return [member for member in self.members if member.trained]

    @property
    def untrained(self) -> list[Member]:
        """The members that stayed on the plateau or diverged, whether they were named or not."""
        return [member for member in self.members if member.untrained]

    @property
    def missing(self) -> list[Member]:
        """The members that say nothing about their config, or were not named."""
        return [member for member in self.members if not (member.trained or member.untrained)]


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The groups of the named runs and sweeps."""

    groups: tuple[Group, ...]  # in the order of their first runs
    axes: tuple[Axis, ...]  # of all sweeps, without seeds
    problems: tuple[str, ...]  # a line each
    plans: Mapping[str, Plan] = dataclasses.field(default_factory=dict)  # by the paths of sweeps named whole

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs that are drawn, group by group."""
        return tuple(run for group in self.groups for run in group.runs)

    @property
    def choices(self) -> list[Choice]:
        """How the value of every group was chosen; empty without --over."""
        return [group.choice for group in self.groups if group.choice]

    def sections(self, by: Sequence[str] = ()) -> dict[tuple[str, ...], Experiment]:
        """What is compared by itself: each sweep if there are several; and with `by`, some of the
        axes, each setting of the others. Without, each budget of a sweep of shapes and budgets. The
        keys say which: `("small", "budget 400")`.

        Raises:
          UserError: `by` names no axis.
        """
        known = {name: axis.path for axis in self.axes for name in (axis.name, axis.path)}
        known |= {short: path for short, path in SHORT_NAMES.items() if path in known.values()}
        for name in by:
            if name not in known:
                allowed = format_list([sanitize(axis.name) for axis in self.axes] or ["none"])
                raise UserError(f"--by={sanitize(name)} is no axis of these sweeps; allowed: {allowed}")
        sweeps = _sweep_names(self.groups)
        compared = [known[name] for name in by]
        if not by and BUDGET in known:
            compared = [axis.path for axis in self.axes if axis.path != BUDGET]
        varied = {axis.path for axis in self.axes if len(axis.values) > 1}
        parts: dict[tuple[str, ...], list[Group]] = {}
        for group in self.groups:
            words = [sweeps[group.sweep]] if len(sweeps) > 1 else []
            others = {path: value for path, value in group.settings.items() if compared and path not in compared}
            words += [f"{path.split('.')[-1]} {sanitize(str(value))}" for path, value in others.items() if path in varied]
            parts.setdefault(tuple(words), []).append(group)
        return {words: self._section(groups, renamed=bool(compared)) for words, groups in parts.items()} or {(): self}

    def _section(self, groups: Sequence[Group], renamed: bool) -> Experiment:
        """Some of the groups; `renamed`: named by what differs among these alone."""
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


def load_experiment(paths: Sequence[str | os.PathLike[str]], pretraining: bool = False) -> Experiment:
    """Reads runs, sweeps and folders that hold runs.

    The plan of a sweep counts also where only some of its runs are named: the others of the same
    setting are members that were not named. `pretraining`: whether every x-axis counts what the
    runs started from.
    """
    named = load_runs(paths)
    cells, axes, plans, problems = _planned(paths, [real_path(run.path) for run in named.runs])
    runs = {real_path(run.path): run for run in named.runs}
    beside = load_runs([path for path in cells if path not in runs and exists(epath.Path(path, "config.json"))])
    every = runs | {real_path(run.path): run for run in beside.runs}
    if pretraining:
        every = {path: with_pretraining(run) for path, run in every.items()}
    # A sweep that has only its plan holds no run yet.
    empty = {cell.sweep for cell in cells.values()}
    refused = [line for line in named.refused if not any(line.startswith(f"{sweep} holds no run") for sweep in empty)]
    problems = [*dict.fromkeys((*refused, *beside.refused)), *problems]
    # The cells of a sweep come in the order of its plan, where its first run was named.
    order: dict[str, None] = {}
    for first in runs:
        sweep = cells[first].sweep if first in cells else None
        order |= dict.fromkeys([path for path, cell in cells.items() if cell.sweep == sweep] or [first])
    members = []
    for path in [*order, *(path for path in cells if path not in order)]:
        run, cell = every.get(path), cells.get(path)
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
            members.append(Member(Path(path).name, planned.config, run, is_named, cell))
            if run is not None and members[-1].state == CUT and not run.problems:
                problems.append(f"{run.path} ended at step {run.end:g}, and its last rows are lost; put {METRICS_FILE} back")
    groups, equal = _groups(members)
    return Experiment(groups, axes, tuple(map(sanitize, (*problems, *equal))), plans)


def planned_experiment(plan: Plan) -> Experiment:
    """The experiment of a sweep of which nothing has run."""
    cells = {cell.name: Cell("", cell.config, _without_seeds(cell.settings), CellState(WAITING), True) for cell in plan.cells}
    groups, _ = _groups([Member(name, cell.config, None, True, cell) for name, cell in cells.items()])
    return Experiment(groups, tuple(axis for axis in plan.axes if axis.path not in SEEDS), ())


def _without_seeds(settings: Mapping[str, Value]) -> dict[str, Value]:
    return {path: value for path, value in settings.items() if path not in SEEDS}


def _planned(
    paths: Sequence[str | os.PathLike[str]], runs: Sequence[str]
) -> tuple[dict[str, Cell], tuple[Axis, ...], dict[str, Plan], list[str]]:
    """The planned cells by the path of their run folder: all cells of the sweeps in `paths`, and of
    the sweeps that `runs` belong to the cells with the settings of these runs. And their axes, the
    plans of the sweeps in `paths`, and a line for each plan that could not be read.
    """
    whole = {real_path(absolute(path)) for path in paths}
    owners = [str(epath.Path(run).parent.parent) for run in runs if Path(run).parent.name == "runs"]
    cells: dict[str, Cell] = {}
    axes: dict[str, Axis] = {}
    plans: dict[str, Plan] = {}
    problems: list[str] = []
    for sweep in dict.fromkeys([*whole, *owners]):
        folder = SweepFolder(sweep)
        if not folder.has_plan():
            continue
        try:
            plan = folder.read_plan()
        except UserError as error:
            problems.append(str(error))
            continue
        if sweep in whole:
            plans[sweep] = plan
        for axis in plan.axes:
            if axis.path not in SEEDS:
                known = axes[axis.path].values if axis.path in axes else ()
                axes[axis.path] = Axis(axis.path, tuple(dict.fromkeys((*known, *axis.values))))
        of_sweep = {real_path(folder.run_folder(cell.name).path): cell for cell in plan.cells}
        named = [_without_seeds(cell.settings) for path, cell in of_sweep.items() if path in runs]
        for path, cell in of_sweep.items():
            settings = _without_seeds(cell.settings)
            if sweep in whole or settings in named:
                cells[path] = Cell(sweep, cell.config, settings, folder.state(cell.name), sweep in whole)
    return cells, tuple(axes.values()), plans, problems


def _groups(members: Sequence[Member]) -> tuple[tuple[Group, ...], list[str]]:
    """The groups by GROUP_RULE, and a line for each run that another one equals."""
    lines: list[str] = []
    kept: list[tuple[Member, ...]] = []
    several = other_files([member.run for member in members if member.run is not None])
    keys = [(_key(member), tuple(sorted(several & _files(member.run))) if member.run else ()) for member in members]
    for indices in seed_groups(keys, [member.config for member in members]):
        seen: dict[bytes, Run] = {}
        different = []
        for member in (members[index] for index in indices):
            curve = _curve_bytes(member.run)
            first = seen.setdefault(curve, member.run) if member.run is not None and curve is not None else member.run
            copied = next((each.run for each in different if _are_copies(each.run, member.run)), None)
            if first is member.run and copied is not None and member.run is not None:
                lines.append(f"{member.run.path}: its batches are those of {copied.path}, of another data seed; they count as one")
            elif first is member.run:
                different.append(member)
            elif member.run is not None and first is not None:
                lines.append(f"{member.run.path}: every digit of its curves equals {first.path}; they count as one run")
        kept.append(tuple(sorted(different, key=lambda member: member.replicate)))
    configs = [members[0].config for members in kept]
    groups = zip(names_of(configs), configs, kept, (members[0].cell for members in kept), strict=True)
    return tuple(Group(*group) for group in groups), lines


def other_files(runs: Sequence[Run]) -> set[tuple[str, str, str]]:
    """Field, name and SHA-256 of the entries of users' files that are different in two runs."""
    used = set().union(*map(_files, runs))
    counts = Counter((field, name) for field, name, _ in used)
    return {entry for entry in used if counts[entry[:2]] > 1}


def _files(run: Run) -> set[tuple[str, str, str]]:
    return {(entry["field"], entry["name"], entry["sha256"]) for entry in run.record.get("entries", [])}


def _key(member: Member) -> Hashable:
    """What is equal in a group: the configs of the run and of those that it started from, without
    seeds. Outside a sweep, the folder that it started from does not matter: every seed may have its
    own.
    """
    parents = member.run.lineage if member.run and member.cell is None else ()
    if not parents:
        return (member.cell.sweep if member.cell else "", without_seeds(member.config))
    phases = [(member.config, member.config.train.num_steps), *((parent.config, parent.step) for parent in parents)]
    return tuple(
        replace(each, train=replace(each.train, start_from="", num_steps=steps))
        for each, steps in ((without_seeds(config), steps) for config, steps in phases)
    )


def seed_groups(alike: Sequence[Hashable], configs: Sequence[Config]) -> list[list[int]]:
    """The indices of the runs by GROUP_RULE, in the order of each group's first run.

    Args:
      alike: of each run, what is equal in a group, without seeds.
      configs: of each run, for its seeds.
    """
    # The first runs of each config and seed apart from the second ones.
    rounds: dict[Hashable, list[int]] = {}
    seen: Counter[Hashable] = Counter()
    for index, (key, config) in enumerate(zip(alike, configs, strict=True)):
        seeds = (key, config.train.seed, config.data.seed)
        rounds.setdefault((key, seen[seeds]), []).append(index)
        seen[seeds] += 1
    groups: list[list[int]] = []
    for indices in rounds.values():
        by_data_seed: dict[int, list[int]] = {}
        for index in indices:
            by_data_seed.setdefault(configs[index].data.seed, []).append(index)
        train_seeds = {configs[index].train.seed for index in indices}
        groups += [indices] if len(by_data_seed) == len(train_seeds) == len(indices) else by_data_seed.values()
    return sorted(groups)


def without_seeds(config: Config) -> Config:
    """The config with both seeds 0."""
    return replace(config, train=replace(config.train, seed=0), data=replace(config.data, seed=0))


def _curve_bytes(run: Run | None) -> bytes | None:
    """The steps and losses of a run; None if fewer than two losses are finite: these may be equal
    by chance.
    """
    curves = run.curves.values() if run is not None else ()
    if sum(int(np.isfinite(curve.loss).sum()) for curve in curves) < 2:
        return None
    return b"|".join(values.tobytes() for curve in curves for values in (curve.x["step"], curve.loss))


def _are_copies(one: Run | None, other: Run | None) -> bool:
    """Whether two runs of different data seeds have equal batches at the steps that both logged:
    one is a copy of the other, with its seed edited.
    """
    if one is None or other is None or one.config.data.seed == other.config.data.seed:
        return False
    both, ours, theirs = np.intersect1d(one.batches["step"], other.batches["step"], return_indices=True)
    return len(both) > 1 and bool((one.batches["checksum"][ours] == other.batches["checksum"][theirs]).all())


def names_of(configs: Sequence[Config], without: Sequence[str] = ()) -> list[str]:
    """A name for each group by its config: `24x1 admin` or `6-6x8 post_ln`, with the fields in
    which groups of that name differ, but for those of `without`; else with a number.
    """
    bases = [f"{shape_name(config.model)} {config.model.residual}" for config in configs]
    flat = [flatten(config) for config in configs]
    names = []
    for base, own in zip(bases, flat, strict=True):
        alike = [each for name, each in zip(bases, flat, strict=True) if name == base]
        fields = [field for field in own if field not in (*without, *SEEDS)]
        differing = [field for field in fields if any(each.get(field) != own[field] for each in alike)]
        names.append(sanitize(", ".join([base, *(f"{field.split('.')[1]} {own[field]}" for field in differing)])))
    return numbered(names)
