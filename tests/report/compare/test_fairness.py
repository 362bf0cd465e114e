"""Tests of the conditions of a comparison: what is equal, what matters, and the verdict."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from mhsh.config.schema import OptimizerConfig
from mhsh.errors import UserError
from mhsh.report.compare.fairness import (
    Condition,
    check_treatment,
    config_differences,
    config_fields,
    different_tasks,
    excess,
    find_conditions,
    marks,
    same_data,
    verdict,
)
from mhsh.report.compare.groups import group_runs
from mhsh.run_folder import RunFolder
from mhsh.verdict.runs import load_runs


def rows_of(*paths: Path) -> dict[str, Condition]:
    runs = load_runs(paths).runs
    return {row.name: row for row in find_conditions(runs, group_runs(runs))}


def test_config_differences_hold_every_differing_field_and_no_other(make_run) -> None:
    paths = [make_run("a"), make_run("b", model={"num_layers": 4, "num_heads": 4}), make_run("c", optimizer={"beta2": 0.98})]
    runs = load_runs(paths).runs
    rows = config_differences(config_fields(runs, group_runs(runs)))
    assert [(row.name, row.values) for row in rows] == [
        ("model.num_layers", ("2", "4", "2")),
        ("model.num_heads", ("8", "4", "8")),
        ("optimizer.beta2", ("0.999", "0.999", "0.98")),
    ]


def test_conditions_say_equal_differs_or_not_recorded(make_run) -> None:
    paths = [make_run("a"), make_run("b", record={"git_revision": "def", "versions": {"jax": "0.10.0", "flax": "0.12"}})]
    rows = rows_of(*paths)
    assert rows["data fingerprint"].equal is True
    assert rows["code revision"].equal is False
    assert rows["code revision"].values == ("abc", "def")
    assert rows["version of flax"].equal is None
    assert rows["version of flax"].values == ("not recorded", "0.12")
    assert rows["total parameters"].values == ("150,000", "150,000")


def test_same_data(make_run) -> None:
    a, b = make_run("a"), make_run("b")
    c, d = make_run("c", record={"data": {"fingerprint": "beef"}}), make_run("d", record={"data": None})
    assert same_data([[run] for run in load_runs([a, b]).runs]) is True
    assert same_data([[run] for run in load_runs([a, c]).runs]) is False
    assert same_data([[run] for run in load_runs([a, d]).runs]) is None
    assert same_data([[run] for run in load_runs([a, c, d]).runs]) is False


def test_the_excess_of_counts() -> None:
    assert excess([100.0, 104.0, None, 101.0]) == 0.04
    assert excess([0.0, 5.0]) == math.inf
    assert excess([7.0]) == excess([None]) == excess([]) == 0


def test_which_runs_have_other_tasks(make_run) -> None:
    def difference(**changed: dict[str, Any]) -> str | None:
        number = len(list(make_run("a").parent.iterdir()))
        return different_tasks(load_runs([make_run("a"), make_run(str(number), **changed)]).runs)

    assert difference(model={"num_layers": 4}) is None
    assert difference(model={"vocab_size": 512}) == "the vocabulary differs"
    assert difference(data={"vocab_path": "/other.txt"}) == "the vocabulary differs"
    assert difference(data={"tokenizer": "bytes"}, model={"vocab_size": 261}) == "the tokenizer differs"
    assert difference(model={"objective": "clm", "next_sentence": False}) == "the objective differs"


def test_translations_with_other_vocabularies_are_in_other_units(tmp_path: Path, make_config) -> None:
    paths = []
    for name, vocabulary in (("a", "{}"), ("b", "{}"), ("c", "[]")):
        folder = RunFolder.open_for_training(tmp_path / name, make_config("translation", "tiny"))
        folder.append_metrics([{"step": 1, "split": "train", "loss": 3.0}])
        (folder.path / "tokenizer.json").write_text(vocabulary)
        paths.append(tmp_path / name)
    assert different_tasks(load_runs(paths[:2]).runs) is None
    assert different_tasks(load_runs(paths[1:]).runs) == "the vocabulary differs"


@pytest.mark.parametrize(("named", "message"), [("model.innit", "did you mean model.init"), ("colour", "mhsh configs lists")])
def test_a_treatment_that_is_no_field(named: str, message: str) -> None:
    check_treatment(["shape", "model.init", "data.layout"])
    with pytest.raises(UserError, match=f"--treatment={named} is neither a field of a config nor 'shape'; {message}"):
        check_treatment([named])


def test_a_vocabulary_path_says_nothing_of_bytes(make_run) -> None:
    def of_bytes(name: str, path: str) -> Path:
        return make_run(name, data={"tokenizer": "bytes", "vocab_path": path}, model={"vocab_size": 261})

    assert different_tasks(load_runs([of_bytes("a", ""), of_bytes("b", "/elsewhere.txt")]).runs) is None


def with_batches(path: Path, checksums: list[str]) -> Path:
    """The same run, its training rows naming their batches, as training writes them."""
    folder = RunFolder(path)
    rows = folder.read_metrics().rows
    (path / "metrics.jsonl").unlink()
    folder.append_metrics([row | {"batch": checksums[row["step"] - 1]} for row in rows])
    return path


BATCHES = [f"{number:016x}" for number in range(4)]
EVERYTHING = {"weight_decayed_parameters": 120_000, "flops_per_token_forward": 1e6, "devices": "cpu", "mesh": {"data": 1}}


def said(make_run, *others: Path) -> tuple[str, tuple[str, ...]]:
    """The verdict on a sound run beside `others`, and the marks."""
    runs = load_runs([with_batches(make_run("base", [3.0] * 4, record=EVERYTHING), BATCHES), *others]).runs
    rows = find_conditions(runs, group_runs(runs))
    return verdict(rows), marks(rows)


def test_two_models_under_equal_conditions_are_fair(make_run) -> None:
    sizes = {"parameters": {"encoder": 101_000, "total": 151_000}, "flops_per_token_forward": 1.1e6}
    other = make_run("b", [3.0] * 4, model={"num_layers": 4, "num_heads": 4}, record=EVERYTHING | sizes)
    assert said(make_run, with_batches(other, BATCHES)) == (
        "Comparable: nothing that matters differs but the treatment (shape), and parameter counts by at most 2 %.",
        (),
    )


@pytest.mark.parametrize(
    ("changed", "batches", "what"),
    [
        ({"data": {"seed": 5}}, BATCHES, "data seed (split, order, masking)"),
        ({}, BATCHES[::-1], "data order (batches at equal steps)"),
        ({"record": {"data": {"fingerprint": "beef", "unigram_entropy": 3.0}}}, BATCHES, "data fingerprint"),
        ({"data": {"sequence_length": 32}}, BATCHES, "rows of data"),
        ({"data": {"mask_fraction": 0.2}}, BATCHES, "rows of data"),
        ({"optimizer": {"learning_rate": 2e-4}}, BATCHES, "learning-rate schedule"),
        ({"optimizer": {"warmup_steps": 7}}, BATCHES, "learning-rate schedule"),
        ({"training": {"num_steps": 999}}, BATCHES, "steps and batch"),
        ({"training": {"batch_size": 4}}, BATCHES, "steps and batch"),
        ({"training": {"eval_batches": 3}}, BATCHES, "validation batches"),
        ({"optimizer": {"weight_decay": 0.2}}, BATCHES, "update rule"),
        ({"optimizer": {"clip_norm": 0.5}}, BATCHES, "update rule"),
        ({"model": {"attention_dropout": 0.3}}, BATCHES, "dropout"),
        ({"model": {"compute_dtype": "bfloat16"}}, BATCHES, "precision"),
        ({"record": {"parameters": {"encoder": 100_000, "total": 153_001}}}, BATCHES, "total parameters"),
        ({"record": {"parameters": {"encoder": 97_900, "total": 150_000}}}, BATCHES, "encoder parameters"),
        ({"record": {"weight_decayed_parameters": 130_000}}, BATCHES, "weight-decayed parameters"),
    ],
)
def test_a_planted_unfairness_is_found(make_run, changed: dict[str, Any], batches: list[str], what: str) -> None:
    changed = changed | {"record": EVERYTHING | changed.get("record", {})}
    words, marked = said(make_run, with_batches(make_run("b", [3.0] * 4, **changed), batches))
    excess = {"total parameters": "2.0 %", "encoder parameters": "2.1 %", "weight-decayed parameters": "8.3 %"}.get(what)
    difference = f"sizes ({what}: up to {excess} more, and 2.0 % is allowed)" if excess else what
    assert words == f"Not comparable: different {difference}."
    assert len(marked) == 1
    assert marked[0].startswith(f"Not equal: {what}: ")


def test_fewer_tokens_are_found(make_run) -> None:
    words, _ = said(make_run, with_batches(make_run("b", [3.0] * 3, record=EVERYTHING), BATCHES))
    assert words == "Not comparable: different tokens seen."


def test_another_start_is_found(make_run) -> None:
    started = {"start_from": "/runs/before"}
    words, _ = said(make_run, with_batches(make_run("b", [3.0] * 4, training=started, record=EVERYTHING), BATCHES))
    assert words == "Not comparable: different start."


@pytest.mark.parametrize("changed", [{"git_revision": "def"}, {"devices": "gpu"}, {"versions": {"jax": "0.11"}}])
def test_other_hardware_or_code_leaves_losses_comparable_and_seconds_not(make_run, changed: dict[str, Any]) -> None:
    other = make_run("b", [3.0] * 4, record=EVERYTHING | changed)
    words, marked = said(make_run, with_batches(other, BATCHES))
    assert words.startswith("Comparable: ")
    assert words.endswith(" Device seconds are not comparable: see the conditions of the comparison.")
    assert marked[0].startswith("Device seconds are not comparable: different ")


def test_training_seeds_are_named_and_not_unfair(make_run) -> None:
    others = [
        with_batches(make_run(f"b-{seed}", [3.0] * 4, training={"seed": seed}, record=EVERYTHING), BATCHES) for seed in (1, 2)
    ]
    assert said(make_run, *others)[0].startswith("Comparable: ")
    rows = rows_of(make_run("x", [3.0]), *others)
    # All three are one group, whose seeds stand in one cell.
    assert rows["training seed"].values == ("0; 1; 2",)


def test_equal_sets_of_data_seeds_are_fair_and_shuffled_ones_equal(make_run) -> None:
    def group(name: str, seeds: tuple[int, ...], **changed: Any) -> list[Path]:
        return [make_run(f"{name}-{s}", [3.0], training={"seed": s}, data={"seed": s}, **changed) for s in seeds]

    deep = {"model": {"num_layers": 4}}
    assert rows_of(*group("a", (0, 1)), *group("b", (1, 0), **deep))["data seed (split, order, masking)"].equal is True
    assert rows_of(*group("c", (0, 1)), *group("d", (0, 2), **deep))["data seed (split, order, masking)"].matters


def test_what_is_not_recorded_is_not_taken_for_equal(make_run) -> None:
    words, _ = said(make_run, make_run("b", [3.0] * 4, record=EVERYTHING))
    assert words == "Comparable as far as recorded, but not every run recorded data order (batches at equal steps)."


@pytest.mark.parametrize("left_out", ["git_revision", "devices", "versions"])
def test_what_only_slows_a_run_need_not_be_recorded(make_run, left_out: str) -> None:
    other = make_run("b", [3.0] * 4, record=EVERYTHING | {left_out: None})
    assert said(make_run, with_batches(other, BATCHES))[0].startswith("Comparable: ")


def test_every_setting_of_the_optimizer_is_a_condition(make_run) -> None:
    rows = rows_of(make_run("a", [3.0]))
    settings = " ".join(rows[what].values[0] for what in ("learning-rate schedule", "update rule"))
    for name in OptimizerConfig.__struct_fields__:
        assert f"{name} " in settings


def test_differences_that_matter_come_first(make_run) -> None:
    runs = load_runs([make_run("a", [3.0]), make_run("b", [3.0], optimizer={"beta1": 0.8}, record={"git_revision": "x"})]).runs
    rows = find_conditions(runs, group_runs(runs))
    assert [row.name for row in rows[:2]] == ["update rule", "code revision"]
    assert not any(row.matters or row.clock for row in rows[2:])
