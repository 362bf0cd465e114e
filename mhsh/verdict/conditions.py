"""The conditions of a comparison: what two groups differ in, and what that does to it."""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

import numpy as np

from mhsh.config.fields import Field, all_fields, flatten
from mhsh.config.schema import OBJECTIVES, Config
from mhsh.config.schema import Row as ConfigRow
from mhsh.config.shapes import layer_parameters
from mhsh.errors import UserError, closest
from mhsh.sweep.axes import Axis, fields_of
from mhsh.text import sanitize
from mhsh.verdict.curves import SPLITS
from mhsh.verdict.experiment import Group
from mhsh.verdict.runs import Ancestor, Run
from mhsh.verdict.words import format_distinct, format_list

PARAMETER_MARGIN = 0.02  # by which one count may exceed the other

SHAPE = "shape"  # as a treatment: every field whose role is `shape`
DEFAULT_TREATMENT = (SHAPE,)

CONDITION_RULE = (
    "Losses of two groups are comparable if nothing differs but the treatment, and the treatment is one factor: the grouping of "
    "the heads, the depth at equal size, the width, the residual scheme, the positions, the normalisation, or a field that was "
    "swept or that --treatment names. Two factors at once are confounded. These differences matter: the data, their order and the "
    "data seeds, how data are cut into rows and batches, what is validated, the tokens seen, the task, initialisation, activation "
    "and LayerNorm, any field of the optimizer or schedule, label smoothing, the start of training, dropout, precision, numeric "
    "settings, and the code that decides losses. A model that has over "
    f"{100 * PARAMETER_MARGIN:.0f} % more parameters (all, of the encoder or decoder, or with weight decay) and ends better is not "
    "comparable in size; one that ends worse is. With other hardware losses are comparable, and device seconds are not."
)

# Factors of a treatment by the fields that they are made of. `grouping` and `depth at equal size`
# are read off the whole shape.
GROUPING, DEPTH, EQUAL_SIZE_DEPTH = "grouping of the heads", "depth", "depth at equal size"
_SHAPE_FACTORS: Mapping[str, tuple[str, ...]] = {
    DEPTH: ("num_layers", "num_decoder_layers"),
    "heads a layer": ("num_heads",),
    "width": ("embed_dim", "head_dim", "mlp_dim"),
    "residual scheme": ("residual", "admin_omega", "depth_exponent"),
    "positions": ("positions", "max_positions", "num_token_types"),
    "normalisation": ("qk_norm",),
}
_SIZES = (DEPTH, "heads a layer", "width")
_FOLLOW = ("base_layers", "layers_per_group")  # what regrouping sets besides


class Effect(enum.Enum):
    """The effect of a difference in a condition."""

    LOSS = "losses are not comparable"
    SIZE = "losses are not comparable if the larger model ends better"
    CLOCK = "device seconds are not comparable"
    NONE = "none"


@dataclasses.dataclass(frozen=True)
class Condition:
    """One thing that could make a comparison unfair, with its value in every group."""

    name: str
    values: tuple[str, ...]  # by group; if the runs of a group differ, each value once
    equal: bool | None  # None: what is recorded is equal, but it is not recorded for every run
    effect: Effect
    counts: tuple[float | None, ...]  # of SIZE, by group; None: not recorded


@dataclasses.dataclass(frozen=True)
class Fairness:
    """What a group and the baseline differ in."""

    factors: tuple[str, ...]  # of the treatment
    unequal: tuple[str, ...]  # conditions that make losses incomparable
    unrecorded: tuple[str, ...]  # conditions of which that is not known
    clock: tuple[str, ...]  # conditions that make device seconds incomparable
    excess: float  # by which share the group has more parameters than the baseline, by its largest count; 0 within the margin

    @property
    def comparable(self) -> bool:
        """Whether losses are comparable, sizes aside."""
        return not self.unequal and len(self.factors) <= 1

    def may_be_size(self, better: bool | None) -> bool:
        """Whether the larger model ends better, so that its size may be the reason. `better`: as in
        `sentence`.
        """
        return bool(self.excess) and (better is None or better == (self.excess > 0))

    def sentence(self, better: bool | None = None) -> str:
        """Whether the losses are comparable. `better`: whether the group ends better than the
        baseline; None if that is not known.
        """
        reasons = [self._size] * self.may_be_size(better) + [f"different {format_list(self.unequal)}"] * bool(self.unequal)
        if reasons:
            return f"Not comparable: {'; '.join(reasons)}."
        note = f"; {self._size} and ends worse all the same" if self.excess else ""
        if len(self.factors) > 1:
            return f"Confounded: {format_list(self.factors)} differ at once{note}."
        if self.unrecorded:
            return f"Comparable as far as recorded, but not every run recorded {format_list(self.unrecorded)}{note}."
        what = f"of what matters only the treatment differs ({self.factors[0]})" if self.factors else "nothing that matters differs"
        return f"Comparable: {what}{note}."

    @property
    def _size(self) -> str:
        larger, share = ("it", self.excess) if self.excess > 0 else ("the baseline", -self.excess / (1 + self.excess))
        return f"{larger} has {100 * share:.1f} % more parameters"


# Rows whose values are more than the config's own fields; of the others a row is all of its fields.
_OWN_ROWS = ("data seed (split, order, masking)", "start", "training seed", "mesh")

# What another data seed changes.
_FOLLOW_THE_SEED = ("data", "order of the data (batches at equal steps)", "validation batches")

# Fields whose `auto` becomes something else when a run starts; run.json says what.
_ASKED_FOR = ("model.remat_policy",)


def treatment_of(axes: Sequence[Axis], named: Sequence[str] | None) -> tuple[str, ...]:
    """What is meant to differ: SHAPE and the fields that were swept, or what the caller names.

    Raises:
      UserError: a name is neither SHAPE nor a field of a config.
    """
    if named is None:
        swept = (field for axis in axes for field in fields_of(axis.path))
        return tuple(dict.fromkeys([SHAPE, *swept]))
    known = [SHAPE, *dict.fromkeys(field.path for objective in OBJECTIVES for field in all_fields(objective))]
    for name in named:
        if name not in known:
            meant = closest(name, known)
            hint = f"did you mean {meant}?" if meant else "mhsh configs lists the fields"
            raise UserError(f"--treatment={name} is neither a field of a config nor {SHAPE!r}; {hint}")
    return tuple(named)


def factors(config: Config, baseline: Config, treatment: Sequence[str] = DEFAULT_TREATMENT) -> tuple[str, ...]:
    """The factors of the treatment in which two configs differ."""
    ours, theirs = flatten(config), flatten(baseline)
    differing = {path for path in (*ours, *theirs) if ours.get(path) != theirs.get(path)}
    shape = {field.path for field in all_fields(config.model.objective) if field.role == "shape"}
    found: list[str] = []
    if SHAPE in treatment:
        found += _shape_factors(config, baseline, {path.split(".")[1] for path in differing & shape})
        treatment = [path for path in treatment if path not in shape]
    return (*found, *(path.split(".")[1] for path in treatment if path in differing))


def _shape_factors(config: Config, baseline: Config, differing: set[str]) -> list[str]:
    ours, theirs = config.model, baseline.model
    found = []
    if any(differing & set(_SHAPE_FACTORS[name]) for name in _SIZES):
        regrouped = (
            ours.num_layers * ours.num_heads == theirs.num_layers * theirs.num_heads
            and ours.num_decoder_layers * ours.num_heads == theirs.num_decoder_layers * theirs.num_heads
            and ours.num_layers * ours.mlp_dim == theirs.num_layers * theirs.mlp_dim
            and (ours.embed_dim, ours.head_dim) == (theirs.embed_dim, theirs.head_dim)
        )
        equal_size = (
            ours.num_heads == theirs.num_heads and abs(layer_parameters(ours) / layer_parameters(theirs) - 1) <= PARAMETER_MARGIN
        )
        if regrouped or equal_size:
            found.append(GROUPING if regrouped else EQUAL_SIZE_DEPTH)
        else:
            found += [name for name in _SIZES if differing & set(_SHAPE_FACTORS[name])]
    found += [name for name in _SHAPE_FACTORS if name not in _SIZES and differing & set(_SHAPE_FACTORS[name])]
    known = {*_FOLLOW, *(field for fields in _SHAPE_FACTORS.values() for field in fields)}
    return found + sorted(differing - known)


def find_conditions(groups: Sequence[Sequence[Run]], treatment: Sequence[str] = DEFAULT_TREATMENT) -> tuple[Condition, ...]:
    """Every condition of CONDITION_RULE, over the runs of each group; differences that matter come
    first. The fields of `treatment` are meant to differ.
    """
    runs = [run for group in groups for run in group]
    ends = np.cumsum([len(group) for group in groups])
    places = [range(end - len(group), end) for group, end in zip(groups, ends.tolist(), strict=True)]

    def row(what: str, values: Sequence[Any], effect: Effect) -> Condition:
        return _condition(what, [[values[place] for place in group] for group in places], effect)

    def record(what: str, *keys: str, effect: Effect = Effect.NONE) -> Condition:
        return row(what, [run.recorded(*keys) for run in runs], effect)

    # Where it is recorded what ran, what was asked for does not matter.
    recorded = all(run.recorded("remat_policy") is not None for run in runs)
    left_out = (*treatment, *(_ASKED_FOR if recorded else ()))
    settings = [
        row(what, [_settings(run.config, what, left_out) for run in runs], _settings_effect(what))
        for what in get_args(ConfigRow)
        if what not in _OWN_ROWS
    ]
    shape = [] if SHAPE in treatment else [row("shape", [_shape(run.config, treatment) for run in runs], Effect.LOSS)]
    rows = [
        record("data", "data", "fingerprint", effect=Effect.LOSS),
        row("order of the data (batches at equal steps)", _orders(runs), Effect.LOSS),
        row("validation batches", [_validated(run) for run in runs], Effect.LOSS),
        row("data seeds", [run.config.data.seed for run in runs], Effect.LOSS),
        *shape,
        row("tokens seen", [_tokens(run) for run in runs], Effect.LOSS),
        record("unigram entropy of the data, nats per token", "data", "unigram_entropy"),
        *(record(f"{part} parameters", "parameters", part, effect=_part_effect(part)) for part in _keys_of(runs, "parameters")),
        record("weight-decayed parameters", "weight_decayed_parameters", effect=Effect.SIZE),
        record("forward FLOPs a token", "flops_per_token_forward"),
        *settings,
        row("start", _starts(runs, treatment), Effect.LOSS),
        row("training seeds", [run.config.train.seed for run in runs], Effect.NONE),
        row("code that decides losses", [_by_step(run.recorded("code")) for run in runs], Effect.LOSS),
        row("numeric settings", [_by_step(run.recorded("numerics")) for run in runs], Effect.LOSS),
        record("code revision", "git_revision", effect=Effect.CLOCK),
        record("devices", "devices", effect=Effect.CLOCK),
        record("mesh", "mesh", effect=Effect.CLOCK),
        *(record(f"version of {name}", "versions", name, effect=Effect.CLOCK) for name in _keys_of(runs, "versions")),
        record("rematerialisation that ran", "remat_policy", effect=Effect.CLOCK),
        record("XLA flags in force", "xla_flags", effect=Effect.CLOCK),
    ]
    order = [Effect.LOSS, Effect.SIZE, Effect.CLOCK, Effect.NONE]
    return tuple(sorted(rows, key=lambda each: order.index(each.effect) if each.equal is False else len(order)))


def fairness(group: Group, baseline: Group, treatment: Sequence[str] = DEFAULT_TREATMENT, tuned: str = "") -> Fairness:
    """What the runs of two groups differ in: those of the replicates that both have, if there are
    any. The field `tuned`, of which each group has its best value, is no factor.
    """
    ours, theirs = group.by_replicate, baseline.by_replicate
    common = [replicate for replicate in ours if replicate in theirs]
    pair = [[runs[each] for each in common] if common else [*runs.values()] for runs in (ours, theirs)]
    rows = find_conditions(pair, treatment)
    # Different data seeds make different data: one difference, not two.
    seeds = next(row for row in rows if row.name == "data seeds")
    unequal = [row.name for row in rows if row.equal is False and row.effect is Effect.LOSS]
    if seeds.equal is False:
        unequal = [name for name in unequal if name not in _FOLLOW_THE_SEED]
    excesses = [_excess(row.counts) for row in rows if row.equal is False and row.effect is Effect.SIZE]
    return Fairness(
        tuple(name for name in factors(group.config, baseline.config, treatment) if name != tuned.split(".")[-1]),
        tuple(unequal),
        tuple(row.name for row in rows if row.equal is None and row.effect in (Effect.LOSS, Effect.SIZE)),
        tuple(row.name for row in rows if row.equal is False and row.effect is Effect.CLOCK),
        max(excesses, key=abs, default=0.0),
    )


def different_tasks(runs: Sequence[Run]) -> str | None:
    """Why the losses of these runs are not in one unit, or None if they are.

    Objective, tokenizer and vocabulary must be equal. Vocabularies are compared by content if every
    run kept its own, else by path and size in the config.
    """
    learnt = [run for run in runs if run.config.data.tokenizer != "bytes"]
    if all(run.vocabulary is not None for run in learnt):
        vocabularies = {run.vocabulary for run in learnt}
    else:
        vocabularies = {(run.config.data.vocab_path, run.config.model.vocab_size) for run in learnt}
    tasks = (
        ("the objective", {run.config.model.objective for run in runs}),
        ("the tokenizer", {run.config.data.tokenizer for run in runs}),
        ("the vocabulary", vocabularies),
    )
    return next((f"{what} differs" for what, values in tasks if len(values) > 1), None)


def _excess(counts: Sequence[float | None]) -> float:
    """By which share the first of two counts exceeds the second; 0 within the margin."""
    ours, theirs = counts
    if ours is None or theirs is None or min(ours, theirs) <= 0 or max(ours, theirs) / min(ours, theirs) <= 1 + PARAMETER_MARGIN:
        return 0.0
    return ours / theirs - 1


def _condition(what: str, by_group: Sequence[Sequence[Any]], effect: Effect) -> Condition:
    """`by_group` has a value for each run of each group; None: not recorded."""
    distinct = [_distinct(values) for values in by_group]
    shown = iter(format_distinct([value for values in distinct for value in values]))
    texts = tuple("; ".join(next(shown) for _ in values) for values in distinct)
    counts = tuple(_count(values) for values in distinct) if effect is Effect.SIZE else ()
    return Condition(sanitize(what), texts, _equal(distinct), effect, counts)


def _count(values: Sequence[Any]) -> float | None:
    numbers = [value for value in values if isinstance(value, int | float)]
    return float(max(numbers)) if numbers else None


def _distinct(values: Iterable[Any]) -> list[Any]:
    """Each value once, in an order that does not depend on that of the runs."""
    return [value for _, value in sorted({json.dumps(value, sort_keys=True): value for value in values}.items())]


def _equal(by_group: Sequence[Sequence[Any]]) -> bool | None:
    known = {json.dumps(each, sort_keys=True) for each in by_group if None not in each}
    if len(known) > 1:
        return False
    return True if all(None not in each for each in by_group) else None


def _part_effect(part: str) -> Effect:
    return Effect.SIZE if part in ("total", "encoder", "decoder") else Effect.NONE


def _settings(config: Config, row: str, treatment: Sequence[str] = ()) -> str:
    """`name value, name value` of the config's fields that the schema puts into this row, without
    those of the treatment.
    """
    return _format_fields(config, [field for field in all_fields(config.model.objective) if field.row == row], treatment)


def _shape(config: Config, treatment: Sequence[str]) -> str:
    """As `_settings`, of the fields whose role is `shape`."""
    return _format_fields(config, [field for field in all_fields(config.model.objective) if field.role == "shape"], treatment)


def _format_fields(config: Config, fields: Sequence[Field], treatment: Sequence[str]) -> str:
    values = flatten(config)
    return ", ".join(f"{field.name} {values[field.path]}" for field in fields if field.path not in treatment)


def _settings_effect(row: str) -> Effect:
    roles = {field.role for field in all_fields("mlm") if field.row == row}
    return Effect.LOSS if "loss" in roles else Effect.CLOCK


def _starts(runs: Sequence[Run], treatment: Sequence[str]) -> list[str | None]:
    """What each run started from; None: not recorded. Beside a fresh start that is no doubt."""
    starts = [_start(run, treatment) for run in runs]
    if all(start is None or run.config.train.start_from for start, run in zip(starts, runs, strict=True)):
        return starts
    return [start or "another run, of which nothing is recorded" for start in starts]


def _start(run: Run, treatment: Sequence[str]) -> str | None:
    """`fresh`, or what the run started from: parents with equal text have equal settings (but for
    the treatment), data and training. None: a parent's folder is gone, and it was not recorded.
    """
    train = run.config.train
    if not train.start_from:
        return "fresh"
    recorded = [_parent(parent, parent.config, treatment) for parent in run.lineage if parent.config is not None]
    if not recorded or len(recorded) < len(run.lineage):
        return None
    return f"parameters{' and moments' if train.keep_moments else ''} of {', before it '.join(recorded)}"


def _parent(parent: Ancestor, config: Config, treatment: Sequence[str]) -> str:
    # What it started from itself is the next one's text.
    rows = [row for row in get_args(ConfigRow) if row != "start" and _settings_effect(row) is Effect.LOSS]
    settings = {row: _settings(config, row, treatment) for row in rows}
    if SHAPE not in treatment:
        settings[SHAPE] = _shape(config, treatment)
    settings["trained by"] = json.dumps(parent.trained_by)
    digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:8]
    data = str(parent.fingerprint)[:8]
    return f"a run of settings {digest} on data {data} at step {parent.step}, after {parent.tokens} tokens"


def _tokens(run: Run) -> int | None:
    values = np.concatenate([run.curves[split].x["tokens"] for split in SPLITS])
    values = values[np.isfinite(values)]
    return int(values.max()) if len(values) else None


def _orders(runs: Sequence[Run]) -> list[str | None]:
    """For each run, a hash of its batches' checksums at the steps for which all runs logged one."""
    logged = [run.batches["step"] for run in runs if len(run.batches["step"])]
    steps = functools.reduce(_common, logged) if logged else np.array([])
    width = max((run.batches["checksum"].itemsize for run in runs), default=1)

    def digest(batches: Mapping[str, np.ndarray]) -> str:
        checksums = batches["checksum"]
        if len(steps) < len(checksums):
            checksums = checksums[np.isin(batches["step"], steps, assume_unique=True)]
        # Of one width in all runs, so that equal checksums are equal bytes.
        return hashlib.sha256(checksums.astype(f"S{width}").tobytes()).hexdigest()[:16]

    return [digest(run.batches) if len(steps) and len(run.batches["step"]) else None for run in runs]


def _validated(run: Run) -> str | None:
    return ", ".join(run.validated) or (None if len(run.curves["validation"]) else "none")


def _by_step(values: Mapping[str, Any] | None) -> str | None:
    """What trained a run, where it is another from some step on with that step."""
    if not values:
        return None
    first, *others = [(step, value if isinstance(value, str) else json.dumps(value)) for step, value in values.items()]
    return ", ".join([first[1], *(f"after step {step} {value}" for step, value in others)])


def _common(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return one if np.array_equal(one, other) else np.intersect1d(one, other, assume_unique=True)


def _keys_of(runs: Sequence[Run], section: str) -> list[str]:
    """The keys that any run records in a section, in order of appearance."""
    sections = [run.recorded(section) for run in runs]
    return list(dict.fromkeys(key for value in sections if isinstance(value, Mapping) for key in value))
