"""Tests of a sweep's folder: whose it is, how it grows, and what it says of each cell."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from mhsh.config import recorded
from mhsh.config.recorded import Renaming
from mhsh.config.schema import SCHEMA_VERSION
from mhsh.errors import UserError
from mhsh.storage.outcome import DIVERGED
from mhsh.storage.run_record import FINISHED, RUNNING, STOPPED
from mhsh.sweep.axes import cells_of, parse_axes
from mhsh.sweep.folder import FAILED, GAVE_UP, WAITING, Plan, SweepFolder, Tuning
from mhsh.training.record import outcome_of
from tests.conftest import load_fields


def planned(*axes: str, **optimizer: Any) -> Plan:
    fields = load_fields("evidence", "heads")
    fields["optimizer"] |= optimizer
    parsed = parse_axes(axes, fields)
    return Plan(parsed, cells_of(parsed, fields, lambda config: {"parameters": 1, "tokens": 2, "flops": 3}))


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    made = SweepFolder(tmp_path / "s")
    made.open_for(planned("seed=0,1"))
    return made


def everything(path: os.PathLike[str]) -> dict[Path, bytes]:
    return {each: each.read_bytes() for each in Path(path).rglob("*") if each.is_file()}


def begin(folder: SweepFolder, config: Any, record: dict[str, Any] | None) -> None:
    run = type(folder.run_folder("seed-0")).open_for_training(folder.run_folder("seed-0").path, config)
    if record is not None:
        run.write_run(record)


def test_a_plan_comes_back_as_it_was(folder):
    assert folder.read_plan() == planned("seed=0,1")


def test_a_plan_of_before_names_what_fields_are_called_today(tmp_path, monkeypatch):
    folder = SweepFolder(tmp_path / "s")
    folder.open_for(planned("beta2=0.9,0.98", "scheme=post_ln,admin"))
    text = (folder.path / "plan.json").read_text()
    old = text.replace('"optimizer.beta2"', '"optimizer.decay"').replace('"beta2"', '"decay"')
    (folder.path / "plan.json").write_text(old)
    change = Renaming(SCHEMA_VERSION + 1, "optimizer.decay", "optimizer.beta2")
    monkeypatch.setattr(recorded, "CHANGES", (change,))
    assert folder.read_plan() == planned("beta2=0.9,0.98", "scheme=post_ln,admin")
    (folder.path / "plan.json").write_text(text.replace(f'"schema": {SCHEMA_VERSION}', f'"schema": {SCHEMA_VERSION + 1}', 1))
    with pytest.raises(UserError, match=r"plan.json was written by mhsh .* with schema \d+, .*: install that mhsh, or the newest"):
        folder.read_plan()


def test_how_a_sweep_chooses_is_planned_once(folder):
    """A plan of before says nothing of it, and may get it."""
    plan = folder.path / "plan.json"
    fields = json.loads(plan.read_text())
    del fields["choosing"]
    plan.write_text(json.dumps(fields))
    assert folder.read_plan().choosing is None
    chosen = dataclasses.replace(planned("seed=0,1"), choosing=Tuning("lr", 2))
    folder.open_for(chosen)
    assert folder.read_plan() == chosen
    for other in (None, Tuning("lr", 3), Tuning("lr", None)):
        with pytest.raises(UserError, match="planned with --over=lr --choosing-seeds=2"):
            folder.open_for(dataclasses.replace(chosen, choosing=other))
    assert folder.read_plan() == chosen


def test_several_hosts_open_a_new_folder_at_once(tmp_path):
    """What one host makes before it writes the plan is no reason for another to refuse."""
    folder = SweepFolder(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / ".plan.json.half.tmp").write_text("{")
    folder.open_for(planned("seed=0,1"))
    folder.open_for(planned("seed=0,1"))
    (tmp_path / "other/runs/mine").mkdir(parents=True)
    with pytest.raises(UserError, match="holds no sweep"):
        SweepFolder(tmp_path / "other").open_for(planned("seed=0,1"))


def test_a_sweep_grows_and_keeps_what_it_has(folder):
    folder.finish("seed-1", 2, "why")
    folder.open_for(planned("seed=0,1,2"))
    assert [cell.name for cell in folder.read_plan().cells] == ["seed-0", "seed-1", "seed-2"]
    assert folder.state("seed-1").kind == FAILED


@pytest.mark.parametrize(
    ("axes", "optimizer", "message"),
    [
        (["seed=0"], {}, "another sweep, whose cell seed-1 is not in this one"),
        (["seed=0,1", "lr=1e-3"], {}, "another sweep, whose cell seed-0 is not in this one"),
        (["seed=0,1"], {"beta2": 0.9}, "optimizer.beta2 is 0.98 there, 0.9 here"),
    ],
)
def test_another_sweep_is_refused_and_nothing_changes(folder, axes, optimizer, message):
    before = everything(folder.path)
    with pytest.raises(UserError, match=message):
        folder.open_for(planned(*axes, **optimizer))
    assert everything(folder.path) == before


def test_what_is_no_sweep_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="holds no sweep"):
        SweepFolder(tmp_path).open_for(planned("seed=0"))
    with pytest.raises(UserError, match=r"plan.json is missing"):
        SweepFolder(tmp_path).read_plan()
    with pytest.raises(UserError, match=r"Orbax, .*, misreads \[1\] in that name"):
        SweepFolder(tmp_path / "s[1]").open_for(planned("seed=0"))
    assert everything(tmp_path) == {tmp_path / "thesis.txt": b"mine"}


PLAN = '{"axes": [], "cells": [{"name": "%s", "settings": {}, "config": {}, "cost": {}}]}'


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"axes": []}', '{"axes": [{}], "cells": []}', '{"axes": 3, "cells": 4}', PLAN % "../../x"]
)
def test_a_damaged_plan_is_one_line(folder, text):
    (folder.path / "plan.json").write_text(text)
    with pytest.raises(UserError, match=r"plan.json"):
        folder.read_plan()


@pytest.mark.parametrize(
    ("record", "exit_status", "kind"),
    [
        (None, None, WAITING),
        (None, 75, WAITING),  # stopped before its first step
        (None, 2, FAILED),
        ({"status": "running"}, None, STOPPED),  # killed, and the sweep with it
        ({"status": "running"}, 137, FAILED),
        ({"status": "stopped"}, 75, STOPPED),
        ({"status": "stopped"}, 130, STOPPED),
        (None, 143, WAITING),
        ({"status": "stopped", "outcome": DIVERGED}, 2, GAVE_UP),
        ({"status": "finished", "outcome": "on the unigram plateau"}, 0, FINISHED),
        ({"status": "finished", "outcome": DIVERGED}, None, FINISHED),
    ],
)
def test_states(folder, record, exit_status, kind):
    begin(folder, folder.read_plan().cells[0].config, record)
    if exit_status is not None:
        folder.finish("seed-0", exit_status, "mhsh: the reason")
    state = folder.state("seed-0")
    assert state.kind == kind
    assert state.reason == (f"exit status {exit_status}: mhsh: the reason" if kind == FAILED else "")
    assert folder.state("seed-1").kind == WAITING


def test_a_cell_that_is_stopped_while_its_losses_are_not_finite_goes_on(folder):
    """Updates are skipped, and training has not given up; the next ones may be finite."""
    cell, run = folder.read_plan().cells[0], folder.run_folder("seed-0")
    begin(folder, cell.config, {})
    run.append_metrics([{"step": step, "split": "train", "loss": loss} for step, loss in enumerate((5.0, None, None), 1)])
    assert outcome_of(run, cell.config, 3.0) == DIVERGED
    run.write_run({"status": STOPPED, "outcome": outcome_of(run, cell.config, 3.0, goes_on=True)})
    folder.finish("seed-0", 143)
    assert folder.state("seed-0").kind == STOPPED


def test_a_damaged_record_is_a_failed_cell_and_named(folder):
    begin(folder, folder.read_plan().cells[0].config, {})
    (folder.path / "runs" / "seed-0" / "run.json").write_text("{")
    state = folder.state("seed-0")
    assert state.kind == FAILED and "run.json" in state.reason


def test_a_cell_is_running_while_its_run_is_held(folder):
    begin(folder, folder.read_plan().cells[0].config, None)
    with folder.run_folder("seed-0").hold():
        state = folder.state("seed-0")
        assert state.kind == RUNNING and f"process {os.getpid()} on" in state.reason
    assert folder.state("seed-0").kind == WAITING


def test_tries_without_a_newer_checkpoint_or_an_end_are_counted(folder):
    assert [folder.begin("seed-0"), folder.begin("seed-0")] == [1, 2]
    assert folder.state("seed-0").kind == WAITING  # nothing is known of an end
    (folder.run_folder("seed-0").checkpoints_path / "12").mkdir(parents=True)
    assert [folder.begin("seed-0"), folder.begin("seed-0")] == [1, 2]
    folder.finish("seed-0", 75)
    assert folder.begin("seed-0") == 1


def test_two_plans_at_once_do_not_overwrite_each_other(bucket, monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    one, other = SweepFolder("gs://runs/s"), SweepFolder("gs://runs/s")
    one.open_for(planned("seed=0,1"))
    with pytest.raises(UserError, match=r"another process has just changed gs://runs/s/plan\.json"), other._guard_plan() as write:
        one.open_for(planned("seed=0,1,2"))
        write("{}")
    assert one.read_plan() == planned("seed=0,1,2")
