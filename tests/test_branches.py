"""Runs that begin at a step of another: the same as a run from the beginning."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from msgspec.structs import replace

from mhsh.errors import UserError
from mhsh.storage.outcome import DIVERGED
from mhsh.storage.run_folder import RunFolder
from mhsh.training.branch import branch as begin_branch
from mhsh.training.loop import check_own_entries
from mhsh.verdict.runs import load_runs
from tests.runs import CONFIG, final_state, mhsh, mhsh_here, rows_without_timings

TRUNK = [*CONFIG, "--config.optimizer.schedule=wsd"]
DECAYED = [*TRUNK, "--config.train.num_steps=18", "--config.optimizer.decay_steps=6"]


@pytest.fixture(scope="module")
def trunk(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 36 steps at a constant rate, with checkpoints of steps 12, 24 and 36."""
    workdir = tmp_path_factory.mktemp("branches") / "trunk"
    done = mhsh("train", *TRUNK, corpus, f"--workdir={workdir}")
    assert done.returncode == 0, done.stderr
    return workdir


def test_a_branch_is_the_run_that_its_config_describes(trunk, corpus, tmp_path, monkeypatch):
    """Up to the rounding of another program. The copied steps are the trunk's, bit for bit. The
    first attempt to copy was killed before the checkpoint was there.
    """
    whole, branch = tmp_path / "whole", tmp_path / "branch"
    assert mhsh("train", *DECAYED, corpus, f"--workdir={whole}").returncode == 0
    config = RunFolder(whole).read_config()
    config = replace(config, train=replace(config.train, start_from=f"{trunk}@12"))
    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr("mhsh.training.branch._copy_checkpoint", Mock(side_effect=KeyboardInterrupt))
        begin_branch(RunFolder.open_for_training(branch, config), config, str(trunk), 12)
    begun = RunFolder(branch).read_run()
    assert begun["status"] == "branching"
    assert begun["wall_seconds"] == {"training": RunFolder(trunk).counters(12).seconds}  # without the trunk's later steps
    done = mhsh("train", *DECAYED, corpus, f"--config.train.start_from={trunk}@12", f"--workdir={branch}")
    assert done.returncode == 0, done.stderr
    assert "resuming from the checkpoint of step 12" in done.stdout
    rows, expected = rows_without_timings(branch), rows_without_timings(whole)
    assert rows[:12] == rows_without_timings(trunk)[:12]
    for row, other in zip(rows, expected, strict=True):
        assert all(row.pop(key) == other.pop(key) for key in ("step", "split", "batch"))
        assert row.pop("loss_parts", []) == pytest.approx(other.pop("loss_parts", []), rel=1e-4)
        assert row == pytest.approx(other, rel=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), final_state(branch), final_state(whole))
    record = RunFolder(branch).read_run()
    assert record["branched_from"] == {"folder": str(trunk), "step": 12}
    assert record["status"] == "finished"
    runs = load_runs([branch, whole]).runs
    assert [run.total("tokens") for run in runs] == [runs[0].total("tokens")] * 2


def test_a_branch_of_a_run_that_diverged_before_has_diverged(trunk, corpus, tmp_path):
    diverged, branch = tmp_path / "diverged", RunFolder(tmp_path / "branch")
    shutil.copytree(trunk, diverged)
    shutil.rmtree(diverged / "checkpoints" / "12")
    RunFolder(diverged).write_run(RunFolder(diverged).read_run() | {"status": "stopped", "outcome": DIVERGED})
    flags = [*DECAYED, corpus, f"--config.train.start_from={diverged}@12"]
    for _ in range(2):
        done = mhsh_here("train", *flags, f"--workdir={branch.path}")
        assert done.returncode == 2
        assert f"its first steps are those of {diverged}, which diverged before step 12" in done.stderr
    (run,) = load_runs([branch.path]).runs
    assert run.recorded("outcome") == DIVERGED and run.config.train.start_from == ""


def test_a_run_whose_name_reads_as_a_step_of_another_is_named(make_config, tmp_path):
    named = RunFolder.open_for_training(tmp_path / "my bert@2", make_config("bert", "2l8h"))
    named.write_run({})
    for start, whole in ((f"{named.path}", False), (f"{named.path}/", True)):
        config = make_config("bert", "2l8h", **{"train.start_from": start})
        with contextlib.nullcontext() if whole else pytest.raises(UserError, match=rf"start_from='{named.path}/'$"):
            check_own_entries(config, tmp_path / "new")
    with pytest.raises(UserError, match=rf"ends with them; .*start_from='{named.path}/'$"):
        RunFolder.open_for_training(named.path, make_config("bert", "2l8h", **{"train.num_steps": 41}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["--config.train.start_from={trunk}@13"], "the run has no checkpoint of step 13; it has 12, 24, 36"),
        (["--config.train.start_from={trunk}@36"], "names step 36; allowed with train.num_steps = 18: 1 to 17"),
        (["--config.train.seed=5"], "train.seed is 0 there and 5 here; a branch can only have another schedule"),
        (["--config.optimizer.decay_steps=8"], "the learning rate of step 11 is"),
        (["--config.optimizer.schedule=constant", "--config.optimizer.decay_steps=0"], "train the first run with wsd"),
        (["--config.model.num_layers=3"], "model.num_layers is 2 there and 3 here"),
        (["--config.train.keep_moments=True"], "which keeps them anyway: False"),
    ],
)
def test_what_is_no_branch_is_refused(trunk, corpus, tmp_path, changes, said):
    flags = [each.format(trunk=trunk) for each in (f"--config.train.start_from={trunk}@12", *changes)]
    done = mhsh_here("train", *DECAYED, corpus, *flags, f"--workdir={tmp_path / 'run'}")
    assert done.returncode == 2
    assert said in done.stderr and done.stderr.count("\n") == 1, done.stderr
