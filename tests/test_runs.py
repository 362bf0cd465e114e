"""Whole runs in real processes: trained, interrupted, gone on with, scored, compared."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from mhsh.models.build import build_model
from mhsh.run_folder import RunFolder
from mhsh.training.checkpoint import Checkpoints
from mhsh.training.optimizer import build_optimizer
from mhsh.training.state import abstract_state
from tests.conftest import ROOT
from tests.training.test_step import mesh_of

TIMINGS = {"seconds", "tokens_per_second", "flops_per_second"}
CONFIG = [
    "--config=configs/bert.py:2l8h",
    "--config.data.validation_fraction=0.2",
    "--config.model.vocab_size=512",
    "--config.train.num_steps=90",  # long enough to be stopped in the middle on a busy machine
    "--config.train.checkpoint_interval=30",
    "--config.train.eval_batches=0",
]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "mhsh.cli.main", *arguments]


def mhsh(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    sentences = [f"The number {n} is followed by the number {n + 1}. It is preceded by {n - 1}." for n in range(900)]
    path.write_text("\n\n".join("\n".join(sentences[start : start + 9]) for start in range(0, 900, 9)) + "\n", encoding="utf-8")
    return f"--config.data.source=text:{path}"


@pytest.fixture(scope="module")
def unbroken(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    workdir = tmp_path_factory.mktemp("runs") / "unbroken"
    done = mhsh("train", *CONFIG, corpus, f"--workdir={workdir}")
    assert done.returncode == 0, done.stderr
    return workdir


def rows_without_timings(folder: Path) -> list[dict[str, Any]]:
    metrics = RunFolder(folder).read_metrics()
    assert metrics.problem is None
    return [{key: value for key, value in row.items() if key not in TIMINGS} for row in metrics.rows]


def final_state(folder: Path) -> list[np.ndarray]:
    config = RunFolder(folder).read_config()
    model, optimizer = build_model(config.model), build_optimizer(config.optimizer, config.train)
    checkpoints = Checkpoints(RunFolder(folder).checkpoints_path, keep=9, keep_every=0)
    state = checkpoints.restore(config.train.num_steps, abstract_state(config, model, optimizer, mesh_of(1, 1, 1)))
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]


def wait_for_step(folder: Path, step: int, process: subprocess.Popen[str]) -> None:
    while not any(row["step"] >= step for row in RunFolder(folder).read_metrics().rows):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def test_what_a_run_leaves_behind(unbroken):
    folder = RunFolder(unbroken)
    record = folder.read_run()
    assert record["status"] == "finished"
    assert record["parameters"]["total"] == sum(record["parameters"][part] for part in ("encoder", "omega", "embeddings", "heads"))
    omega = record["omega"]["encoder"]
    assert omega[0] == 1 and omega == sorted(omega) and len(omega) == 4
    assert record["versions"]["jax"] == jax.__version__
    train = [row for row in rows_without_timings(unbroken) if row["split"] == "train"]
    validation = [row for row in rows_without_timings(unbroken) if row["split"] == "validation"]
    assert [row["step"] for row in train] == list(range(1, 91))
    assert [row["step"] for row in validation] == [20, 40, 60, 80, 90]
    assert train[-1]["loss"] < train[0]["loss"]
    assert abs(train[0]["loss"] - np.log(512)) < 0.3
    assert all(later["tokens"] > row["tokens"] for row, later in itertools.pairwise(train))
    assert any(folder.tensorboard_path.iterdir())
    assert sorted(int(path.name) for path in folder.checkpoints_path.iterdir()) == [30, 60, 90]


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_a_stopped_run_goes_on_bit_for_bit(unbroken, corpus, tmp_path, number):
    workdir = tmp_path / "stopped"
    arguments = ["train", *CONFIG, corpus, f"--workdir={workdir}"]
    process = subprocess.Popen(command(*arguments), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_step(workdir, 3, process)
    process.send_signal(number)
    out, err = process.communicate()
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 75}[number], err
    assert "state saved" in out
    assert RunFolder(workdir).read_run()["status"] == "stopped"
    assert rows_without_timings(workdir)[-1]["step"] < 90
    again = mhsh(*arguments)
    assert again.returncode == 0 and "going on from the checkpoint of step" in again.stdout, again.stderr
    assert rows_without_timings(workdir) == rows_without_timings(unbroken)
    for a, b in zip(final_state(workdir), final_state(unbroken), strict=True):
        np.testing.assert_array_equal(a, b)
    assert RunFolder(workdir).read_run()["omega"] == RunFolder(unbroken).read_run()["omega"]


def test_a_killed_run_goes_on_bit_for_bit(unbroken, corpus, tmp_path):
    workdir = tmp_path / "killed"
    arguments = ["train", *CONFIG, corpus, f"--workdir={workdir}"]
    process = subprocess.Popen(command(*arguments), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_step(workdir, 34, process)
    process.kill()
    process.communicate()
    with open(workdir / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 35, "split": "tr')  # what a kill in mid-write leaves
    again = mhsh(*arguments)
    assert again.returncode == 0, again.stderr
    assert rows_without_timings(workdir) == rows_without_timings(unbroken)
    for a, b in zip(final_state(workdir), final_state(unbroken), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_finished_run_is_left_alone(unbroken, corpus):
    before = (unbroken / "metrics.jsonl").read_bytes()
    assert mhsh("train", *CONFIG, corpus, f"--workdir={unbroken}").returncode == 0
    assert (unbroken / "metrics.jsonl").read_bytes() == before


def test_eval_gives_what_training_logged(unbroken):
    done = mhsh("eval", str(unbroken))
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    config = RunFolder(unbroken).read_config()
    logged = [row for row in rows_without_timings(unbroken) if row["split"] == "validation"][-1]
    assert figures["step"] == config.train.num_steps
    for name in ("loss", "accuracy", "next_sentence_loss", "next_sentence_accuracy"):
        assert figures[name] == pytest.approx(logged[name], rel=1e-6)


def test_other_text_under_the_same_name_is_refused(unbroken, tmp_path):
    workdir = tmp_path / "moved"
    source = RunFolder(unbroken).read_config().data.source.removeprefix("text:")
    text = Path(source).read_text(encoding="utf-8")
    other = tmp_path / "corpus.txt"
    other.write_text(text, encoding="utf-8")
    arguments = ["train", *CONFIG, f"--config.data.source=text:{other}", f"--workdir={workdir}", "--config.train.num_steps=120"]
    process = subprocess.Popen(command(*arguments), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_step(workdir, 2, process)
    process.terminate()
    process.communicate()
    other.write_text(text.replace("number", "figure"), encoding="utf-8")
    metrics = (workdir / "metrics.jsonl").read_bytes()
    done = mhsh(*arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "was trained on other data" in done.stderr
    assert (workdir / "metrics.jsonl").read_bytes() == metrics


def test_damaged_metrics_before_the_checkpoint_stop_a_resume(unbroken, corpus, tmp_path):
    workdir = tmp_path / "damaged"
    arguments = ["train", *CONFIG, corpus, f"--workdir={workdir}"]
    process = subprocess.Popen(command(*arguments), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_step(workdir, 12, process)
    process.terminate()
    process.communicate()
    whole = (workdir / "metrics.jsonl").read_bytes()
    truncated = b"\n".join(whole.split(b"\n")[:5])[:-9]
    (workdir / "metrics.jsonl").write_bytes(truncated)
    done = mhsh(*arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "metrics.jsonl is cut short in line 5" in done.stderr
    assert (workdir / "metrics.jsonl").read_bytes() == truncated


def test_runs_side_by_side(unbroken, tmp_path):
    broken = tmp_path / "empty"
    broken.mkdir()
    (broken / "config.json").write_bytes((unbroken / "config.json").read_bytes())
    out = tmp_path / "report.html"
    done = mhsh("compare", str(unbroken), str(broken), f"--out={out}")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and str(broken) in done.stderr
    assert "unbroken" in out.read_text(encoding="utf-8") and (tmp_path / "curves.png").exists()
    assert mhsh("compare", str(unbroken), f"--out={out}").returncode == 0


def test_a_closed_pipe_is_no_traceback():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command("describe", *CONFIG[:1], "--json"), cwd=ROOT, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert done.returncode == 128 + signal.SIGPIPE
    assert done.stderr == b""
