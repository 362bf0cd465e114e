"""The conditions of a comparison: which are equal, which differences matter, and the verdict."""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_args

import numpy as np

from mhsh.config.differences import flatten
from mhsh.config.fields import Field, all_fields
from mhsh.config.roles import Row as ConfigRow
from mhsh.config.schema import OBJECTIVES, Config
from mhsh.errors import UserError, closest
from mhsh.report.compare.groups import Group
from mhsh.report.render.format import format_distinct, format_list, format_names, format_percent, format_recorded
from mhsh.report.runs.curves import SPLITS
from mhsh.report.runs.loading import Ancestor, Run

PARAMETER_MARGIN = 0.02  # by which the largest count may exceed the smallest

SHAPE = "shape"  # as a treatment: every field whose role is `shape`
DEFAULT_TREATMENT = (SHAPE,)

FAIRNESS_RULE = (
    "Losses are comparable if nothing differs but the treatment: the fields of the shape, among them the residual scheme, or those "
    "that --treatment names. These differences matter: the data, their order and the data seed (split, order, masking), how data "
    "are cut into rows and batches, what is validated, the tokens seen, the code of mhsh that decides losses, the numeric settings "
    "of JAX and XLA, the task, initialisation, activation and LayerNorm, any field of the optimizer or schedule, label smoothing, "
    "the start of training, dropout, precision; and the number of parameters "
    "(all, of the encoder or decoder, or with weight decay) if the largest exceeds the smallest by more than "
    f"{100 * PARAMETER_MARGIN:.0f} %. Other differences are listed. With other hardware, versions or kernels losses are "
    "comparable; device seconds are not. Training seeds may differ between runs; groups with different seeds have no paired "
    "difference."
)


class Effect(enum.Enum):
    """The effect of a difference in a condition."""

    LOSS = "losses are not comparable"
    PARAMETERS = "losses are not comparable beyond PARAMETER_MARGIN"
    CLOCK = "device seconds are not comparable"
    NONE = "none"


@dataclasses.dataclass(frozen=True)
class Condition:
    """One thing that could make a comparison unfair, with its value in every group."""

    name: str
    values: tuple[str, ...]  # by group; if the runs of a group differ, each value once
    equal: bool | None  # None: what is recorded is equal, but it is not recorded for every run
    matters: bool  # it differs, and losses are therefore not comparable, by FAIRNESS_RULE
    clock: bool  # it differs, and device seconds are therefore not comparable
    could_matter: bool  # a difference in it would matter
    counts: tuple[float | None, ...] = ()  # the number of parameters of each group, if it matters; None: not recorded

    def groups_by_value(self, groups: Sequence[Group]) -> list[tuple[str, list[str]]]:
        """Each value once, with the names of the groups that have it."""
        names: dict[str, list[str]] = {}
        for value, group in zip(self.values, groups, strict=True):
            names.setdefault(value, []).append(group.name)
        return list(names.items())


# Rows whose values are more than the config's own fields; of the others a row is all of its fields.
_OWN_ROWS = ("data seed (split, order, masking)", "start", "training seed", "mesh")

# Fields whose `auto` becomes something else when a run starts; run.json says what.
_ASKED_FOR = ("model.kernels", "model.remat_policy")


def config_fields(runs: Sequence[Run], groups: Sequence[Group]) -> tuple[Condition, ...]:
    """Every field of the configs, named as in `--config.model.num_layers`."""
    flat = [flatten(run.config) for run in runs]
    fields = dict.fromkeys(field for each in flat for field in each)
    return tuple(_row(groups, field, [each.get(field) for each in flat], Effect.NONE) for field in fields)


def config_differences(fields: Sequence[Condition]) -> tuple[Condition, ...]:
    """Of `config_fields`, those in which at least two groups differ."""
    return tuple(row for row in fields if row.equal is False)


def check_treatment(treatment: Sequence[str]) -> None:
    """Raises UserError if a treatment is neither `shape` nor a field of a config."""
    known = [SHAPE, *dict.fromkeys(field.path for objective in OBJECTIVES for field in all_fields(objective))]
    for name in treatment:
        if name not in known:
            meant = closest(name, known)
            hint = f"did you mean {meant}?" if meant else "mhsh configs lists the fields"
            raise UserError(f"--treatment={name} is neither a field of a config nor {SHAPE!r}; {hint}")


def find_conditions(
    runs: Sequence[Run], groups: Sequence[Group], treatment: Sequence[str] = DEFAULT_TREATMENT
) -> tuple[Condition, ...]:
    """Every condition of FAIRNESS_RULE. Differences that matter come first, then those that affect
    device seconds. The fields of `treatment` are meant to differ.
    """

    def row(what: str, value: Callable[[Run], Any], effect: Effect) -> Condition:
        return _row(groups, what, [value(run) for run in runs], effect)

    def record(what: str, *keys: str, effect: Effect = Effect.NONE) -> Condition:
        return row(what, lambda run: run.recorded(*keys), effect)

    counted = [
        record(f"{format_recorded(part)} parameters", "parameters", part, effect=_part_effect(part))
        for part in _keys_of(runs, "parameters")
    ]
    # Where it is recorded what ran, what was asked for does not matter.
    recorded = all(run.recorded("kernels") is not None and run.recorded("remat_policy") is not None for run in runs)
    left_out = (*treatment, *(_ASKED_FOR if recorded else ()))
    rows_of_data, *settings = (
        _row(groups, what, [_settings(run.config, what, left_out) for run in runs], _settings_effect(what))
        for what in get_args(ConfigRow)
        if what not in _OWN_ROWS
    )
    shape = () if SHAPE in treatment else (row("shape", lambda run: _shape(run.config, treatment), Effect.LOSS),)
    versions = [
        record(f"version of {format_recorded(name)}", "versions", name, effect=Effect.CLOCK) for name in _keys_of(runs, "versions")
    ]
    rows = [
        record("data fingerprint", "data", "fingerprint", effect=Effect.LOSS),
        _row(groups, "data order (batches at equal steps)", _orders(runs), Effect.LOSS),
        row("validation batches", _validated, Effect.LOSS),
        row("data seed (split, order, masking)", lambda run: run.config.data.seed, Effect.LOSS),
        rows_of_data,
        *shape,
        row("tokens seen", _tokens, Effect.LOSS),
        record("unigram entropy of the data, nats per token", "data", "unigram_entropy"),
        *counted,
        record("weight-decayed parameters", "weight_decayed_parameters", effect=Effect.PARAMETERS),
        record("forward FLOPs a token", "flops_per_token_forward"),
        *settings,
        _row(groups, "start", _starts(runs, treatment), Effect.LOSS),
        row("training seed", lambda run: run.config.train.seed, Effect.NONE),
        row("code that decides losses", lambda run: _by_step(run.recorded("code")), Effect.LOSS),
        row("numeric settings", lambda run: _by_step(run.recorded("numerics")), Effect.LOSS),
        record("code revision", "git_revision", effect=Effect.CLOCK),
        record("devices", "devices", effect=Effect.CLOCK),
        record("mesh", "mesh", effect=Effect.CLOCK),
        *versions,
    ]
    if recorded:
        rows += [
            row("kernels that ran", _kernels, Effect.LOSS if _low_precision(runs) else Effect.CLOCK),
            record("rematerialisation that ran", "remat_policy", effect=Effect.CLOCK),
        ]
    if all(run.recorded("xla_flags") is not None for run in runs):
        rows.append(record("XLA flags in force", "xla_flags", effect=Effect.CLOCK))
    return tuple(sorted(rows, key=lambda row: (not row.matters, not row.clock)))


def verdict(rows: Sequence[Condition], treatment: Sequence[str] = DEFAULT_TREATMENT) -> str:
    """Whether losses are comparable, in one sentence."""
    unfair = unequal(rows)
    excesses = {row.name: excess(row.counts) for row in rows if row.counts}
    if excesses:
        most = max(excesses, key=lambda what: excesses[what])
        allowed = format_percent(PARAMETER_MARGIN)
        unfair.insert(0, f"sizes ({most}: up to {format_percent(excesses[most])} more, and {allowed} is allowed)")
    if unfair:
        return f"Not comparable: different {format_names(unfair)}."
    unknown = unrecorded(rows)
    clock = " Device seconds are not comparable: see the conditions of the comparison." if any(row.clock for row in rows) else ""
    if unknown:
        return f"Comparable as far as recorded, but not every run recorded {format_names(unknown)}.{clock}"
    margin = f"{100 * PARAMETER_MARGIN:.0f} %"
    named = format_list(treatment)
    return f"Comparable: nothing that matters differs but the treatment ({named}), and parameter counts by at most {margin}.{clock}"


def unequal(rows: Sequence[Condition]) -> list[str]:
    """The names of the differences that matter, but for those of sizes."""
    return [row.name for row in rows if row.matters and not row.counts]


def unrecorded(rows: Sequence[Condition]) -> list[str]:
    """The names of what not every run recorded and a difference in which would matter."""
    return [row.name for row in rows if row.could_matter and row.equal is None]


def marks(rows: Sequence[Condition]) -> tuple[str, ...]:
    """Sentences to show beside the curves: one a difference that matters, and one for the clock."""
    unfair = [f"Not equal: {row.name}: {' against '.join(dict.fromkeys(row.values))}." for row in rows if row.matters]
    clock = [row.name for row in rows if row.clock]
    return (*unfair, *([f"Device seconds are not comparable: different {format_list(clock)}."] if clock else []))


def excess(counts: Iterable[float | None]) -> float:
    """The share by which the largest of these counts exceeds the smallest."""
    known = [count for count in counts if count is not None]
    if not known:
        return 0.0
    return (max(known) - min(known)) / min(known) if min(known) > 0 else math.inf


def same_data(groups: Sequence[Sequence[Run]]) -> bool | None:
    """Whether the groups have the same data fingerprints, a seed's in one as in the others; None if
    that is not recorded in one of them and the others are equal.
    """
    return _equal([_distinct(run.recorded("data", "fingerprint") for run in runs) for runs in groups])


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


def _row(groups: Sequence[Group], what: str, values: Sequence[Any], effect: Effect) -> Condition:
    """`values` has one for each run; None: not recorded."""
    by_group = [_distinct(values[index] for index in group.runs) for group in groups]
    equal = _equal(by_group)
    differs = equal is False
    counts = tuple(_count(each) for each in by_group) if differs and effect is Effect.PARAMETERS else ()
    if excess(counts) <= PARAMETER_MARGIN:
        counts = ()
    shown = iter(format_distinct([value for each in by_group for value in each]))
    return Condition(
        what,
        tuple("; ".join(next(shown) for _ in each) for each in by_group),
        equal,
        matters=differs and (effect is Effect.LOSS or bool(counts)),
        clock=differs and effect is Effect.CLOCK,
        could_matter=effect is Effect.LOSS or effect is Effect.PARAMETERS,
        counts=counts,
    )


def _distinct(values: Iterable[Any]) -> list[Any]:
    """Each value once, in an order that does not depend on that of the runs."""
    return [value for _, value in sorted({json.dumps(value, sort_keys=True): value for value in values}.items())]


def _equal(by_group: Sequence[Sequence[Any]]) -> bool | None:
    known = {json.dumps(each, sort_keys=True) for each in by_group if None not in each}
    if len(known) > 1:
        return False
    return True if all(None not in each for each in by_group) else None


def _count(values: Sequence[Any]) -> float | None:
    numbers = [value for value in values if isinstance(value, int | float)]
    return float(max(numbers)) if numbers else None


def _part_effect(part: str) -> Effect:
    return Effect.PARAMETERS if part in ("total", "encoder", "decoder") else Effect.NONE


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


def _kernels(run: Run) -> str:
    """Which sublayers ran fused, without the reasons why others did not."""
    kernels = run.recorded("kernels")
    return ", ".join(f"{name} {'fused' if reason is None else 'plain'}" for name, reason in kernels.items())


def _low_precision(runs: Sequence[Run]) -> bool:
    """Whether a fused kernel rounds differently from the plain sublayer by more than fp32 does."""
    return any(run.config.model.compute_dtype != "float32" for run in runs)


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
