"""Tests of loading run folders: names, damage, and rows that would draw a wrong curve."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mhsh.run_folder import RunFolder
from mhsh.verdict.conditions import find_conditions
from mhsh.verdict.runs import load_runs


def append(path: Path, **fields: object) -> None:
    row = {"step": 4, "split": "train", "tokens": 2048, "flops": 4e9, "seconds": 0.4, "loss": 2.0} | fields
    with open(path / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def test_names_are_the_folders_own(make_run) -> None:
    loaded = load_runs([make_run("a", [1.0]), make_run("b", [1.0])])
    assert [run.name for run in loaded.runs] == ["a", "b"]
    assert loaded.refused == ()


def test_equal_names_get_their_parents(make_run) -> None:
    folders = [make_run(name, [1.0]) for name in ("x/p/run", "y/p/run", "z/q/run", "other")]
    assert [run.name for run in load_runs(folders).runs] == ["x/p/run", "y/p/run", "q/run", "other"]


def test_names_that_differ_only_in_what_cannot_be_shown_are_numbered(make_run) -> None:
    folders = [make_run("a\x1b[31m", [1.0]), make_run("a\x07[31m", [1.0])]
    assert [run.name for run in load_runs(folders).runs] == ["a\ufffd[31m", "a\ufffd[31m (2)"]


def test_a_folder_named_twice_is_drawn_once(make_run, tmp_path: Path) -> None:
    path = make_run("a", [1.0])
    (tmp_path / "link").symlink_to(path)
    loaded = load_runs([path, tmp_path / "link"])
    assert [run.name for run in loaded.runs] == ["a"] and not loaded.refused


def test_a_folder_stands_for_the_runs_in_it(make_run, tmp_path: Path) -> None:
    names = ("all/24l1h", "all/6l4h", "all/sweep/runs/deep", "all/seeds/seed-10", "all/seeds/seed-9")
    runs = {name: make_run(name, [1.0]) for name in names}
    (tmp_path / "all" / "exported").mkdir()  # has a config.json too, and is no run
    (tmp_path / "all" / "exported" / "config.json").write_text("{}")
    found = [str(run.path.relative_to(tmp_path)) for run in load_runs([tmp_path / "all"]).runs]
    assert found == ["all/6l4h", "all/24l1h", "all/seeds/seed-9", "all/seeds/seed-10"]
    mixed = load_runs([runs["all/24l1h"], tmp_path / "all" / "sweep", tmp_path / "all"])
    assert [run.name for run in mixed.runs] == ["24l1h", "deep", "6l4h", "seed-9", "seed-10"] and not mixed.refused


def test_folders_without_a_run_are_refused_by_name(make_run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    broken = make_run("broken", [1.0])
    (broken / "config.json").write_text('{"model": 1}')
    loaded = load_runs([tmp_path / "missing", tmp_path / "empty", tmp_path / "file", broken])
    assert loaded.runs == ()
    assert all(
        str(tmp_path / name) in line for name, line in zip(("missing", "empty", "file", "broken"), loaded.refused, strict=True)
    )


def test_rows_before_a_truncated_line_stay(make_run) -> None:
    path = make_run("a", [3.0, 2.0, 1.0])
    metrics = path / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-5])
    run = load_runs([path]).runs[0]
    assert run.curves["train"].loss.tolist() == [3.0, 2.0]
    assert "cut short in line 3" in run.problems[0]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"loss": "low"}, "loss is no number"),
        ({"loss": True}, "loss is no number"),
        ({"tokens": [1]}, "tokens is no number"),
        ({"step": 2}, "steps go back from 3 to 2"),
    ],
)
def test_rows_from_one_that_would_draw_a_wrong_curve_are_left_out(make_run, fields: dict[str, object], reason: str) -> None:
    path = make_run("a", [3.0, 2.0, 1.0])
    append(path, **fields)
    append(path, step=9)
    run = load_runs([path]).runs[0]
    assert run.curves["train"].loss.tolist() == [3.0, 2.0, 1.0]
    assert f"line 4: {reason}" in run.problems[0]


def test_numbers_that_no_float_holds_are_gaps(make_run) -> None:
    path = make_run("a", [3.0, float("inf")])
    append(path, loss=10**400)
    loss = load_runs([path]).runs[0].curves["train"].loss
    assert np.isnan(loss).tolist() == [False, True, True]


def test_a_damaged_record_is_a_problem_and_the_curves_stay(make_run) -> None:
    path = make_run("a", [3.0])
    (path / "run.json").write_text('{"status": ')
    run = load_runs([path]).runs[0]
    assert run.drawable
    assert run.record == {}
    assert "run.json" in run.problems[0]


def test_records_of_another_shape_read_as_not_recorded(make_run) -> None:
    run = load_runs([make_run("a", [3.0], record={"data": "text", "parameters": {"total": "many"}})]).runs[0]
    assert run.recorded("data", "fingerprint") is None
    assert run.recorded_number("parameters", "total") is None


def test_a_parent_that_this_version_cannot_read_is_a_problem_of_that_run_alone(make_run) -> None:
    first = make_run("first", [3.0] * 20)
    (parent,) = RunFolder(first).lineage(20)
    unknown = parent | {"config": parent["config"] | {"model": parent["config"]["model"] | {"residual": "from_the_future"}}}
    started = {"folder": str(first), "step": 20, "lineage": [unknown]}
    second = make_run("second", [2.0] * 20, training={"start_from": str(first)}, record={"started_from": started})
    a, b = load_runs([first, second]).runs
    assert not a.problems and [each.config for each in b.lineage] == [None]
    (problem,) = b.problems
    assert str(second) in problem and "from_the_future" in problem and problem.endswith("it counts as not recorded")
    (start,) = [row for row in find_conditions([[b]]) if row.name == "start"]
    assert start.equal is None
