"""The conditions that two groups differ in, and what each of them does to their comparison."""

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

from mhsh.config.fields import all_fields, flatten
from mhsh.config.schema import Config
from mhsh.config.schema import Row as ConfigRow
from mhsh.sweep.axes import SEEDS
from mhsh.text import format_values, sanitize
from mhsh.verdict.groups import Group, differing_files
from mhsh.verdict.runs import Ancestor, RecordedRun
from mhsh.verdict.treatment import DEFAULT_TREATMENT, PARAMETER_MARGIN, SHAPE, factors

_CPU_BITS = 23  # of a fraction in float32, all of which a CPU's products keep


CONDITION_RULE = (
    "Losses of two groups are comparable if nothing differs but the treatment, and the treatment is one factor: the grouping of "
    "the heads, the width of a head, the heads of keys and values or the depth at equal size, the width, the residual scheme, the "
    "positions, the normalisation, or a field that was swept or that --treatment names. Two factors at once are confounded. These "
    "differences matter: the data, their order and the "
    "data seeds, how data are cut into rows and batches, what is validated, the tokens seen, the task, initialisation, activation "
    "and LayerNorm, any field of the optimizer or schedule, label smoothing, the start of training, dropout, precision, numeric "
    "settings, the code that decides losses, and the file of an entry of your own. A model that has over "
    f"{100 * PARAMETER_MARGIN:.0f} % more parameters (all, of the encoder or decoder, or with weight decay) and ends better is not "
    "comparable in size; one that ends worse is. With other hardware losses are comparable, and device seconds are not. Groups "
    "are compared seed by seed where they have seeds in common."
)


class Effect(enum.Enum):
    """The numbers that a difference in a condition makes incomparable; the worst first."""

    LOSS = "losses"
    SIZE = "losses, if the larger model wins"
    CLOCK = "device seconds"
    NONE = "nothing"


@dataclasses.dataclass(frozen=True)
class Condition:
    """One thing that could make a comparison unfair, with its value in every group."""

    name: str
    values: tuple[str, ...]  # by group; if the runs of a group differ, each value once
    equal: bool
    effect: Effect
    counts: tuple[float, ...]  # of SIZE, by group


@dataclasses.dataclass(frozen=True)
class Fairness:
    """The factors and conditions in which a group and the baseline differ."""

    factors: tuple[str, ...]  # of the treatment
    unequal: tuple[str, ...]  # conditions that make losses incomparable
    clock: tuple[str, ...]  # conditions that make device seconds incomparable
    excess: float  # by which share the group has more parameters than the baseline, by its largest count; 0 within the margin

    def may_be_size(self, better: bool | None) -> bool:
        """Whether the larger model ends better, so that its size may be the reason. `better`:
        whether the group ends better than the baseline; None if that is not known.
        """
        return bool(self.excess) and (better is None or better == (self.excess > 0))


# Rows whose values are more than the config's own fields; of the others a row is all of its fields.
_OWN_ROWS = ("data seed (split, order, masking)", "start", "training seed", "mesh")

_DATA_SEEDS = "data seeds"
# What another data seed changes.
_FOLLOW_THE_SEED = ("data", "order of the data (batches at equal steps)", "validation batches")
_TOKENS = "tokens seen"


def find_conditions(groups: Sequence[Sequence[RecordedRun]], treatment: Sequence[str] = DEFAULT_TREATMENT) -> tuple[Condition, ...]:
    """Every condition of CONDITION_RULE, over the runs of each group; differences that matter come
    first. The fields of `treatment` are meant to differ.
    """
    runs = [run for group in groups for run in group]

    def row(what: str, effect: Effect, value: Callable[[RecordedRun], Any]) -> Condition:
        return _condition(what, [[value(run) for run in group] for group in groups], effect)

    def ended_row(what: str, value: Callable[[RecordedRun], Any]) -> Condition:
        """A row on the runs that have made all their steps: of the others nothing is known yet."""
        known = [[value(run) for run in group if run.end == run.config.train.num_steps and not run.is_cut] for group in groups]
        return _condition(what, known, Effect.LOSS)

    def record(what: str, effect: Effect, *keys: str) -> Condition:
        return row(what, effect, lambda run: run.recorded(*keys))

    def settings(what: str) -> Condition:
        # `auto` becomes another remat policy when a run starts, and run.json says what ran.
        without = (*treatment, "model.remat_policy")
        return row(what, _settings_effect(what), lambda run: _settings(run.config, what, without))

    rows = [
        record("data", Effect.LOSS, "data", "fingerprint"),
        row("order of the data (batches at equal steps)", Effect.LOSS, _order_digest(runs)),
        ended_row("validation batches", lambda run: ", ".join(run.validation_batches) or "none"),
        row(_DATA_SEEDS, Effect.LOSS, lambda run: run.config.data.seed),
        *([] if SHAPE in treatment else [settings(SHAPE)]),
        ended_row(_TOKENS, lambda run: _to_int(run.total("tokens"))),
        record("unigram entropy of the data, nats per token", Effect.NONE, "data", "unigram_entropy"),
        *(
            record(
                f"{part} parameters", Effect.SIZE if part in ("total", "encoder", "decoder") else Effect.NONE, "parameters", part
            )
            for part in _keys_of(runs, "parameters")
        ),
        record("weight-decayed parameters", Effect.SIZE, "weight_decayed_parameters"),
        record("forward FLOPs a token", Effect.NONE, "flops_per_token_forward"),
        *(settings(what) for what in get_args(ConfigRow) if what not in _OWN_ROWS),
        row("start", Effect.LOSS, lambda run: _start(run, treatment)),
        row("training seeds", Effect.NONE, lambda run: run.config.train.seed),
        row("code that decides losses", Effect.LOSS, lambda run: _join_steps(run.record["code"])),
        # One name must not mean two things. Entries of different names are compared by the config.
        row("files of your own", Effect.LOSS if differing_files(runs) else Effect.NONE, _describe_entries),
        row("numeric settings", Effect.LOSS, _numerics),
        record("code revision", Effect.CLOCK, "git_revision"),
        record("devices", Effect.CLOCK, "devices"),
        record("mesh", Effect.CLOCK, "mesh"),
        row("cells in one program", Effect.CLOCK, lambda run: run.record.get("cells_together", 1)),
        *(record(f"version of {name}", Effect.CLOCK, "versions", name) for name in _keys_of(runs, "versions")),
        record("rematerialisation that ran", Effect.CLOCK, "remat_policy"),
        record("XLA flags in force", Effect.CLOCK, "xla_flags"),
        row("changes in mid-run", Effect.CLOCK, lambda run: _mid_run_changes(run.recorded("clock"))),
    ]
    order = [*Effect]
    return tuple(sorted(rows, key=lambda each: len(order) if each.equal else order.index(each.effect)))


def fairness(group: Group, baseline: Group, treatment: Sequence[str] = DEFAULT_TREATMENT, tuned: str = "") -> Fairness:
    """The fairness of two groups by what their runs differ in: replicate by replicate where they
    have two or more in common, as their difference is taken, else all of one against all of the
    other. The field `tuned`, of which each group has its best value, is no factor.
    """
    ours, theirs = group.runs_by_replicate, baseline.runs_by_replicate
    pairs = [([ours[replicate]], [theirs[replicate]]) for replicate in ours if replicate in theirs]
    pairs = pairs if len(pairs) > 1 else [([*ours.values()], [*theirs.values()])]
    meant = (*treatment, tuned) if tuned else treatment
    rows = [row for pair in pairs if all(pair) for row in find_conditions(pair, meant) if not row.equal]
    differing = {effect: {row.name: row for row in rows if row.effect is effect} for effect in Effect}
    unequal = [*differing[Effect.LOSS]]
    if _DATA_SEEDS in unequal:  # they make the data different too: one difference, not two
        unequal = [name for name in unequal if name not in _FOLLOW_THE_SEED]
    return Fairness(
        tuple(name for name in factors(group.config, baseline.config, treatment) if name != tuned.split(".")[-1]),
        tuple(unequal),
        tuple(differing[Effect.CLOCK]),
        max((_excess(*row.counts) for row in differing[Effect.SIZE].values()), key=abs, default=0.0),
    )


def unequal_conditions(pairs: Sequence[tuple[Group, Group]]) -> tuple[str, ...]:
    """The conditions that make a change from one section to another incomparable, by the pairs of
    groups that stand for each other. The config, in which the sections are meant to differ, is none
    of them, nor is what follows from it.
    """
    found: dict[str, None] = {}
    for one, other in pairs:
        ours, theirs = flatten(one.config), flatten(other.config)
        differing = [path for path in ours if ours[path] != theirs.get(path) and path not in SEEDS]
        meant = [_TOKENS] if "train.num_steps" in differing else []
        of_batches = ("train.batch_size", "train.accumulation_steps", "train.eval_batches")
        if any(path.startswith("data.") or path in of_batches for path in differing):
            meant += [_TOKENS, *_FOLLOW_THE_SEED]
        unit = unit_mismatch([*one.runs, *other.runs])
        unequal = fairness(other, one, (SHAPE, *differing)).unequal
        found |= dict.fromkeys([unit.removeprefix("the ").removesuffix(" differs")] if unit else [])
        found |= dict.fromkeys(name for name in unequal if name not in meant)
    return tuple(found)


def unit_mismatch(runs: Sequence[RecordedRun]) -> str:
    """Why the losses of these runs are not in one unit; empty if they are.

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
    return next((f"{what} differs" for what, values in tasks if len(values) > 1), "")


def _excess(ours: float, theirs: float) -> float:
    """The share by which the first of two counts exceeds the second; 0 within the margin."""
    if min(ours, theirs) <= 0 or max(ours, theirs) / min(ours, theirs) <= 1 + PARAMETER_MARGIN:
        return 0.0
    return ours / theirs - 1


def _condition(what: str, by_group: Sequence[Sequence[Any]], effect: Effect) -> Condition:
    """`by_group` has a value for each run of each group of which it is known."""
    distinct = [_distinct(values) for values in by_group]
    known = [values for values in distinct if values]
    shown = iter(format_values([value for values in distinct for value in values]))
    texts = tuple("; ".join(next(shown) for _ in values) or "not known yet" for values in distinct)
    counts = tuple(max(float(value or 0) for value in values) for values in distinct) if effect is Effect.SIZE else ()
    return Condition(sanitize(what), texts, all(values == known[0] for values in known), effect, counts)


def _distinct(values: Iterable[Any]) -> list[Any]:
    """Each value once, in an order that does not depend on that of the runs."""
    return [value for _, value in sorted({json.dumps(value, sort_keys=True): value for value in values}.items())]


def _settings(config: Config, row: str, without: Sequence[str] = ()) -> str:
    """`name value, name value` of the config's fields that the schema puts into this row, or for
    SHAPE of those whose role it is; but for those of `without`.
    """
    values = flatten(config)
    fields = [field for field in all_fields(config.model.objective) if (field.role if row == SHAPE else field.row) == row]
    return ", ".join(f"{field.name} {values[field.path]}" for field in fields if field.path not in without)


def _settings_effect(row: str) -> Effect:
    roles = {field.role for field in all_fields("mlm") if field.row == row}
    return Effect.LOSS if row == SHAPE or "loss" in roles else Effect.CLOCK


def _start(run: RecordedRun, treatment: Sequence[str]) -> str:
    """`fresh`, or what the run started from: parents with equal text have equal settings (but for
    the treatment), data and training, and were imported from equal weights if any.
    """
    if not run.config.train.start_from and not run.lineage:
        return f"the imported checkpoint {run.imported}" if run.imported else "fresh"
    parents = ", before it ".join(_parent(parent, treatment) for parent in run.lineage)
    return f"parameters{' and moments' if run.config.train.keep_moments else ''} of {parents}"


def _parent(parent: Ancestor, treatment: Sequence[str]) -> str:
    # What it started from itself is the next one's text.
    rows = [row for row in get_args(ConfigRow) if row != "start" and _settings_effect(row) is Effect.LOSS]
    rows += [] if SHAPE in treatment else [SHAPE]
    settings = {row: _settings(parent.config, row, treatment) for row in rows}
    settings["trained by"] = json.dumps(parent.trained_by)
    digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:8]
    data, tokens = str(parent.fingerprint)[:8], _to_int(parent.tokens)
    began = f" from the imported checkpoint {parent.imported}" if parent.imported else ""
    return f"a run of settings {digest} on data {data} at step {parent.step}, after {tokens} tokens{began}"


def _numerics(run: RecordedRun) -> str:
    """The numeric settings that ran, with the precision of products. Where that is not recorded,
    it is the device's own, which is known of a CPU alone.
    """
    device = run.recorded("devices", "kind")
    bits = _CPU_BITS if run.recorded("devices", "platform") == "cpu" else f"not recorded, on {device}"
    recorded = run.record["numerics"].items() if device is not None else ()
    values = {step: {"product_bits": bits, **value} for step, value in recorded if isinstance(value, Mapping)}
    return _join_steps({step: dict(sorted(value.items())) for step, value in values.items()} or run.record["numerics"])


def _describe_entries(run: RecordedRun) -> str:
    """A user's entries that the run used, with their files."""
    entries = run.record.get("entries", [])
    return ", ".join(f"{entry['name']}: {entry['file']} {entry['sha256'][:12]}" for entry in entries) or "none"


def _to_int(number: float | None) -> int | None:
    return None if number is None or math.isnan(number) else int(number)


def _order_digest(runs: Sequence[RecordedRun]) -> Callable[[RecordedRun], str | None]:
    """A function that hashes the checksums of a run's batches at the steps for which all of these
    runs logged one. It gives None if there are no such steps.
    """
    steps = functools.reduce(np.intersect1d, [run.batches["step"] for run in runs])
    width = max(run.batches["checksum"].itemsize for run in runs)

    def digest(run: RecordedRun) -> str | None:
        checksums = run.batches["checksum"][np.isin(run.batches["step"], steps, assume_unique=True)]
        # Of one width in all runs, so that equal checksums are equal bytes.
        return hashlib.sha256(checksums.astype(f"S{width}").tobytes()).hexdigest()[:16] if len(steps) else None

    return digest


def _join_steps(values: Mapping[str, Any]) -> str:
    """The values as text: the first, and each later one with the step after which it holds."""
    first, *others = [(step, value if isinstance(value, str) else json.dumps(value)) for step, value in values.items()]
    return ", ".join([first[1], *(f"after step {step} {value}" for step, value in others)])


def _mid_run_changes(clock: Any) -> str | None:
    """The settings that change seconds and that changed in mid-run, each with its values and the
    steps after which they hold. None: an older mhsh did not record it.
    """
    if not isinstance(clock, Mapping) or not all(isinstance(values, Mapping) for values in clock.values()):
        return None
    by_step = {step: flatten({"run": values, **values}) for step, values in clock.items()}
    lines = []
    for path in dict.fromkeys(path for values in by_step.values() for path in values):
        texts = {
            step: json.dumps(values.get(path)) for step, values in by_step.items() if not isinstance(values.get(path), Mapping)
        }
        if len(set(texts.values())) > 1:
            lines.append(f"{path.removeprefix('run.')} {_join_steps(texts)}")
    return "; ".join(lines) or "none"


def _keys_of(runs: Sequence[RecordedRun], section: str) -> list[str]:
    """The keys that any run records in a section, in order of appearance."""
    sections = [run.recorded(section) for run in runs]
    return list(dict.fromkeys(key for value in sections if isinstance(value, Mapping) for key in value))
