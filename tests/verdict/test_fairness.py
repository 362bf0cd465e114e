"""One of two equal runs is changed, in every field and in every entry of run.json: the verdict
changes exactly where the role of what was changed says so.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from mhsh.config.fields import Field, all_fields
from mhsh.config.schema import DATA_SECTIONS, OBJECTIVES, Config
from mhsh.report.sentences import fairness_words
from mhsh.verdict.fairness import Effect, Fairness, fairness, find_conditions, unit_mismatch
from mhsh.verdict.groups import Group, Member
from mhsh.verdict.runs import Ancestor, RecordedRun, load_runs
from mhsh.verdict.treatment import DEFAULT_TREATMENT
from tests.sweeps import VALIDATED_ALIKE

# A field of the data section by each of the four kinds of data; the other sections once.
CASES = {
    (objective, field.path): field
    for objective in ("mlm", "translation", "classification", "span")
    for field in all_fields(objective)
    if objective == "mlm" or field.path.startswith("data.")
}
FAIR, UNFAIR, OTHER_CLOCK = "A fair comparison: ", "Not comparable", "Device seconds are not comparable"


def another(field: Field, value: Any) -> Any:
    """A value of the field's type that it has not."""
    if field.path == "train.start_from":
        return ""
    if field.kind is bool:
        return not value
    if field.kind is str:
        choices = [each for each in get_args(get_args(field.annotation)[0]) if each != value]
        return choices[0] if choices else f"{value}-other"
    return value + 1 if field.kind is int else value / 2 + 0.3


def fair(one: RecordedRun, other: RecordedRun, treatment: tuple[str, ...] = DEFAULT_TREATMENT) -> Fairness:
    baseline, group = (Group(run.name, run.config, (Member(run.name, run.config, run, True),)) for run in (one, other))
    return fairness(group, baseline, treatment)


def said(one: RecordedRun, other: RecordedRun, treatment: tuple[str, ...] = DEFAULT_TREATMENT) -> str:
    found = fair(one, other, treatment)
    return f"{fairness_words(found)} {OTHER_CLOCK if found.clock else ''}".strip()


def changed(run: RecordedRun, path: str, value: Any) -> RecordedRun:
    section, name = path.split(".")
    config = replace(run.config, **{section: replace(getattr(run.config, section), **{name: value})})
    return dataclasses.replace(run, config=config)


@pytest.fixture(scope="module")
def base(make_shared_run: Any) -> RecordedRun:
    """A run that started from another, with everything recorded that the ledger asks for."""
    path: Path = make_shared_run("base", [3.0] * 20, [3.0, 2.0])
    (run,) = load_runs([path]).runs
    parent = Ancestor(9, 900.0, "beef", {"code": {"0": "c0de"}}, run.config)
    record = run.record | {
        "weight_decayed_parameters": 120_000,
        "flops_per_token_forward": 1e6,
        "devices": "cpu",
        "mesh": {"data": 1},
        "clock": {"0": {"mesh": {"data": 1}, "accumulation_steps": 1}},
        "changed": {},
    }
    config = replace(run.config, train=replace(run.config.train, start_from="runs/before"))
    batches = {"step": run.curves["train"].x["step"], "checksum": run.curves["train"].x["step"].astype("S9")}
    return dataclasses.replace(run, record=record, lineage=(parent,), config=config, batches=batches)


@pytest.fixture(scope="module")
def of_objective(base: RecordedRun) -> Any:
    """The base run with the data section of an objective."""

    def make(objective: str) -> RecordedRun:
        if objective == "mlm":
            return base
        fields = {field.name: field for field in all_fields(objective) if field.path.startswith("data.")}
        plain: dict[type, Any] = {int: 3, float: 0.25, bool: False, str: "text"}
        values = {
            name: (get_args(get_args(field.annotation)[0]) or (plain[field.kind],))[0] if field.kind is str else plain[field.kind]
            for name, field in fields.items()
        }
        config = Config(
            model=replace(base.config.model, objective=objective),
            data=DATA_SECTIONS[objective](**values),
            optimizer=base.config.optimizer,
            train=base.config.train,
            mesh=base.config.mesh,
        )
        return dataclasses.replace(base, config=config)

    return make


@pytest.mark.parametrize(("objective", "path"), CASES)
def test_a_field_changes_the_verdict_as_its_role_says(of_objective: Any, objective: str, path: str) -> None:
    field, run = CASES[objective, path], of_objective(objective)
    section, name = path.split(".")
    other = changed(run, path, another(field, getattr(getattr(run.config, section), name)))
    assert other.config != run.config
    if path == "train.start_from":  # the runs that it names are in the lineage
        other = dataclasses.replace(other, lineage=())
    found = said(run, other)
    assert found.startswith(UNFAIR) == (field.role == "loss"), found
    assert found.startswith(FAIR) == (field.role != "loss"), found
    if field.role != "loss":
        # What ran is recorded, and both ran alike.
        assert (OTHER_CLOCK in found) == (field.role == "clock" and section != "mesh" and path != "model.remat_policy"), found


# What a run starts from and its data seed have rows of their own, and are no treatment.
NO_TREATMENT = ("train.start_from", "train.keep_moments", "data.seed")


@pytest.mark.parametrize(
    "path", [field.path for field in all_fields("mlm") if field.role in ("loss", "shape") and field.path not in NO_TREATMENT]
)
def test_what_is_meant_to_differ_may(base: RecordedRun, path: str) -> None:
    """Named as the treatment, a field alone may differ; and then a shape may not."""
    section, name = path.split(".")
    field = CASES["mlm", path]
    other = changed(base, path, another(field, getattr(getattr(base.config, section), name)))
    assert said(base, other, treatment=(path,)).startswith(FAIR)
    deeper = changed(other, "model.num_layers", 77)
    if path != "model.num_layers":
        assert said(base, deeper, treatment=(path,)).startswith(UNFAIR)
        both = said(base, deeper, treatment=("shape", path))
        assert both.startswith((FAIR, "Two things differ", "Three things differ")) and UNFAIR not in both


# What run.json records, another value of it, and what that does.
RECORDED: Mapping[tuple[str, ...], tuple[Any, Effect]] = {
    ("data", "fingerprint"): ("dead", Effect.LOSS),
    ("data", "unigram_entropy"): (2.9, Effect.NONE),
    ("parameters", "total"): (160_000, Effect.LOSS),
    ("parameters", "encoder"): (150_000, Effect.LOSS),
    ("weight_decayed_parameters",): (160_000, Effect.LOSS),
    ("flops_per_token_forward",): (2e6, Effect.NONE),
    ("versions", "jax"): ("0.11.0", Effect.CLOCK),
    ("code", "0"): ("edited", Effect.LOSS),
    ("code", "100"): ("edited", Effect.LOSS),
    ("numerics", "0"): ({"jax_enable_x64": True}, Effect.LOSS),
    ("git_revision",): ("def", Effect.CLOCK),
    ("devices",): ("tpu", Effect.CLOCK),
    ("mesh",): ({"data": 2}, Effect.CLOCK),
    ("clock", "100"): ({"mesh": {"data": 1}, "accumulation_steps": 2}, Effect.CLOCK),
    ("clock", "200"): ({"mesh": {"data": 1}, "accumulation_steps": 1}, Effect.NONE),
    ("clock",): ("damaged", Effect.CLOCK),  # nobody knows
    ("changed", "100"): ({"train.log_interval": 7}, Effect.NONE),
    ("status",): ("stopped", Effect.NONE),
    ("compile_seconds",): (9.0, Effect.NONE),
    ("xla_flags", "XLA_FLAGS"): ("--xla_a=1", Effect.CLOCK),
    ("wall_seconds", "training"): (9.0, Effect.NONE),
}


def recorded(run: RecordedRun, keys: tuple[str, ...], value: Any) -> RecordedRun:
    record = dict(run.record)
    if len(keys) == 2:
        value = dict(record[keys[0]]) | {keys[1]: value}
    return dataclasses.replace(run, record=record | {keys[0]: value})


@pytest.mark.parametrize("keys", RECORDED, ids="/".join)
def test_an_entry_of_run_json_changes_the_verdict_as_it_should(base: RecordedRun, keys: tuple[str, ...]) -> None:
    value, effect = RECORDED[keys]
    assert base.recorded(*keys) != value and base.recorded(keys[0]) is not None
    found = said(base, recorded(base, keys, value))
    assert found.startswith(UNFAIR if effect is Effect.LOSS else FAIR), found
    assert (OTHER_CLOCK in found) == (effect is Effect.CLOCK)


CPU, GPU = {"platform": "cpu", "kind": "cpu", "count": 1}, {"platform": "gpu", "kind": "NVIDIA H200", "count": 1}


@pytest.mark.parametrize(
    ("devices", "bits", "equal"),
    [
        ((CPU, GPU), (None, None), False),  # fp32 and TF32, both recorded as the default
        ((CPU, GPU), (23, 10), False),
        ((CPU, GPU), (23, 23), True),
        ((GPU, GPU), (None, 10), False),  # not known of the first
        ((CPU, CPU), (None, 23), True),
        ((GPU, GPU), (None, None), True),
    ],
)
def test_precision_is_what_the_device_did(base: RecordedRun, devices: Any, bits: Any, equal: bool) -> None:
    setting = {"jax_default_matmul_precision": None}
    one, other = (
        recorded(recorded(base, ("devices",), device), ("numerics", "0"), setting | {"product_bits": kept} if kept else setting)
        for device, kept in zip(devices, bits, strict=True)
    )
    assert ("numeric settings" in said(one, other)) == (not equal)


def test_other_validation_batches_count(base: RecordedRun) -> None:
    assert base.validation_batches == (VALIDATED_ALIKE["batch"],)
    other = dataclasses.replace(base, validation_batches=("dead",))
    assert said(base, other) == "Not comparable: different validation batches."


@pytest.mark.parametrize(
    "entry",
    [
        {"step": 7},
        {"tokens": 901.0},
        {"tokens": math.nan},
        {"fingerprint": "dead"},
        {"trained_by": {"code": {"0": "edited"}}},
        {"imported": "feed"},
    ],
)
def test_parents_that_differ_count(base: RecordedRun, entry: dict[str, Any]) -> None:
    (parent,) = base.lineage
    assert said(base, dataclasses.replace(base, lineage=(dataclasses.replace(parent, **entry),))).startswith(UNFAIR)
    assert said(base, dataclasses.replace(base, lineage=(parent, parent))).startswith(UNFAIR)


@pytest.mark.parametrize(
    "path", ["model.num_layers", "model.scan_unroll", "model.remat_policy", "data.source", "train.log_interval"]
)
def test_a_parent_of_another_shape_is_fair_and_of_other_settings_is_not(base: RecordedRun, path: str) -> None:
    (parent,) = base.lineage

    def started_from(config: Config) -> RecordedRun:
        return dataclasses.replace(base, lineage=(dataclasses.replace(parent, config=config),))

    section, name = path.split(".")
    value = another(CASES["mlm", path], getattr(getattr(parent.config, section), name))
    config = changed(dataclasses.replace(base, config=parent.config), path, value).config
    assert said(base, started_from(config)).startswith(FAIR)
    faster = replace(config.optimizer, learning_rate=2 * config.optimizer.learning_rate)
    assert said(base, started_from(replace(config, optimizer=faster))).startswith(UNFAIR)


def ran(run: RecordedRun, remat: str) -> RecordedRun:
    return dataclasses.replace(run, record=run.record | {"remat_policy": remat})


def test_what_ran_is_compared_and_not_what_was_asked_for(base: RecordedRun) -> None:
    asked = changed(base, "model.remat_policy", "full")
    assert OTHER_CLOCK not in said(base, asked)
    assert OTHER_CLOCK in said(ran(base, "none"), ran(base, "full"))


def test_every_objective_has_its_data_section_here() -> None:
    assert {objective for objective, _ in CASES} | {"clm"} == set(OBJECTIVES)


@pytest.mark.parametrize(("more", "better", "comparable"), [(1.019, True, True), (1.021, True, False), (1.021, False, True)])
def test_size_is_signed(base: RecordedRun, more: float, better: bool, comparable: bool) -> None:
    larger = recorded(base, ("parameters", "total"), int(150_000 * more))
    assert fairness_words(fair(base, larger), better).startswith(FAIR) == comparable
    assert fairness_words(fair(larger, base), not better).startswith(FAIR) == comparable


def test_losses_over_other_words_are_in_another_unit(base: RecordedRun) -> None:
    """Also where the vocabularies are equally large: each run kept its own."""
    one, other = (dataclasses.replace(base, vocabulary=name) for name in ("1a", "2b"))
    assert one.config.data.tokenizer == "wordpiece"
    assert unit_mismatch([one, other]) == "the vocabulary differs" and unit_mismatch([one, one]) == ""
    letters = [changed(run, "data.tokenizer", "bytes") for run in (one, other)]
    assert unit_mismatch(letters) == ""


def test_a_run_that_started_from_none_is_fresh(base: RecordedRun) -> None:
    fresh = changed(dataclasses.replace(base, lineage=()), "train.start_from", "")
    (row,) = [row for row in find_conditions([[base], [fresh]]) if row.name == "start"]
    assert row.values[0].startswith("parameters of a run of settings") and row.values[1] == "fresh"


def test_a_run_that_was_imported_is_not_fresh(base: RecordedRun) -> None:
    fresh = changed(dataclasses.replace(base, lineage=()), "train.start_from", "")
    imported, other = (dataclasses.replace(fresh, imported=digest) for digest in ("feed", "f00d"))
    assert said(imported, fresh).startswith(UNFAIR) and said(imported, other).startswith(UNFAIR)
    assert said(fresh, fresh).startswith(FAIR) and said(imported, imported).startswith(FAIR)
