"""What was equal between the groups and what was not: the ledger of conditions, which differences
matter, and the verdict.
"""

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
from mhsh.config.fields import all_fields
from mhsh.config.schema import Config
from mhsh.config.schema import Row as ConfigRow
from mhsh.report.compare.groups import Group
from mhsh.report.render.format import format_list, format_percent, format_recorded
from mhsh.report.runs.curves import SPLITS
from mhsh.report.runs.loading import Run

PARAMETER_MARGIN = 0.02  # by which the largest count may exceed the smallest

FAIRNESS_RULE = (
    "A comparison of losses is fair if nothing but the models differs: a difference matters in the data or their order, the data "
    "seed (split, order, masking), how they are cut into rows and batches, what is validated, the tokens seen, any field of the "
    "optimizer or its schedule, label smoothing, where training started, dropout, or precision; and in parameters, whole or of the "
    "encoder or decoder, decayed or not, where the largest count exceeds the smallest by more than "
    f"{100 * PARAMETER_MARGIN:.0f} %. Other differences are named. Other hardware, code or kernels leave losses comparable, not "
    "device seconds. Training seeds may differ from run to run; where two groups have other ones, their difference is not paired."
)


class Weight(enum.Enum):
    """What a difference in a row of the ledger does."""

    LOSS = "losses are not at equal conditions"
    PARAMETERS = "losses are not at equal conditions, beyond PARAMETER_MARGIN"
    CLOCK = "device seconds are not comparable"
    NAMED = "nothing by itself"


@dataclasses.dataclass(frozen=True)
class LedgerRow:
    """One thing that could make a comparison unfair, with its value in every group."""

    what: str
    values: tuple[str, ...]  # in the order of the groups; where the runs of a group differ, each value once
    equal: bool | None  # None: what is recorded is equal, but it is not recorded for every run
    matters: bool  # losses are not comparable: it differs, and FAIRNESS_RULE counts it
    clock: bool  # it differs, and device seconds are therefore not comparable
    needed: bool  # a difference in it could matter
    counts: tuple[float | None, ...] = ()  # where numbers of parameters matter: that of each group; None: not recorded


# Rows whose values are more than the config's own fields; of the others a row is all of its fields.
_OWN_ROWS = ("data seed (split, order, masking)", "start", "training seed", "mesh")

# Their role is `loss`, and a difference in them is named (config_differences) but not counted: the
# first two make other tasks, which different_tasks refuses to compare.
NOT_COUNTED = (
    "model.objective",
    "model.vocab_size",
    "model.next_sentence",
    "model.num_classes",
    "model.init",
    "model.layer_norm_epsilon",
)


def config_differences(runs: Sequence[Run], groups: Sequence[Group]) -> tuple[LedgerRow, ...]:
    """Every config field in which at least two groups differ, named as in
    `--config.model.num_layers`.
    """
    flat = [flatten(run.config) for run in runs]
    fields = dict.fromkeys(field for each in flat for field in each)
    rows = [_row(groups, field, [each.get(field) for each in flat], Weight.NAMED) for field in fields]
    return tuple(row for row in rows if row.equal is False)


def ledger(runs: Sequence[Run], groups: Sequence[Group]) -> tuple[LedgerRow, ...]:
    """Every condition, equal or not, by FAIRNESS_RULE: those of the losses first, then those of the
    clock.
    """

    def row(what: str, value: Callable[[Run], Any], weight: Weight) -> LedgerRow:
        return _row(groups, what, [value(run) for run in runs], weight)

    def record(what: str, *keys: str, weight: Weight = Weight.NAMED) -> LedgerRow:
        return row(what, lambda run: run.recorded(*keys), weight)

    counted = [
        record(f"{format_recorded(part)} parameters", "parameters", part, weight=_part_weight(part))
        for part in _keys_of(runs, "parameters")
    ]
    rows_of_data, *settings = (
        _row(groups, what, [_settings(run.config, what) for run in runs], _settings_weight(what))
        for what in get_args(ConfigRow)
        if what not in _OWN_ROWS
    )
    versions = [
        record(f"version of {format_recorded(name)}", "versions", name, weight=Weight.CLOCK) for name in _keys_of(runs, "versions")
    ]
    rows = [
        record("data fingerprint", "data", "fingerprint", weight=Weight.LOSS),
        _row(groups, "data order (batches at equal steps)", _orders(runs), Weight.LOSS),
        row("data seed (split, order, masking)", lambda run: run.config.data.seed, Weight.LOSS),
        rows_of_data,
        row("tokens seen", _tokens, Weight.LOSS),
        record("unigram entropy of the data, nats per token", "data", "unigram_entropy"),
        *counted,
        record("weight-decayed parameters", "weight_decayed_parameters", weight=Weight.PARAMETERS),
        record("forward FLOPs a token", "flops_per_token_forward"),
        *settings,
        row("start", _start, Weight.LOSS),
        row("training seed", lambda run: run.config.train.seed, Weight.NAMED),
        record("code revision", "git_revision", weight=Weight.CLOCK),
        record("devices", "devices", weight=Weight.CLOCK),
        record("mesh", "mesh", weight=Weight.CLOCK),
        *versions,
    ]
    return tuple(sorted(rows, key=lambda row: (not row.matters, not row.clock)))


def verdict(rows: Sequence[LedgerRow]) -> str:
    """Whether the losses were compared fairly, in one sentence."""
    unfair = [row.what for row in rows if row.matters and not row.counts]
    excesses = {row.what: excess(row.counts) for row in rows if row.counts}
    if excesses:
        most = max(excesses, key=lambda what: excesses[what])
        allowed = format_percent(PARAMETER_MARGIN)
        unfair.append(f"sizes ({most}: up to {format_percent(excesses[most])} more, and {allowed} is allowed)")
    if unfair:
        return f"Not fair: different {format_list(unfair)}."
    unknown = [row.what for row in rows if row.needed and row.equal is None]
    clock = " Device seconds are not comparable: see the ledger." if any(row.clock for row in rows) else ""
    if unknown:
        return f"Fair as far as is recorded, but not every run recorded {format_list(unknown)}.{clock}"
    return (
        f"Fair: nothing that matters differs but the models, and their parameters by at most {100 * PARAMETER_MARGIN:.0f} %.{clock}"
    )


def marks(rows: Sequence[LedgerRow]) -> tuple[str, ...]:
    """A sentence for each difference that matters, and one for those of the clock: what must stand
    beside the curves.
    """
    unfair = [f"Not equal: {row.what}: {' against '.join(dict.fromkeys(row.values))}." for row in rows if row.matters]
    clock = [row.what for row in rows if row.clock]
    return (*unfair, *([f"Device seconds are not comparable: different {format_list(clock)}."] if clock else []))


def excess(counts: Iterable[float | None]) -> float:
    """By which share the largest of these numbers of parameters exceeds the smallest."""
    known = [count for count in counts if count is not None]
    if not known:
        return 0.0
    return (max(known) - min(known)) / min(known) if min(known) > 0 else math.inf


def same_data(runs: Sequence[Run]) -> bool | None:
    """Whether the data fingerprints are equal; None where one is not recorded and the others do not
    differ.
    """
    prints = [run.recorded("data", "fingerprint") for run in runs]
    if len({format_recorded(each) for each in prints if each is not None}) > 1:
        return False
    return None if None in prints else True


def different_tasks(runs: Sequence[Run]) -> str | None:
    """Why the losses of these runs are not in one unit, or None where they are.

    The rule: the objective, the tokenizer and its vocabulary decide what a token is and what is
    predicted. Vocabularies are compared by content where every run kept its own, else by the
    config's path and size.
    """
    wordpiece = [run for run in runs if run.config.data.tokenizer == "wordpiece"]
    if all(run.vocabulary is not None for run in wordpiece):
        vocabularies = {run.vocabulary for run in wordpiece}
    else:
        vocabularies = {(run.config.data.vocab_path, run.config.model.vocab_size) for run in wordpiece}
    tasks = (
        ("the objective", {run.config.model.objective for run in runs}),
        ("the tokenizer", {run.config.data.tokenizer for run in runs}),
        ("the vocabulary", vocabularies),
    )
    return next((f"{what} differs" for what, values in tasks if len(values) > 1), None)


def _row(groups: Sequence[Group], what: str, values: Sequence[Any], weight: Weight) -> LedgerRow:
    """`values` has one for each run; None: not recorded."""
    by_group = [_distinct(values[index] for index in group.runs) for group in groups]
    equal = _equal(by_group)
    differs = equal is False
    counts = tuple(_count(each) for each in by_group) if differs and weight is Weight.PARAMETERS else ()
    if excess(counts) <= PARAMETER_MARGIN:
        counts = ()
    return LedgerRow(
        what,
        tuple("; ".join(format_recorded(value) for value in each) for each in by_group),
        equal,
        matters=differs and (weight is Weight.LOSS or bool(counts)),
        clock=differs and weight is Weight.CLOCK,
        needed=weight is Weight.LOSS or weight is Weight.PARAMETERS,
        counts=counts,
    )


def _distinct(values: Iterable[Any]) -> list[Any]:
    """Each value once, in an order that does not hang on that of the runs."""
    return [value for _, value in sorted({json.dumps(value, sort_keys=True): value for value in values}.items())]


def _equal(by_group: Sequence[Sequence[Any]]) -> bool | None:
    known = {json.dumps(each, sort_keys=True) for each in by_group if None not in each}
    if len(known) > 1:
        return False
    return True if all(None not in each for each in by_group) else None


def _count(values: Sequence[Any]) -> float | None:
    numbers = [value for value in values if isinstance(value, int | float)]
    return float(max(numbers)) if numbers else None


def _part_weight(part: str) -> Weight:
    return Weight.PARAMETERS if part in ("total", "encoder", "decoder") else Weight.NAMED


def _settings(config: Config, row: str) -> str:
    """`name value, name value` of the config's fields that the schema puts into this row."""
    values = flatten(config)
    fields = [field for field in all_fields(config.model.objective) if field.row == row]
    return ", ".join(f"{field.name} {values[field.path]}" for field in fields)


def _settings_weight(row: str) -> Weight:
    roles = {field.role for field in all_fields("mlm") if field.row == row}
    return Weight.LOSS if "loss" in roles else Weight.CLOCK


def _start(run: Run) -> str:
    train = run.config.train
    if not train.start_from:
        return "fresh"
    return f"parameters{' and moments' if train.keep_moments else ''} of another run"


def _tokens(run: Run) -> int | None:
    values = np.concatenate([run.curves[split].x["tokens"] for split in SPLITS])
    values = values[np.isfinite(values)]
    return int(values.max()) if len(values) else None


def _orders(runs: Sequence[Run]) -> list[str | None]:
    """The start of a hash of the checksums of a run's batches, at the steps that all runs logged
    one for.
    """
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


def _common(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return one if np.array_equal(one, other) else np.intersect1d(one, other, assume_unique=True)


def _keys_of(runs: Sequence[Run], section: str) -> list[str]:
    """The keys that any run records in a section, in the order in which they first appear."""
    sections = [run.recorded(section) for run in runs]
    return list(dict.fromkeys(key for value in sections if isinstance(value, Mapping) for key in value))
