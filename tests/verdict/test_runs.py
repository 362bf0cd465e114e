"""Tests of loading run folders: names, missing records, damage, and rows that would draw a wrong
curve.
"""

from __future__ import annotations

import copy
import functools
import itertools
import json
import math
import operator
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhsh.config.entries import REGISTRIES, check_recorded
from mhsh.config.shapes import layer_parameters
from mhsh.errors import UserError
from mhsh.report.build import build_report
from mhsh.storage.outcome import LEFT, NO_METRICS
from mhsh.storage.run_folder import METRICS_FILE, RunFolder
from mhsh.verdict.experiment import load_experiment
from mhsh.verdict.findings import compare, judge_page
from mhsh.verdict.runs import AXES, SPLITS, curve_of, find_runs, load_runs, sound_metrics
from tests.planted import lineage_of


def append(path: Path, **fields: object) -> None:
    row = {"step": 4, "split": "train", "tokens": 2048, "flops": 4e9, "seconds": 0.4, "loss": 2.0} | fields
    with open(path / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["a", "b"], ["a", "b"]),
        (["x/p/run", "y/p/run", "z/q/run", "other"], ["x/p/run", "y/p/run", "q/run", "other"]),
        (["a\x1b[31m", "a\x07[31m"], ["a\ufffd[31m", "a\ufffd[31m (2)"]),  # what cannot be shown
    ],
)
def test_names_are_the_folders_own_with_the_parents_of_equal_ones(make_run, folders: list[str], names: list[str]) -> None:
    loaded = load_runs([make_run(folder, [1.0]) for folder in folders])
    assert [run.name for run in loaded.runs] == names and loaded.refused == ()


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
    assert found == ["all/6l4h", "all/24l1h", "all/seeds/seed-9", "all/seeds/seed-10", "all/sweep/runs/deep"]
    mixed = load_runs([runs["all/24l1h"], tmp_path / "all" / "sweep", tmp_path / "all"])
    assert [run.name for run in mixed.runs] == ["24l1h", "deep", "6l4h", "seed-9", "seed-10"] and not mixed.refused


def test_runs_come_in_the_order_of_the_numbers_in_their_names(tmp_path: Path) -> None:
    names = ["6l lr=5e-5", "6l lr=0.0005", "6l lr=0.001", "6l lr=0.002", "24l lr=1e-05"]
    for name in sorted(names):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").touch()
    assert [path.name for path in find_runs([tmp_path])[0]] == names


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
    assert "line 3 is cut short" in run.problems[0]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"loss": "low"}, "loss is not a number"),
        ({"loss": True}, "loss is not a number"),
        ({"tokens": [1]}, "tokens is not a number"),
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


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        ("run.json", "has rows in metrics.jsonl and no run.json"),
        ("code", "did not record code: this version of mhsh did not train it"),
        ("batch", "did not record the checksum of validation's batches"),
    ],
)
def test_a_run_that_lacks_a_record_is_refused_by_name(make_run, lost: str, words: str) -> None:
    path, other = make_run("a", [3.0], [2.0]), make_run("b", [3.0], [2.0])
    if lost == "run.json":
        (path / "run.json").unlink()
    elif lost == "code":
        record = json.loads((path / "run.json").read_text())
        del record["code"]
        (path / "run.json").write_text(json.dumps(record))
    else:
        append(path, split="validation", step=20, tokens=10**6, flops=1e12, seconds=9.0)
    loaded = load_runs([path, other])
    assert [run.name for run in loaded.runs] == ["b"]
    (line,) = loaded.refused
    assert str(path) in line and words in line


def test_a_run_without_its_config_is_refused_by_name(make_run, tmp_path: Path) -> None:
    paths = [make_run(f"all/{name}", [3.0], [2.0]) for name in "ab"]
    (paths[1] / "config.json").unlink()
    for named in ([tmp_path / "all"], paths):
        loaded = load_runs(named)
        assert [run.name for run in loaded.runs] == ["a"]
        (line,) = loaded.refused
        assert str(paths[1]) in line and "config.json" in line


def test_runs_deep_down_are_found_and_what_is_deeper_is_said(make_run, tmp_path: Path) -> None:
    make_run("all/study/sweep/runs/a", [3.0], [2.0])
    assert not load_runs([tmp_path / "all"]).refused
    make_run("all/study/sweep/runs/more/b", [3.0], [2.0])
    loaded = load_runs([tmp_path / "all"])
    assert [run.name for run in loaded.runs] == ["a"]
    (line,) = loaded.refused
    assert "more than 4 levels below" in line and str(tmp_path / "all/study/sweep/runs/more/b") in line


def test_a_run_whose_files_contradict_each_other_is_refused(make_run) -> None:
    """Configs swapped between two folders, and an edited last loss."""
    layers: dict[str, int] = {}
    shapes: dict[str, dict[str, Any]] = {"a": {}, "b": {"num_layers": 16, "num_heads": 1, "mlp_dim": 32}}
    for name, model in shapes.items():
        (plain,) = load_runs([make_run(f"plain/{name}", [3.0], model=model)]).runs
        layers[name] = layer_parameters(plain.config.model)
    paths = {}
    for name, model in shapes.items():
        paths[name] = make_run(name, [3.0], [2.0], model=model, record={"parameters": {"encoder": layers[name], "decoder": 0}})
        append(paths[name], step=10, split="validation", loss=2.0, batch="b", loss_parts=[1.9, 2.06])
        rows = (paths[name] / "metrics.jsonl").read_text().splitlines(keepends=True)
        (paths[name] / "metrics.jsonl").write_text("".join([rows[0], rows[2]]))
    assert [run.name for run in load_runs([*paths.values()]).runs] == ["a", "b"]
    configs = [(path / "config.json").read_bytes() for path in paths.values()]
    for path, config in zip(paths.values(), reversed(configs), strict=True):
        (path / "config.json").write_bytes(config)
    swapped = load_runs([*paths.values()])
    assert not swapped.runs
    for (name, path), line in zip(paths.items(), swapped.refused, strict=True):
        assert str(path) in line and f"{layers[name]:,} parameters by run.json" in line
    for path, config in zip(paths.values(), configs, strict=True):
        (path / "config.json").write_bytes(config)
    metrics = paths["b"] / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"loss": 2.0', '"loss": 1.8'))
    edited = load_runs([*paths.values()])
    assert [run.name for run in edited.runs] == ["a"] and "its parts are 1.9 to 2.06" in edited.refused[0]


def test_parts_of_few_predictions_make_no_run_wrong(make_run) -> None:
    """Validation weighs each part by them: a last batch of one row, and rows of short documents."""
    plans = [([2.0] * (count - 1) + [2.4], [32] * (count - 1) + [1]) for count in (2, 3, 4, 20)]
    for number, (parts, weights) in enumerate([*plans, ([0.1] * 5 + [3.6] * 15, [9] * 5 + [1] * 15)]):
        path = make_run(f"run {number}", [3.0], [1.0])
        (path / "metrics.jsonl").write_text("")
        append(path, step=10, split="validation", batch="b", loss=np.average(parts, weights=weights), loss_parts=parts)
        assert load_runs([path]).refused == ()


GONE = object()


def test_a_record_of_anybody_is_read_or_refused_in_a_line(make_run) -> None:
    """Each value of run.json is replaced by one of another type, or taken away."""
    path = make_run("a", [3.0], [2.0])
    folder, config = RunFolder(path), json.loads((path / "config.json").read_text())
    entry = {"field": "model.residual", "name": "gated", "file": "mine.py", "sha256": "ab" * 32}
    parent = {"step": 3, "tokens": 1, "code": {"0": "a"}, "numerics": {"0": {}}, "entries": [entry], "config": config}
    full = {"entries": [entry], "lost_rows": {"3": 2}, "wall_seconds": {"a": 1.0}, "started_from": {"lineage": [parent]}}
    whole = json.loads((path / "run.json").read_text()) | full

    refused = 0
    for keys, value in itertools.product(places_of(whole), (GONE, None, "x")):
        (path / "run.json").write_text(json.dumps(changed(whole, keys, value)))
        try:
            check_recorded(folder.read_config(), folder.read_run(), path, REGISTRIES)
            experiment = load_experiment([path])
            if any(group.runs for group in experiment.groups):
                build_report(judge_page([compare(experiment)]))
            folder.lineage(3)
        except UserError as error:
            refused += 1
            assert str(error).startswith(str(path)) and "\n" not in str(error), (keys, value)
    assert refused > 50


def places_of(value: Any, above: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of all values in plain JSON, those of a config apart."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*above, key)
        if key != "config":
            yield from places_of(value[key], (*above, key))


def changed(whole: Any, keys: tuple[str | int, ...], value: Any) -> Any:
    whole = copy.deepcopy(whole)
    holder = functools.reduce(operator.getitem, keys[:-1], whole)
    if value is GONE:
        del holder[keys[-1]]
    else:
        holder[keys[-1]] = value
    return whole


def test_a_run_that_has_logged_nothing_needs_no_record(make_run) -> None:
    (run,) = load_runs([make_run("a", with_record=False)]).runs
    assert not run.has_logged and run.outcome == NO_METRICS


def test_a_run_whose_parent_this_version_cannot_read_is_refused(make_run) -> None:
    first = make_run("first", [3.0] * 20)
    (parent,) = lineage_of(first, 20)
    unknown = parent | {"config": parent["config"] | {"model": parent["config"]["model"] | {"mlp": "from_the_future"}}}
    started = {"folder": str(first), "step": 20, "lineage": [unknown]}
    make_run("second", [2.0] * 20, training={"start_from": str(first)}, record={"started_from": started})
    loaded = load_runs([first, first.parent / "second"])
    assert [run.name for run in loaded.runs] == ["first"]
    (line,) = loaded.refused
    assert str(first.parent / "second") in line and "from_the_future" in line


def test_the_numbers_of_a_run(make_run) -> None:
    path = make_run("a", [3.0] * 36 + [2.0, 2.0, 2.5, 2.5], [2.9, 2.1, 2.4, 2.3])
    (run,) = load_runs([path]).runs
    assert (run.final_validation, run.final_train, run.outcome) == (2.3, 2.25, LEFT)
    assert (run.total("step"), run.total("tokens"), run.total("seconds")) == (40, 512 * 40, pytest.approx(4.0))


def test_every_number_beside_the_loss_is_read(make_run) -> None:
    path = make_run("a", validation=[])
    rows: list[dict[str, Any]] = [
        {"step": step, "split": "train", "loss": 3.0, "grad_norm": step / 7, "a name: \u00b7": step, "batch": f"{step:x}"}
        for step in range(1, 20)
    ]
    rows[5] |= {"loss": None, "grad_norm": None, "skipped": True}
    rows.append({"step": 19, "split": "validation", "loss": 2.5, "accuracy": 0.25, "batch": "beef"})
    RunFolder(path).append_metrics(rows)
    (run,) = load_runs([path]).runs
    train, validation = (run.curves[split].metrics for split in SPLITS)
    assert set(train) == {"grad_norm", "a name: \u00b7", "skipped"} and set(validation) == {"accuracy"}
    np.testing.assert_array_equal(train["grad_norm"], [np.nan if step == 6 else step / 7 for step in range(1, 20)])
    np.testing.assert_array_equal(np.flatnonzero(train["skipped"] == 1), [5])
    assert validation["accuracy"].tolist() == [0.25] and run.validation_batches == ("beef",)
    assert run.batches["checksum"].tolist() == [f"{step:x}".encode() for step in range(1, 20)]


_NUMBERS = st.one_of(
    st.none(), st.integers(), st.floats(), st.just(10**400), st.just(2**63), st.just(2**53 + 1), st.booleans(), st.just("1")
)
_ROWS = st.fixed_dictionaries(
    {"step": st.integers(0, 30), "split": st.sampled_from(["train", "validation", "test"])},
    optional={
        **dict.fromkeys((*AXES[1:], "loss"), _NUMBERS),
        "batch": st.one_of(st.text(max_size=3), st.none(), st.integers()),
        "note": st.one_of(st.text(max_size=4), st.lists(st.integers(), max_size=2), st.floats()),
    },
)
_ENDS = st.sampled_from(["\n", "\n", "\n", "\n", "\r\n", "\n \n", " ", ""])
_STRAY = st.sampled_from(['"', "}", "{", "\n", "\\", ",", "0", "-", "e", "\x00", "\xe9", "[", " ", "null", "NaN"])


@st.composite
def _files(draw: st.DrawFn) -> bytes:
    """Rows as training writes them, more or less: now and then a stray character, another line end,
    or a cut.
    """
    rows = draw(st.lists(_ROWS, max_size=6))
    if draw(st.booleans()):
        rows = sorted(rows, key=lambda row: row["step"])
    ascii_only = draw(st.booleans())
    text = "".join(json.dumps(row, ensure_ascii=ascii_only) + draw(_ENDS) for row in rows)
    for stray in draw(st.lists(_STRAY, max_size=2)):
        place = draw(st.integers(0, len(text)))
        text = text[:place] + stray + text[place + draw(st.integers(0, 3)) :]
    content = text.encode("utf-8", "surrogatepass") if draw(st.booleans()) else text.encode("latin-1", "replace")
    return content[: draw(st.integers(0, len(content)))] if draw(st.booleans()) else content


def _by_json(content: bytes) -> list[dict[str, Any]]:
    """The rows before the first line that json, or the kind of its values, says is damaged."""
    rows = []
    for line in content.split(b"\n")[:-1]:
        try:
            row = json.loads(line.decode())
        except ValueError:
            break
        if not isinstance(row, dict) or type(row.get("step")) is not int or not isinstance(row.get("split"), str):
            break
        rows.append(row)
    return rows


def _float(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or abs(value) > sys.float_info.max:
        return math.nan
    return float(value)


@given(content=_files())
def test_what_is_drawn_ascends_and_is_what_json_reads(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = RunFolder(tmp_path_factory.getbasetemp())
    (folder.path / METRICS_FILE).write_bytes(content)
    rows, metrics = [*folder.rows()], sound_metrics(folder)
    by_json = _by_json(content)
    both = min(len(rows), len(by_json))
    assert repr(rows[:both]) == repr(by_json[:both])
    assert metrics.problem or metrics.count >= len(by_json)
    for split in SPLITS:
        own = [row for row in rows[: metrics.count] if row["split"] == split]
        for key in metrics.keys(split):
            np.testing.assert_array_equal(metrics.numbers(split, key), [_float(row.get(key)) for row in own])
            if all(isinstance(row.get(key), str) for row in own):
                plain = [row[key] if row[key].isascii() and row[key].isprintable() else "" for row in own]
                assert [text.decode() for text in metrics.texts(split, key)] == plain
        drawn = curve_of(metrics, split)
        assert len(drawn) == sum("loss" in row for row in own)
        assert (np.diff(drawn.x["step"]) > 0).all()
        for values in drawn.x.values():
            assert (np.diff(values[np.isfinite(values)]) >= 0).all()
