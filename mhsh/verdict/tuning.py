"""Each shape at its own best value of one field, chosen on some seeds and reported on the others,
and how much lower its loss may be between the values tried.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri

from mhsh.config.fields import SHAPING, all_fields, flatten, kind_of
from mhsh.config.schema import OBJECTIVES
from mhsh.errors import UserError, nearest
from mhsh.sweep.axes import SEED, SEEDS, SHORT_NAMES, fields_named
from mhsh.sweep.folder import Plan, Tuning
from mhsh.verdict.estimate import CONFIDENCE, Replicate
from mhsh.verdict.experiment import Experiment
from mhsh.verdict.groups import Choice, Group, Member, Optimum, names_of
from mhsh.verdict.outcomes import LOSS, Measure, find_measure

# In octaves of the rate.
FIT_REACH = 1.0  # a parabola fits near the optimum alone
FINEST_STEP = 0.5
_RATE_ROUNDING = 0.05  # what rounded rates are apart

UNTUNED = "none"  # as --over: every value by itself

OPTIMUM_RULE = (
    "The best rate is that with the lowest mean loss over the choosing seeds, of the rates at which all of them trained. How much "
    "lower the loss is between the best rate and its neighbours is read off parabolas over the logarithm of the rate: through the "
    "rates up to an octave away (at least three), through the best rate and its neighbours, and through the best rate and two on "
    "one side, as losses may rise faster on one side. The middle between the least and the most of them moves the difference; half "
    "of what they are apart, and what the noise of the choosing seeds does to them, widens its interval. There is no bound, and "
    "nothing moves, where the best rate is the lowest or the highest that was tried, where its neighbours are more than an octave "
    "away, where fewer than three rates trained, or where nothing tells the noise of one choosing seed."
)
TUNING_RULE = (
    "With --over, each shape has the value at which the primary measure is best in the mean over the choosing seeds, the lower "
    "half of the seeds unless --choosing-seeds or the plan of the sweep says otherwise. A value at which one of these runs did not "
    "train is not chosen, and one whose runs have not ended was not tried. What is compared are the other seeds at that value: "
    "the choosing seeds' own are too good, as the luckiest value was taken. What the grid may hide is in the unit of the measure."
)


def find_optimum(losses: Mapping[float, Mapping[Replicate, float]], reporting: Sequence[float] = ()) -> Optimum | None:
    """The optimum by OPTIMUM_RULE; None if there is no rate at which all choosing seeds trained.

    Args:
      losses: by rate and choosing seed; not finite, or absent, where a run did not train.
      reporting: losses of several seeds at one rate: the noise, where a single seed chooses.
    """
    keys, rates = sorted(set().union(*losses.values())), sorted(losses)
    trained = [rate for rate in rates if all(math.isfinite(losses[rate].get(key, math.nan)) for key in keys)]
    if not trained or not keys:
        return None
    table = np.array([[losses[rate][key] for key in keys] for rate in trained])
    means = table.mean(axis=1)
    best = int(means.argmin())
    rate, place = trained[best], rates.index(trained[best])
    at_edge = place == len(rates) - 1 or (place == 0 and rate > 0)  # there is none below zero
    if rates[0] <= 0:  # as of a weight decay: no octave leads to zero
        if rates[max(place - 1, 0)] <= 0:
            return Optimum(rate, float(means[best]), 0.0, math.inf, at_edge)
        return find_optimum({each: row for each, row in losses.items() if each > 0}, reporting)
    octaves = np.log2(np.array(trained) / trained[best])
    distance = abs(np.arange(len(trained)) - best)
    near = (distance <= 1) | (abs(octaves) <= FIT_REACH + _RATE_ROUNDING)
    if near.sum() < 3:  # the best is the first or last that trained
        near = distance <= 2
    error = _noise(table[near], reporting) / math.sqrt(len(keys))  # of a mean loss
    if near.sum() < 3 or math.isnan(error):
        return Optimum(rate, float(means[best]), 0.0, math.inf, at_edge)
    lower, higher = rates[max(place - 1, 0)], rates[min(place + 1, len(rates) - 1)]
    between = np.linspace(math.log2(lower / rate), math.log2(higher / rate), 129)
    if at_edge or max(-between[0], between[-1]) > FIT_REACH + _RATE_ROUNDING:
        # What is hidden has no error here, so it moves nothing, also not the end that has a bound.
        return Optimum(rate, float(means[best]), 0.0, math.inf, at_edge)
    nearer = between[(between >= between[0] / 2) & (between <= between[-1] / 2)]  # to the best than to its neighbours
    fits = [(near, between), (distance <= 1, between)]
    is_lower, is_higher = np.arange(len(trained)) <= best, np.arange(len(trained)) >= best
    fits += [((distance <= 2) & is_lower, nearer), ((distance <= 2) & is_higher, nearer)]
    found = [_depth_below(octaves[rows], means[rows], at) for rows, at in fits if rows.sum() > 2]
    depths, slopes = [depth for depth, _ in found], [slope for _, slope in found]
    hidden_gain, half_range = (max(depths) + min(depths)) / 2, (max(depths) - min(depths)) / 2
    hidden_error = math.hypot(half_range / math.sqrt(3), error * max(slopes))  # as if all between them were as likely
    return Optimum(rate, float(means[best]), hidden_gain, hidden_error, at_edge)


def _depth_below(
    octaves: Float[np.ndarray, " rates"], means: Float[np.ndarray, " rates"], at: Float[np.ndarray, " x"]
) -> tuple[float, float]:
    """The depth to which a parabola through the losses falls below its value at 0, and the factor
    with which the deviation of a loss enters it.
    """
    weights = np.stack([at**2, at], axis=1) @ np.linalg.pinv(np.vander(octaves, 3))[:2]
    above = weights @ means
    lowest = int(above.argmin())
    return max(0.0, -float(above[lowest])), float(np.linalg.norm(weights[lowest]))


def rates_to_add(losses: Mapping[float, Mapping[Replicate, float]], optimum: Optimum, half_width: float) -> tuple[float, ...]:
    """The rates to try next, until half of the interval of what the grid hides is at most half of
    `half_width`, which is that of the difference's interval without it.

    They are the middles (of the logarithm) between the best rate and its neighbours, and an octave
    beyond an edge. There are none where it is small enough, or where the rates are half an octave
    apart: more choosing seeds would then help. Zero counts as no rate.
    """
    if optimum.rate <= 0 or float(ndtri(0.5 + CONFIDENCE / 2)) * optimum.hidden_error <= half_width / 2:
        return ()
    rates = sorted(rate for rate in losses if rate > 0)
    place = rates.index(optimum.rate)
    beyond = [rate for rate, edge in ((rates[0] / 2, place == 0), (rates[-1] * 2, place == len(rates) - 1)) if edge]
    gaps = [
        pair
        for pair in itertools.pairwise(rates)
        if optimum.rate in pair and math.log2(pair[1] / pair[0]) > FINEST_STEP + _RATE_ROUNDING
    ]
    return tuple(sorted(float(f"{rate:.3g}") for rate in (*beyond, *(math.sqrt(low * high) for low, high in gaps))))


def _noise(table: Float[np.ndarray, "rates seeds"], reporting: Sequence[float]) -> float:
    """The deviation of one run's loss, without what a seed adds at all rates; nan if not known."""
    if table.shape[1] > 1:
        residuals = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
        freedom = (len(table) - 1) * (table.shape[1] - 1)
    else:
        residuals = np.array(reporting) - np.mean(reporting) if len(reporting) > 1 else np.zeros(0)
        freedom = len(residuals) - 1
    if freedom < 1:
        return math.nan
    return math.sqrt(np.square(residuals).sum() / freedom)


def field_of(name: str) -> str:
    """The path of a field by the name that `mhsh sweep` takes. Raises UserError where it is not a
    field with numbers as values.
    """
    found = fields_named(name, {*SHAPING, *(field.path for objective in OBJECTIVES for field in all_fields(objective))})
    path = found[0] if len(found) == 1 else name
    if kind_of(path) not in (int, float) or path in (SEED, *SEEDS):
        hint = nearest(name, SHORT_NAMES, otherwise="give one such as lr or optimizer.learning_rate")
        raise UserError(f"--over={name} is not a field with numbers as values; {hint}")
    return path


def tune(experiment: Experiment, over: str, choosing: int | None = None) -> Experiment:
    """The experiment with one group, at its best value of the field `over` by the loss, in place of
    those that are equal in all other fields. Raises UserError where `over` has one value, or there
    are too few seeds to choose on some and report others.
    """
    path = field_of(over)
    _check_several(experiment, over, path)
    return _tune(experiment, path, choosing, LOSS)


def tune_sections(
    experiment: Experiment, by: Sequence[str] = (), over: str | None = None, choosing: int | None = None, measure: str = LOSS
) -> dict[tuple[str, ...], Experiment]:
    """The sections of the experiment, each tuned as `tune` does: over the field that is given, or
    where none is over that of the sweep's plan; UNTUNED: not at all. Raises UserError as `tune`, of
    the section that it names; or where `over` has one value in all of them.
    """
    tunings = {
        sweep: _tuning_of(experiment.plans.get(sweep), by, over, choosing) for sweep in {group.sweep for group in experiment.groups}
    }
    fields = {sweep: field_of(tuning.over) for sweep, tuning in tunings.items() if tuning is not None}
    sections = experiment.sections(by, fields)
    if over not in (None, UNTUNED):
        _check_several(experiment, over, field_of(over))
    found = {}
    for words, section in sections.items():
        sweep = section.groups[0].sweep if section.groups else ""
        tuning = tunings.get(sweep)
        try:
            found[words] = section if tuning is None else _tune(section, fields[sweep], tuning.seeds, measure)
        except UserError as error:
            raise UserError(f"{', '.join(words)}: {error}" if words else str(error)) from error
    return found


def _tuning_of(plan: Plan | None, by: Sequence[str], over: str | None, choosing: int | None) -> Tuning | None:
    """The tuning of a sweep by the flags, else by its plan; None: it is not tuned."""
    planned = plan.choosing if plan is not None else None
    path = field_of(planned.over) if planned else ""
    if over is None and any(SHORT_NAMES.get(name, name) in (path, path.split(".")[-1]) for name in by):
        return None  # its values are what is compared
    if over is None or over == UNTUNED:
        return planned if over is None else None
    is_planned = planned is not None and path == field_of(over)
    return Tuning(over, planned.seeds if planned and is_planned and choosing is None else choosing)


def _families(experiment: Experiment, path: str) -> list[list[Group]]:
    """The groups that are equal in all fields but `path`, one a value: where data seeds or second
    runs make several at a value, each is in a family of its own.
    """
    families: dict[Any, list[Group]] = {}
    seen: Counter[Any] = Counter()
    for group in experiment.groups:
        fields = {name: repr(value) for name, value in flatten(group.config).items() if name not in SEEDS}
        value = fields.pop(path, "")
        alike = group.sweep, tuple(sorted(fields.items()))
        families.setdefault((alike, seen[alike, value]), []).append(group)
        seen[alike, value] += 1
    return list(families.values())


def _check_several(experiment: Experiment, over: str, path: str) -> None:
    if all(len(groups) < 2 for groups in _families(experiment, path)):
        raise UserError(f"--over={over}: no two groups differ in {path} alone; it takes a sweep with that axis")


def _tune(experiment: Experiment, path: str, choosing: int | None, key: str) -> Experiment:
    measure, families = find_measure(experiment, key), _families(experiment, path)
    replicates = sorted({member.replicate for group in experiment.groups for member in group.members})
    if len(replicates) < 2:
        raise UserError("choosing on some seeds and reporting others takes two seeds; add seed=0,1,2 to the sweep's --axes")
    count = len(replicates) // 2 if choosing is None else choosing
    if not 1 <= count < len(replicates):
        raise UserError(f"--choosing-seeds={count} must be from 1 to {len(replicates) - 1}: there are {len(replicates)} seeds")
    chosen = [_tune_family(groups, path, replicates[:count], replicates[count:], measure) for groups in families]
    names = names_of([group.config for group in chosen], (path,))
    groups = tuple(dataclasses.replace(group, name=name) for group, name in zip(chosen, names, strict=True))
    return dataclasses.replace(experiment, groups=groups)


def values_to_add(half_width: float, choices: Iterable[Choice]) -> list[int | float]:
    """The values that `mhsh sweep --refine` tries next, in ascending order, until what each grid
    may hide is at most half of `half_width`, that of the interval of a difference.
    """
    added: set[int | float] = set()
    for choice in choices:
        if choice.optimum is not None:
            values = rates_to_add(choice.measured, choice.optimum, half_width)
            # Of a field of whole numbers, the nearest ones that are new and above zero. What is
            # planned already is not new, though its runs may have failed.
            added |= {*(map(round, values) if kind_of(choice.over) is int else values)} - {0, *choice.values}
    return sorted(added)


def _tune_family(
    groups: Sequence[Group], path: str, choosing: Sequence[Replicate], reporting: Sequence[Replicate], measure: Measure
) -> Group:
    by_value = {float(flatten(group.config)[path]): group for group in groups}
    trials = {value: [each for each in group.members if each.replicate in choosing] for value, group in by_value.items()}
    ended = {value: [each for each in members if each.is_trained or each.is_untrained] for value, members in trials.items()}
    # What was tried is what ran, and has the measure if it trained: a value counts where that is so
    # of all these seeds.
    found = {
        value: {
            each.replicate: _value(each, measure) if each.is_trained else math.nan
            for each in members
            if each.is_untrained or not math.isnan(_value(each, measure))
        }
        for value, members in ended.items()
    }
    keys = set().union(*found.values())
    values = {value: known for value, known in found.items() if known and known.keys() >= keys}
    sign = 1 if measure.lower_is_better else -1
    table = {value: {key: sign * each for key, each in known.items()} for value, known in values.items()}
    optimum = find_optimum(table)
    group = by_value[optimum.rate] if optimum else groups[0]
    if optimum and len(choosing) == 1:  # the noise is that of the reporting seeds
        optimum = find_optimum(table, [_value(each, measure) for each in group.trained_members if each.replicate in reporting])
    names = tuple(member.name for members in trials.values() for member in members)
    choice = Choice(path, measure.name, values, optimum, sum(map(len, ended.values())), names, tuple(by_value))
    members = tuple(each for each in group.members if each.replicate in reporting)
    return dataclasses.replace(group, members=members, choice=choice)


def _value(member: Member, measure: Measure) -> float:
    return measure.value_of(member.run) if member.run is not None else math.nan
