"""The groups of runs that are compared: their members, what is known of them, and their names."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from mhsh.config.fields import flatten
from mhsh.config.schema import Config
from mhsh.config.shapes import shape_name
from mhsh.storage import outcome
from mhsh.storage.run_record import FINISHED, RUNNING, STOPPED
from mhsh.sweep.axes import SEEDS, Value
from mhsh.sweep.folder import GAVE_UP, WAITING, CellState
from mhsh.text import number_duplicates, sanitize
from mhsh.verdict.estimate import Replicate
from mhsh.verdict.runs import RecordedRun

TRAINED = "trained"
STUCK, DIVERGED = outcome.ON_PLATEAU, outcome.DIVERGED
CUT = "without last rows"

GROUP_RULE = (
    "Runs are one group if their configs, and those of the runs that they start from, are equal in every field but the seeds, and "
    "they began with the same imported checkpoint, if any. The unit of replication is the pair of train.seed and data.seed: runs "
    "of one group whose curves are equal in every digit count as one, also where one lacks the end, and so do copies of a sweep. A "
    "second run of the same seeds with another curve starts another group. data.seed is equal in all runs of a group or different "
    "in each; else the group is divided."
)
OUTCOME_RULE = (
    "A run has trained if it made all its steps and left the unigram plateau, or if no entropy is recorded to judge by. "
    f"{outcome.PLATEAU_RULE} A run that failed for another reason, is not finished, was lost (or its last rows) or was not named "
    "says nothing about its config; it is counted as missing. "
)


@dataclasses.dataclass(frozen=True)
class PlannedCell:
    """One cell of a sweep's plan."""

    name: str
    sweep: str  # the path of the sweep
    config: Config
    settings: Mapping[str, Value]  # without seeds
    state: CellState
    is_named: bool  # whether the whole sweep was named


@dataclasses.dataclass(frozen=True)
class Member:
    """One run of a group, which a sweep may have planned."""

    name: str  # of its cell, also where that is a link; outside a sweep of its run folder
    config: Config
    run: RecordedRun | None
    is_named: bool  # False: its sweep planned it, and it was not named
    cell: PlannedCell | None = None  # None outside a sweep

    @property
    def replicate(self) -> Replicate:
        """Its two seeds."""
        return self.config.train.seed, self.config.data.seed

    @functools.cached_property
    def state(self) -> str:
        """TRAINED, STUCK or DIVERGED; else FAILED, RUNNING, STOPPED, WAITING or CUT."""
        kind, run = self.cell.state.kind if self.cell else FINISHED, self.run
        if kind == GAVE_UP or (run is not None and run.recorded("outcome") == DIVERGED):
            return DIVERGED
        if kind != FINISHED:
            return kind
        if run is None or not run.has_logged:
            return WAITING
        status = run.status
        if status != FINISHED and (run.end != self.config.train.num_steps or run.is_cut):
            return RUNNING if status == RUNNING else STOPPED
        if run.is_cut and run.outcome != DIVERGED:
            return CUT
        return run.outcome if run.outcome in (STUCK, DIVERGED) else TRAINED

    @property
    def is_trained(self) -> bool:
        """Whether its loss counts."""
        return self.is_named and self.state == TRAINED

    @property
    def is_untrained(self) -> bool:
        """Whether it stayed on the plateau or diverged, named or not."""
        return self.state in (STUCK, DIVERGED)


@dataclasses.dataclass(frozen=True)
class Optimum:
    """The best rate of a grid. Losses are in the unit of those given."""

    rate: float
    loss: float  # mean over the choosing seeds
    hidden_gain: float  # how much lower it is between `rate` and its neighbours, by the OPTIMUM_RULE of tuning
    hidden_error: float  # the standard error of that; inf: without a bound
    at_edge: bool  # no lower or no higher rate was tried


@dataclasses.dataclass(frozen=True)
class Choice:
    """How the value of one group was chosen."""

    over: str  # the field's path
    measure: str  # by which it was chosen, as in `validation loss`
    measured: Mapping[float, Mapping[Replicate, float]]  # of the choosing runs, by each value that was tried; nan: did not train
    optimum: Optimum | None  # None: at no value all choosing runs trained
    trials: int  # choosing runs that have ended
    choosing: tuple[str, ...]  # names of the choosing runs
    values: tuple[float, ...]  # all that there are, tried or not

    @property
    def highest_trained(self) -> float | None:
        """The highest value that was tried at which all choosing runs trained; None: none."""
        return max((value for value, losses in self.measured.items() if all(map(math.isfinite, losses.values()))), default=None)

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
    cell: PlannedCell | None = None  # of that run; None outside a sweep
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
    def hidden_gain(self) -> tuple[float, float]:
        """How much better its measure is at values between those tried, and the standard error."""
        if self.choice is None:
            return 0.0, 0.0
        optimum = self.choice.optimum
        return (optimum.hidden_gain, optimum.hidden_error) if optimum else (0.0, math.inf)

    @property
    def runs(self) -> list[RecordedRun]:
        """The runs that were named and have logged something."""
        return list(self.runs_by_replicate.values())

    @property
    def runs_by_replicate(self) -> dict[Replicate, RecordedRun]:
        """The runs that were named and have logged something, by their seeds."""
        runs = {member.replicate: member.run for member in self.members if member.is_named}
        return {replicate: run for replicate, run in runs.items() if run is not None and run.has_logged}

    @property
    def trained_members(self) -> list[Member]:
        """The members whose losses count."""
        return [member for member in self.members if member.is_trained]

    @property
    def trained_runs(self) -> dict[Replicate, RecordedRun]:
        """The runs whose losses count, by their seeds."""
        return {member.replicate: member.run for member in self.trained_members if member.run is not None}

    @property
    def untrained_members(self) -> list[Member]:
        """The members that stayed on the plateau or diverged, whether they were named or not."""
        return [member for member in self.members if member.is_untrained]

    @property
    def missing_members(self) -> list[Member]:
        """The members that say nothing about their config, or were not named."""
        return [member for member in self.members if not (member.is_trained or member.is_untrained)]


def find_groups(members: Sequence[Member]) -> tuple[tuple[Group, ...], list[str]]:
    """The groups by GROUP_RULE, and a line for each run and each sweep that another one equals."""
    copied = _copied_sweeps(members)
    lines = [f"{sweep}: all its runs are runs of {other}; they count once" for sweep, other in copied.items()]
    members = [member for member in members if member.cell is None or member.cell.sweep not in copied]
    several = differing_files([member.run for member in members if member.run is not None])
    keys = [(_group_key(member), tuple(sorted(several & _entry_keys(member.run))) if member.run else ()) for member in members]
    reasons = _duplicate_reasons([member.run for member in members], keys)
    lines += reasons.values()
    keys = [key for index, key in enumerate(keys) if index not in reasons]
    members = [member for index, member in enumerate(members) if index not in reasons]
    grouped = group_by_seeds(keys, [member.config for member in members])
    groups = [tuple(sorted((members[index] for index in indices), key=lambda member: member.replicate)) for indices in grouped]
    configs = [members[0].config for members in groups]
    fields = zip(names_of(configs), configs, groups, (members[0].cell for members in groups), strict=True)
    return tuple(Group(*each) for each in fields), lines


def differing_files(runs: Sequence[RecordedRun]) -> set[tuple[str, str, str]]:
    """Field, name and SHA-256 of the entries of users' files that are different in two runs."""
    used = set().union(*map(_entry_keys, runs))
    counts = Counter((field, name) for field, name, _ in used)
    return {entry for entry in used if counts[entry[:2]] > 1}


def _entry_keys(run: RecordedRun) -> set[tuple[str, str, str]]:
    return {(entry["field"], entry["name"], entry["sha256"]) for entry in run.record.get("entries", [])}


def _group_key(member: Member) -> Hashable:
    """The key that is equal in a group: the configs of the run and of those that it started from,
    without seeds, and the checkpoints that they were imported from. Outside a sweep, the folder
    that it started from does not matter: every seed may have its own.
    """
    parents = member.run.lineage if member.run and member.cell is None else ()
    began = [each.imported for each in (member.run, *parents) if each and each.imported]
    if not parents:
        return (member.cell.sweep if member.cell else "", reset_seeds(member.config), *began)
    phases = [(member.config, member.config.train.num_steps), *((parent.config, parent.step) for parent in parents)]
    configs = (
        replace(each, train=replace(each.train, start_from="", num_steps=steps))
        for each, steps in ((reset_seeds(config), steps) for config, steps in phases)
    )
    return (*configs, *began)


def group_by_seeds(keys: Sequence[Hashable], configs: Sequence[Config]) -> list[list[int]]:
    """The indices of the runs by GROUP_RULE, in the order of each group's first run.

    Args:
      keys: of each run, what is equal in a group, without seeds.
      configs: of each run, for its seeds.
    """
    # The first runs of each config and seed apart from the second ones.
    rounds: dict[Hashable, list[int]] = {}
    seen: Counter[Hashable] = Counter()
    for index, (key, config) in enumerate(zip(keys, configs, strict=True)):
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


def reset_seeds(config: Config) -> Config:
    """The config with both seeds 0."""
    return replace(config, train=replace(config.train, seed=0), data=replace(config.data, seed=0))


def _duplicate_reasons(runs: Sequence[RecordedRun | None], keys: Sequence[Hashable]) -> dict[int, str]:
    """Why a run and another one of its key count as one, by the index of each that does not count.
    The longest counts: a copy may lack the last rows.
    """
    reasons: dict[int, str] = {}
    counted: dict[Hashable, list[RecordedRun]] = {}
    logged = [(index, run) for index, run in enumerate(runs) if run is not None]
    for index, run in sorted(logged, key=lambda pair: -sum(map(len, pair[1].curves.values()))):
        others = counted.setdefault(keys[index], [])
        if reason := _duplicate_reason(run, others):
            reasons[index] = reason
        else:
            others.append(run)
    return reasons


def _duplicate_reason(run: RecordedRun, others: Sequence[RecordedRun]) -> str:
    """Why a run and one of the others count as one; empty where they do not."""
    for other in others:
        if _is_part(run, other):
            return f"{run.path}: every digit of its curves is in those of {other.path}; they count as one run"
    for other in others:
        if _are_copies(other, run):
            return f"{run.path}: its batches are those of {other.path}, of another data seed; they count as one"
    return ""


def _copied_sweeps(members: Sequence[Member]) -> dict[str, str]:
    """The sweeps that are copies of another, also of when that had fewer rows or runs, and of
    which. Two sweeps that trained the same cells took other seconds.
    """
    sweeps: dict[str, dict[Config, RecordedRun]] = {}
    for member in members:
        if member.cell is not None and member.run is not None and member.run.has_logged:
            sweeps.setdefault(member.cell.sweep, {})[member.config] = member.run
    copied: dict[str, str] = {}
    for other, one in itertools.permutations(sweeps, 2):
        pairs = [(run, sweeps[other].get(config)) for config, run in sweeps[one].items()]
        if not copied.keys() & {one, other} and all(whole and _is_part(run, whole, ("step", "seconds")) for run, whole in pairs):
            copied[one] = other
    return copied


def _is_part(run: RecordedRun, other: RecordedRun, axes: Sequence[str] = ("step",)) -> bool:
    """Whether the losses of a run, and these axes, are the first ones of another, as those of a
    copy are. Fewer than two finite losses may be equal by chance.
    """
    curves = [(run.curves[split], other.curves[split]) for split in run.curves]
    if sum(int(np.isfinite(curve.loss).sum()) for curve, _ in curves) < 2:
        return False
    pairs = [(curve.loss, whole.loss) for curve, whole in curves]
    pairs += [(curve.x[axis], whole.x[axis]) for curve, whole in curves for axis in axes]
    return all(values.tobytes() == others[: len(values)].tobytes() for values, others in pairs)


def _are_copies(one: RecordedRun, other: RecordedRun) -> bool:
    """Whether two runs of different data seeds have equal batches at the steps that both logged:
    one is a copy of the other, with its seed edited.
    """
    if one.config.data.seed == other.config.data.seed:
        return False
    common, ours, theirs = np.intersect1d(one.batches["step"], other.batches["step"], return_indices=True)
    return len(common) > 1 and bool((one.batches["checksum"][ours] == other.batches["checksum"][theirs]).all())


def names_of(configs: Sequence[Config], without: Sequence[str] = ()) -> list[str]:
    """A name for each group by its config: `24x1 admin` or `6-6x8 post_ln`, with the fields in
    which groups of that name differ, but for those of `without`; else with a number.
    """
    bases = [f"{shape_name(config.model)} {config.model.residual}" for config in configs]
    flat = [flatten(config) for config in configs]
    names = []
    for base, fields in zip(bases, flat, strict=True):
        namesakes = [each for name, each in zip(bases, flat, strict=True) if name == base]
        paths = [path for path in fields if path not in (*without, *SEEDS)]
        differing = [path for path in paths if any(each.get(path) != fields[path] for each in namesakes)]
        names.append(sanitize(", ".join([base, *(f"{path.split('.')[1]} {fields[path]}" for path in differing)])))
    return number_duplicates(names)
