"""Each shape at its own best value of one field: chosen on some seeds, reported on the others."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from mhsh.config.fields import flatten, kind_of
from mhsh.errors import UserError, closest
from mhsh.sweep.axes import SEED, SEEDS, SHORT_NAMES
from mhsh.verdict.experiment import Experiment, Group, Member, Replicate, names_of
from mhsh.verdict.measures import LOSS, final_value
from mhsh.verdict.optimum import Optimum, find_optimum, rates_to_add

TUNING_RULE = (
    "With --over, each shape has the value with the lowest mean final validation loss over the choosing seeds, the first half of "
    "the seeds unless --choosing-seeds says otherwise. A value at which one of these runs did not train is not chosen. The losses "
    "compared are those of the other seeds at that value: the choosing seeds' own are too good, as the luckiest value was taken."
)


@dataclasses.dataclass(frozen=True)
class Choice:
    """How the value of one group was chosen."""

    over: str  # the field's path
    losses: Mapping[float, Mapping[Replicate, float]]  # of the choosing runs that trained, by value
    optimum: Optimum | None  # None: at no value all choosing runs trained
    trials: int  # choosing runs that have ended
    choosing: tuple[str, ...]  # names of the choosing runs

    @property
    def is_final(self) -> bool:
        """Whether all choosing runs have ended."""
        return self.trials == len(self.choosing)

    @property
    def hidden(self) -> float:
        """How much lower the loss may be at a value that was not tried, in nats."""
        return self.optimum.hidden_upper if self.optimum else math.inf


@dataclasses.dataclass(frozen=True)
class Tuned:
    """An experiment of which each group has its best value."""

    experiment: Experiment
    choices: tuple[Choice, ...]  # one a group


def field_of(name: str) -> str:
    """The path of a field by the name that `mhsh sweep` takes.

    Raises:
      UserError: it is no field with numbers as values.
    """
    path = SHORT_NAMES.get(name, name)
    if kind_of(path) not in (int, float) or path in (SEED, *SEEDS):
        meant = closest(name, [*SHORT_NAMES])
        hint = f"did you mean {meant}?" if meant else "give one such as lr or optimizer.learning_rate"
        raise UserError(f"--over={name} is no field with numbers as values; {hint}")
    return path


def tune(experiment: Experiment, over: str, choosing: int | None = None) -> Tuned:
    """Chooses the value of the field `over` of every group that is equal in all other fields.

    Raises:
      UserError: `over` has one value, or there are too few seeds to choose on some and report
        others.
    """
    path = field_of(over)
    families: dict[Any, list[Group]] = {}
    for group in experiment.groups:
        fields = {name: value for name, value in flatten(group.config).items() if name not in (path, *SEEDS)}
        families.setdefault((group.sweep, tuple(sorted((name, repr(value)) for name, value in fields.items()))), []).append(group)
    if max(map(len, families.values()), default=0) < 2:
        raise UserError(f"--over={over}: no two groups differ in {path} alone; name a sweep over it")
    replicates = sorted({member.replicate for group in experiment.groups for member in group.members})
    if len(replicates) < 2:
        raise UserError("choosing on some seeds and reporting others takes two seeds; add seed=0,1,2 to the sweep's --axes")
    count = len(replicates) // 2 if choosing is None else choosing
    if not 1 <= count < len(replicates):
        raise UserError(f"--choosing-seeds={count} must be from 1 to {len(replicates) - 1}: there are {len(replicates)} seeds")
    chosen = [_tuned(groups, path, replicates[:count], replicates[count:]) for groups in families.values()]
    names = names_of([group.config for group, _ in chosen], (path,))
    groups = tuple(dataclasses.replace(group, name=name) for (group, _), name in zip(chosen, names, strict=True))
    return Tuned(dataclasses.replace(experiment, groups=groups), tuple(choice for _, choice in chosen))


def values_to_add(half_width: float, choices: Sequence[Choice]) -> list[float]:
    """The values that `mhsh sweep --refine` tries next, in ascending order, until what each grid
    may hide is at most half of `half_width`, that of the interval of a difference.
    """
    found = [(choice.losses, choice.optimum) for choice in choices if choice.optimum is not None]
    return sorted({value for losses, optimum in found for value in rates_to_add(losses, optimum, half_width)})


def _tuned(
    groups: Sequence[Group], path: str, choosing: Sequence[Replicate], reporting: Sequence[Replicate]
) -> tuple[Group, Choice]:
    by_value = {float(flatten(group.config)[path]): group for group in groups}
    members = {value: [each for each in group.members if each.replicate in choosing] for value, group in by_value.items()}
    losses = {value: {each.replicate: _loss(each) for each in tried if each.trained} for value, tried in members.items()}
    # A replicate is missing at a value where its run did not train: that value is not chosen.
    keys = {replicate for found in losses.values() for replicate in found}
    table = {value: {key: found.get(key, math.nan) for key in keys} for value, found in losses.items()}
    optimum = find_optimum(table)
    group = by_value[optimum.rate] if optimum else groups[0]
    if optimum and len(choosing) == 1:  # the noise is that of the reporting seeds
        optimum = find_optimum(table, [_loss(each) for each in group.trained if each.replicate in reporting])
    trials = [each for tried in members.values() for each in tried]
    ended = sum(each.trained or each in group.untrained for group in groups for each in group.members if each.replicate in choosing)
    choice = Choice(path, losses, optimum, ended, tuple(each.name for each in trials))
    return dataclasses.replace(group, members=tuple(each for each in group.members if each.replicate in reporting)), choice


def _loss(member: Member) -> float:
    return final_value(member.run, LOSS, "validation") if member.run is not None else math.nan
