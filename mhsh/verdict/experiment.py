"""What is compared: the runs that were named, what was planned of them, and their groups."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from etils import epath
from msgspec.structs import replace

from mhsh import outcome
from mhsh.config.fields import flatten, format_differences
from mhsh.config.schema import Config
from mhsh.config.shapes import shape_name
from mhsh.errors import UserError
from mhsh.files import absolute, is_remote
from mhsh.sweep.axes import SEEDS, SHORT_NAMES, Axis, Value
from mhsh.sweep.folder import FAILED, FINISHED, GAVE_UP, RUNNING, STOPPED, WAITING, CellState, Plan, PlannedCell, SweepFolder
from mhsh.text import sanitize
from mhsh.verdict.runs import Run, distinct_names, load_runs, with_pretraining
from mhsh.verdict.seed_groups import seed_groups, without_seeds
from mhsh.verdict.summary import Summary, summarize
from mhsh.verdict.words import format_list

TRAINED = "trained"
STUCK = "on the unigram plateau"
DIVERGED = "diverged"

GROUP_RULE = (
    "Runs are one group if their configs are equal in every field but the seeds, and the runs that they start from likewise. The "
    "unit of replication is the pair of train.seed and data.seed: runs of one group whose curves are equal in every digit count as "
    "one. A second run of the same config and seeds with another curve starts another group. Within a group data.seed is equal in "
    "all runs or different in each; else the group is divided."
)
OUTCOME_RULE = (
    "A run has trained if it made all its steps and left the unigram plateau, or if no entropy is recorded to judge by. "
    f"{outcome.PLATEAU_RULE} A run that failed for another reason, is not finished, was lost or was not named says nothing about "
    "its config; it is counted as missing. "
)

Replicate = tuple[int, int]  # train.seed and data.seed


@dataclasses.dataclass(frozen=True)
class Member:
    """One planned run of a group."""

    replicate: Replicate
    name: str  # of its run folder
    state: str  # TRAINED, STUCK or DIVERGED; else FAILED, RUNNING, STOPPED or `not run`
    run: Run | None  # None if nothing was logged
    summary: Summary | None
    named: bool  # False: its sweep planned it, and it was not named

    @property
    def trained(self) -> bool:
        """Whether its loss counts."""
        return self.named and self.state == TRAINED


@dataclasses.dataclass(frozen=True)
class Group:
    """The planned runs of one config, one a replicate."""

    name: str  # printable and unique, as in `24x1 admin`
    config: Config  # of its first member
    members: tuple[Member, ...]  # in the order of their replicates
    settings: Mapping[str, Value]  # its values on the axes of its sweep, without seeds; empty outside a sweep
    sweep: str  # the path of its sweep; empty outside a sweep

    @property
    def runs(self) -> list[Run]:
        """The runs that were named and have logged something."""
        return list(self.by_replicate.values())

    @property
    def by_replicate(self) -> dict[Replicate, Run]:
        """The runs that were named and have logged something."""
        return {member.replicate: member.run for member in self.members if member.named and member.run is not None}

    @property
    def trained(self) -> list[Member]:
        """The members whose losses count."""
        return [member for member in self.members if member.trained]

    @property
    def untrained(self) -> list[Member]:
        """The members that stayed on the plateau or diverged, whether they were named or not."""
        return [member for member in self.members if member.state in (STUCK, DIVERGED)]

    @property
    def missing(self) -> list[Member]:
        """The members that say nothing about their config, or were not named."""
        return [member for member in self.members if not member.trained and member.state not in (STUCK, DIVERGED)]


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The groups of the named runs and sweeps."""

    groups: tuple[Group, ...]  # in the order of their first runs
    axes: tuple[Axis, ...]  # of all sweeps, without seeds
    problems: tuple[str, ...]  # a line each

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs that are drawn, group by group."""
        return tuple(run for group in self.groups for run in group.runs)

    def sections(self, by: Sequence[str] = ()) -> dict[str, Experiment]:
        """What is compared by itself, by name: each sweep if there are several; and with `by`, some
        of the axes, each setting of the others.

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
        varied = {axis.path for axis in self.axes if len(axis.values) > 1}
        parts: dict[str, list[Group]] = {}
        for group in self.groups:
            words = [sweeps[group.sweep]] if len(sweeps) > 1 else []
            others = {path: value for path, value in group.settings.items() if by and path not in compared}
            words += [f"{path.split('.')[-1]} {sanitize(str(value))}" for path, value in others.items() if path in varied]
            parts.setdefault(", ".join(words), []).append(group)
        return {name: dataclasses.replace(self, groups=tuple(groups)) for name, groups in parts.items()} or {"": self}


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
    read = (lambda folders: with_pretraining(load_runs(folders))) if pretraining else load_runs
    named = read(paths)
    runs = {_real(run.path): run for run in named.runs}
    cells, axes, problems = _planned(paths, list(runs))
    beside = [path for path in cells if path not in runs and epath.Path(path).joinpath("config.json").exists()]
    others = read(beside)
    everything = runs | {_real(run.path): run for run in others.runs}
    # A sweep that has only its plan holds no run yet.
    empty = {cell.sweep for cell in cells.values()}
    refused = [line for line in named.refused if not any(line.startswith(f"{sweep} holds no run") for sweep in empty)]
    problems = [*refused, *others.refused, *problems]
    entries = []
    # The cells of a sweep come in the order of its plan, where its first run was named.
    order = dict.fromkeys(path for first in runs for path in (_of_one_sweep(first, cells) or [first]))
    for path in [*order, *(path for path in cells if path not in order)]:
        run, cell = everything.get(path), cells.get(path)
        if run is not None and cell is not None and run.config != cell.config:
            differing = format_differences(cell.config, run.config)
            problems.append(f"{run.path} is not the run that its sweep planned ({differing}); it is left out")
            run = None
        if run is None and cell is None:
            continue
        if path in runs and run is not None:
            problems += run.problems
        if cell is not None and cell.state.kind == FAILED:
            problems.append(f"{path} failed: {cell.state.reason}")
        entries.append(_Entry(Path(path).name, run, cell, path in runs or (cell is not None and cell.is_named)))
    groups, equal = _groups(entries)
    return Experiment(groups, axes, tuple(sanitize(line) for line in (*problems, *equal)))


def planned_experiment(plan: Plan) -> Experiment:
    """The experiment of a sweep of which nothing has run."""
    entries = []
    for cell in plan.cells:
        entries.append(_Entry(cell.name, None, _Cell("", cell.config, _settings(cell), CellState(WAITING), True), True))
    groups, _ = _groups(entries)
    return Experiment(groups, tuple(axis for axis in plan.axes if axis.path not in SEEDS), ())


def _settings(cell: PlannedCell) -> dict[str, Value]:
    """The settings of a cell without its seeds."""
    return {path: value for path, value in cell.settings.items() if path not in SEEDS}


def replicate_words(members: Iterable[Member]) -> str:
    """`seeds 0, 1 and 4`; with data seeds where these differ from the training seeds."""
    pairs = [member.replicate for member in members]
    if all(one == other for one, other in pairs) or len({other for _, other in pairs}) == 1:
        return f"{'seed' if len(pairs) == 1 else 'seeds'} {format_list([str(one) for one, _ in pairs])}"
    return format_list([f"seed {one} with data seed {other}" for one, other in pairs])


@dataclasses.dataclass(frozen=True)
class _Cell:
    """One cell of a sweep's plan."""

    sweep: str
    config: Config
    settings: Mapping[str, Value]  # without seeds
    state: CellState
    is_named: bool  # whether the whole sweep was named


@dataclasses.dataclass(frozen=True)
class _Entry:
    """A run, a planned cell, or both."""

    name: str  # of the run folder
    run: Run | None
    cell: _Cell | None
    named: bool

    @property
    def config(self) -> Config:
        if self.run is not None:
            return self.run.config
        assert self.cell is not None
        return self.cell.config


def _planned(paths: Sequence[str | os.PathLike[str]], runs: Sequence[str]) -> tuple[dict[str, _Cell], tuple[Axis, ...], list[str]]:
    """The planned cells by the path of their run folder: all cells of the sweeps in `paths`, and of
    the sweeps that `runs` belong to the cells with the settings of these runs.
    """
    whole = {_real(absolute(path)) for path in paths}
    owners = [str(Path(run).parent.parent) for run in runs if Path(run).parent.name == "runs"]
    cells: dict[str, _Cell] = {}
    axes: dict[str, Axis] = {}
    problems: list[str] = []
    for sweep in dict.fromkeys([*whole, *owners]):
        if is_remote(sweep) or not epath.Path(sweep, "plan.json").exists():
            continue
        folder = SweepFolder(sweep)
        try:
            plan = folder.read_plan()
        except UserError as error:
            problems.append(str(error))
            continue
        axes |= {axis.path: axis for axis in plan.axes if axis.path not in SEEDS}
        of_sweep = {_real(folder.run_folder(cell.name).path): cell for cell in plan.cells}
        named = [_settings(cell) for path, cell in of_sweep.items() if path in runs]
        for path, cell in of_sweep.items():
            settings = _settings(cell)
            if sweep in whole or settings in named:
                cells[path] = _Cell(sweep, cell.config, settings, folder.state(cell.name), sweep in whole)
    return cells, tuple(axes.values()), problems


def _of_one_sweep(path: str, cells: Mapping[str, _Cell]) -> list[str]:
    """The cells of the sweep that a run belongs to, in its order; empty for another run."""
    return [other for other, cell in cells.items() if path in cells and cell.sweep == cells[path].sweep]


def _real(path: str | os.PathLike[str]) -> str:
    return str(path) if is_remote(path) else os.path.realpath(path)


def _groups(entries: Sequence[_Entry]) -> tuple[tuple[Group, ...], list[str]]:
    """The groups by GROUP_RULE, and a line for each run that another one equals."""
    keyed = [(_key(entry), entry) for entry in entries]
    places = seed_groups([key for key, _ in keyed], [entry.config for entry in entries])
    lines: list[str] = []
    kept: list[list[_Entry]] = []
    for indices in places:
        seen: dict[bytes, Run] = {}
        members = []
        for entry in (entries[index] for index in indices):
            curve = _curve_bytes(entry.run)
            if entry.run is not None and curve is not None:
                first = seen.setdefault(curve, entry.run)
                if first is not entry.run:
                    lines.append(f"{entry.run.path}: every digit of its curves equals {first.path}; they count as one run")
                    continue
            members.append(entry)
        kept.append(members)
    names = names_of([members[0].config for members in kept])
    return tuple(_group(name, members) for name, members in zip(names, kept, strict=True)), lines


def _group(name: str, entries: Sequence[_Entry]) -> Group:
    members = sorted((_member(entry) for entry in entries), key=lambda member: member.replicate)
    cell = entries[0].cell
    return Group(name, entries[0].config, tuple(members), cell.settings if cell else {}, cell.sweep if cell else "")


def _member(entry: _Entry) -> Member:
    config, run = entry.config, entry.run
    replicate = (config.train.seed, config.data.seed)
    drawn = run if run is not None and run.drawable else None
    summary = summarize(drawn) if drawn else None
    return Member(replicate, entry.name, _state(entry, summary), drawn, summary, entry.named)


def _state(entry: _Entry, summary: Summary | None) -> str:
    kind = entry.cell.state.kind if entry.cell else None
    if kind == GAVE_UP or (entry.run is not None and entry.run.recorded("outcome") == outcome.DIVERGED):
        return DIVERGED
    if kind is not None and kind != FINISHED:
        return kind
    if summary is None:
        return WAITING
    ended = summary.status == "finished" or summary.last_step == entry.config.train.num_steps
    if not ended:
        return RUNNING if summary.status == "running" else STOPPED
    return {outcome.ON_PLATEAU: STUCK, outcome.DIVERGED: DIVERGED}.get(summary.outcome, TRAINED)


def _key(entry: _Entry) -> Hashable:
    """What is equal in a group: the configs of the run and of those that it started from, without
    seeds. Where those are known, the folder that it started from does not matter: every seed may
    have its own.
    """
    config = without_seeds(entry.config)
    parents = entry.run.lineage if entry.run else ()
    recorded = [parent.config for parent in parents if parent.config is not None]
    sweep = entry.cell.sweep if entry.cell else ""
    if entry.cell is not None or not parents or len(recorded) < len(parents):
        return (sweep, config)
    configs = [config, *map(without_seeds, recorded)]
    steps = [entry.config.train.num_steps, *(parent.step for parent in parents)]
    return (
        sweep,
        *(
            replace(each, train=replace(each.train, start_from="", num_steps=step))
            for each, step in zip(configs, steps, strict=True)
        ),
    )


def _curve_bytes(run: Run | None) -> bytes | None:
    """The steps and losses of a run; None if fewer than two losses are finite: these may be equal
    by chance.
    """
    curves = run.curves.values() if run is not None else ()
    if sum(int(np.isfinite(curve.loss).sum()) for curve in curves) < 2:
        return None
    return b"|".join(values.tobytes() for curve in curves for values in (curve.x["step"], curve.loss))


def names_of(configs: Sequence[Config], without: Sequence[str] = ()) -> list[str]:
    """A name for each group by its config: `24x1 admin`, with the fields in which groups of that
    name differ, but for those of `without`; else with a number.
    """
    bases, flat = [group_name(config) for config in configs], [flatten(config) for config in configs]
    names: list[str] = []
    for base, own in zip(bases, flat, strict=True):
        alike = [each for name, each in zip(bases, flat, strict=True) if name == base]
        fields = [field for field in own if field not in (*without, *SEEDS)]
        differing = [field for field in fields if any(each.get(field) != own[field] for each in alike)]
        name = sanitize(", ".join([base, *(f"{field.split('.')[1]} {own[field]}" for field in differing)]))
        number = next(n for n in range(1, len(configs) + 1) if (name if n == 1 else f"{name} ({n})") not in names)
        names.append(name if number == 1 else f"{name} ({number})")
    return names


def group_name(config: Config) -> str:
    """Layers x heads a layer and the residual scheme, as in `24x1 admin` or `6-6x8 post_ln`."""
    return f"{shape_name(config.model)} {config.model.residual}"
