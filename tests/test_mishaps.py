"""What can go wrong in a run: non-finite numbers, damaged checkpoints, a full disk, kills."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from etils import epath

from mhsh.storage.run_folder import RunFolder
from mhsh.training.checkpoints.restore import load_recorded_corpus
from mhsh.training.checkpoints.verify import find_damage
from tests.forks import Fork
from tests.runs import CONFIG, cut_back, final_state, mhsh, mhsh_here, rows_without_timings


@pytest.mark.slow  # by default: a cell of the sweep in tests/cli/test_sweep.py diverges
def test_a_run_that_diverges_says_so(corpus, tmp_path):
    """At a learning rate of 1e38 the second forward pass overflows. Parameters and checkpoints stay
    finite.
    """
    workdir = tmp_path / "diverging"
    overrides = ["--config.optimizer.learning_rate=1e38", "--config.model.residual=pre_ln", "--config.optimizer.warmup_steps=0"]
    overrides += ["--config.train.max_skipped_steps=5", "--config.train.checkpoint_interval=4"]
    arguments = ["train", *CONFIG, corpus, *overrides, f"--workdir={workdir}"]
    done = mhsh(*arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "diverged: 5 updates in a row were not finite" in done.stderr
    record = RunFolder(workdir).read_run()
    assert record["status"] == "stopped" and record["outcome"] == "diverged"
    skipped = [row for row in rows_without_timings(workdir) if row.get("skipped")]
    assert len(skipped) == 5 and all(row["loss"] is None and len(row["batch"]) == 16 for row in skipped)
    rows = rows_without_timings(workdir)
    again = mhsh(*arguments)  # from a checkpoint among them
    assert again.returncode == 2 and "resuming from the checkpoint of step 4" in again.stdout
    assert rows_without_timings(workdir) == rows


def largest_file(folder: Path) -> Path:
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(bytes(content))


# The other kinds of damage are in tests/training/test_verify.py.
def test_a_damaged_checkpoint_is_named_and_the_one_before_used(unbroken, tmp_path):
    workdir = cut_back(unbroken, tmp_path / "run")
    flip(largest_file(workdir / "checkpoints" / "24" / "params"))
    done = mhsh("train", f"--workdir={workdir}")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert f"{workdir}/checkpoints/24" in done.stdout and "set aside" in done.stdout
    assert "resuming from the checkpoint of step 12" in done.stdout
    assert (workdir / "damaged_checkpoints" / "24").is_dir()
    assert rows_without_timings(workdir) == rows_without_timings(unbroken)
    for a, b in zip(final_state(workdir), final_state(unbroken), strict=True):
        np.testing.assert_array_equal(a, b)


def test_where_all_are_damaged_the_same_command_never_begins_anew(unbroken, tmp_path):
    workdir = cut_back(unbroken, tmp_path / "run")
    logged = (workdir / "metrics.jsonl").read_bytes()
    for step in (12, 24):
        flip(largest_file(workdir / "checkpoints" / str(step) / "params"))
    for _ in range(2):
        done = mhsh_here("train", f"--workdir={workdir}")
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert f"those of step 12, 24 were damaged and are in {workdir}/damaged_checkpoints" in done.stderr
        assert (workdir / "metrics.jsonl").read_bytes() == logged


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for two checkpoints and not for three."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1100k", "tmpfs", str(folder)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"this user may not mount a file system: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_a_full_disk_ends_the_run_with_the_checkpoints_before_it_whole(unbroken, corpus, small_disk):
    workdir = small_disk / "run"
    done = mhsh("train", *CONFIG, corpus, f"--workdir={workdir}")
    assert done.returncode == 2
    assert [line for line in done.stderr.split("\n") if line.startswith("mhsh: ") and "disk is full" in line]
    assert RunFolder(workdir).newest_checkpoint() == 24
    assert all(find_damage(epath.Path(workdir / "checkpoints" / str(step))) is None for step in (12, 24))
    subprocess.run(["mount", "-o", "remount,size=50m", str(small_disk)], check=True)
    again = mhsh("train", *CONFIG, corpus, f"--workdir={workdir}")
    assert again.returncode == 0 and "resuming from the checkpoint of step 24" in again.stdout, again.stderr
    assert rows_without_timings(workdir) == rows_without_timings(unbroken)


def last_step(workdir: Path) -> int:
    """The last step that metrics.jsonl knows; 0 where it knows none."""
    return max((row["step"] for row in RunFolder(workdir).rows()), default=0)


def killed_once(workdir: Path, arguments: list[str], after: float) -> int:
    """Kills the run `after` seconds after it has logged a step beyond its newest checkpoint;
    returns the last step logged.
    """
    saved = RunFolder(workdir).newest_checkpoint() or 0
    metrics = workdir / "metrics.jsonl"
    old = metrics.stat().st_mtime_ns if metrics.exists() else 0
    process = Fork([*arguments, f"--workdir={workdir}"])
    while not metrics.exists() or metrics.stat().st_mtime_ns == old or last_step(workdir) <= saved:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    time.sleep(after)
    assert process.poll() is None, "the run must be long enough for every kill"
    process.kill()
    process.communicate()
    return last_step(workdir)


@pytest.mark.slow
def test_twenty_kills_change_nothing(corpus, tmp_path):
    """A save every tenth step, which takes about as long as ten steps do: every other kill falls
    into one. Many epochs.
    """
    overrides = ["--config.train.num_steps=1000", "--config.train.checkpoint_interval=10", "--config.train.eval_interval=100"]
    arguments = ["train", *CONFIG, corpus, *overrides]
    whole = mhsh(*arguments, f"--workdir={tmp_path / 'whole'}")
    assert whole.returncode == 0, whole.stderr
    num_rows = RunFolder(tmp_path / "whole").read_run()["data"]["train"]["rows"]
    rng = random.Random(0)
    last = [killed_once(tmp_path / "killed", arguments, rng.uniform(0.2, 3.0)) for _ in range(20)]
    assert last[-1] * 8 > num_rows, "the kills reach beyond an epoch"
    assert len(set(last)) > 10, "the kills come at different steps"
    done = mhsh(*arguments, f"--workdir={tmp_path / 'killed'}")
    assert done.returncode == 0, done.stderr
    assert rows_without_timings(tmp_path / "killed") == rows_without_timings(tmp_path / "whole")
    for a, b in zip(final_state(tmp_path / "killed"), final_state(tmp_path / "whole"), strict=True):
        np.testing.assert_array_equal(a, b)
    print("killed after the steps", last)


def test_a_vocabulary_that_a_failed_start_left_is_made_again(unbroken, tmp_path):
    for name, length in (("config.json", None), ("vocab.txt", 1500)):
        (tmp_path / name).write_bytes((unbroken / name).read_bytes()[:length])
    folder = RunFolder(tmp_path)
    assert not folder.has_vocabulary()  # so training writes it, as it does in an empty folder
    corpus = load_recorded_corpus(folder, folder.read_config())
    corpus.save_vocab(tmp_path)
    assert (tmp_path / "vocab.txt").read_bytes() == (unbroken / "vocab.txt").read_bytes()
    assert corpus.fingerprint == RunFolder(unbroken).read_run()["data"]["fingerprint"]


def test_a_vocabulary_that_changed_after_the_start_is_refused(unbroken, tmp_path):
    workdir = cut_back(unbroken, tmp_path / "run")
    path = workdir / "vocab.txt"
    for change in (lambda: path.write_bytes(path.read_bytes()[:1500]), path.unlink):
        change()
        for command in (("train", f"--workdir={workdir}"), ("eval", str(workdir), "--step=24")):
            done = mhsh_here(*command)
            assert done.returncode == 2 and done.stderr.count("\n") == 1
            assert f"{path} is missing, or is not the vocabulary that the run began with" in done.stderr
