"""Whole runs: trained, interrupted, resumed, evaluated, compared."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from mhsh.config.fields import flatten
from mhsh.storage.outcome import plateau_deadline
from mhsh.storage.run_folder import RunFolder
from tests import clusters
from tests.conftest import ROOT
from tests.forks import Fork
from tests.runs import CONFIG, command, cut_back, final_state, mhsh, mhsh_here, rows_without_timings, wait_for_step


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
    assert [row["step"] for row in train] == list(range(1, 37))
    assert [row["step"] for row in validation] == [20, 36]
    assert len({row["batch"] for row in validation}) == 1 and validation[0]["batch"] not in {row["batch"] for row in train}
    assert record["data"]["overlap"] == {"count": 0, "of": record["data"]["validation"]["documents"]}
    assert train[-1]["loss"] < train[0]["loss"]
    assert abs(train[0]["loss"] - np.log(512)) < 0.3
    assert all(later["tokens"] > row["tokens"] for row, later in itertools.pairwise(train))
    assert any(folder.tensorboard_path.iterdir())
    assert sorted(int(path.name) for path in folder.checkpoints_path.iterdir()) == [12, 24, 36]


STATUS = {signal.SIGINT: 130, signal.SIGTERM: 75}


# Of the role bookkeeping; the corpus has moved, too.
CHANGES = {
    "train.log_interval": 2,
    "train.eval_interval": 0,
    "train.checkpoint_interval": 7,
    "train.keep_checkpoints": 1,
    "train.max_skipped_steps": 3,
    "train.hang_seconds": 500,
    "train.storage_minutes": 1.5,
}


def test_a_run_that_is_stopped_and_then_killed_goes_on_bit_for_bit(unbroken, corpus, tmp_path):
    """At last with other values of whatever does not change its losses."""
    workdir = tmp_path / "run"
    arguments = ["train", *CONFIG, corpus, f"--workdir={workdir}"]
    stopped = Fork(arguments)
    wait_for_step(workdir, 3, stopped)
    stopped.send_signal(signal.SIGINT)  # tests/test_clusters.py sends SIGTERM
    out, err = stopped.communicate()
    assert "state saved" in out and stopped.returncode == STATUS[signal.SIGINT], err
    saved = RunFolder(workdir).newest_checkpoint()
    assert f"run: stopped after step {saved} of 36, in " in out and f"run: checkpoint {workdir}/checkpoints/{saved}\n" in out
    # A run that has just begun is on the plateau too: nothing is said of it.
    assert ("on the unigram plateau" in out) == (saved >= plateau_deadline(RunFolder(workdir).read_config()))
    assert RunFolder(workdir).read_run()["status"] == "stopped"
    assert rows_without_timings(workdir)[-1]["step"] < 36
    killed = Fork(arguments)
    wait_for_step(workdir, 25, killed)
    killed.kill()
    killed.communicate()
    with open(workdir / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 26, "split": "tr')  # what a kill in mid-write leaves
    moved, saved = tmp_path / "moved.txt", RunFolder(workdir).newest_checkpoint()
    shutil.copy(corpus.partition("text:")[2], moved)
    changes = {"data.source": f"text:{moved}"} | CHANGES
    again = mhsh("train", f"--workdir={workdir}", *(f"--config.{path}={value}" for path, value in changes.items()))
    assert again.returncode == 0 and f"resuming from the checkpoint of step {saved}" in again.stdout, again.stderr
    assert f"run: after step {saved}: data.source = 'text:{moved}' (before: '{corpus.partition('=')[2]}'), train." in again.stdout
    assert RunFolder(workdir).changes(None) == {str(saved): changes}
    assert flatten(RunFolder(workdir).read_config()).items() >= changes.items()
    expected, rows = ({(row["step"], row["split"]): row for row in rows_without_timings(run)} for run in (unbroken, workdir))
    assert rows == {key: expected[key] for key in rows} and (36, "validation") in rows
    assert {step for step, split in rows if split == "train"} >= {*range(1, saved + 1), *range(saved + saved % 2, 37, 2)}
    for a, b in zip(final_state(workdir), final_state(unbroken), strict=True):
        np.testing.assert_array_equal(a, b)
    record = RunFolder(workdir).read_run()
    assert record["omega"] == RunFolder(unbroken).read_run()["omega"]
    seconds = record["wall_seconds"]
    assert seconds.pop("pausing") == 0, "it had the device alone"
    assert min(seconds.values()) > 0, "it was also restored, and repeated steps 25 and later"


@pytest.mark.parametrize("number", STATUS)
def test_a_signal_before_the_first_step_ends_it_at_once(corpus, tmp_path, number):
    process = Fork(["train", *CONFIG, corpus, f"--workdir={tmp_path / 'run'}"])
    while not (tmp_path / "run" / "config.json").exists():  # from here on it reads text and compiles
        time.sleep(0.02)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == STATUS[number] and "state saved" not in out
    assert err == "Interrupted; nothing new was to be saved. Run the same command again.\n"


@pytest.mark.slow  # by default: the test above, and the one of a run that is stopped
@pytest.mark.parametrize("processes", [1, 2])
def test_signals_at_any_time_of_fresh_and_resumed_runs(unbroken, corpus, tmp_path, processes):
    """30 of them; now and then the run is finished before."""
    draw = random.Random(processes)
    workdir = tmp_path / "run"
    arguments = ["train", *CONFIG, corpus, f"--workdir={workdir}"]
    for _ in range(30):
        if draw.random() < 0.3 or RunFolder(workdir).newest_checkpoint() == 36:
            shutil.rmtree(workdir, ignore_errors=True)
        running = [Fork(arguments)] if processes == 1 else clusters.start(processes, arguments)
        time.sleep(draw.uniform(0.05, 20))  # not before Python itself has started
        number = draw.choice(list(STATUS))
        for each in running:
            each.send_signal(number)
        for index, (status, out, err) in enumerate(clusters.finish(running)):
            assert status == STATUS[number] or (status == 0 and ("finished 36 steps" in out) == (index == 0)), (status, err)
            assert "Traceback" not in err and "Fatal" not in err
    for status, _, err in clusters.finish([Fork(arguments)]):
        assert status == 0, err
    rows, expected = rows_without_timings(workdir), rows_without_timings(unbroken)
    assert [(row["step"], row.get("batch")) for row in rows] == [(row["step"], row.get("batch")) for row in expected]
    if processes == 1:
        assert rows == expected
    else:  # two processes add in another order
        assert [row["loss"] for row in rows] == pytest.approx([row["loss"] for row in expected], rel=1e-5)


def test_a_finished_run_is_left_alone(unbroken, corpus):
    before = (unbroken / "metrics.jsonl").read_bytes()
    assert mhsh_here("train", *CONFIG, corpus, f"--workdir={unbroken}").returncode == 0
    assert (unbroken / "metrics.jsonl").read_bytes() == before


def test_a_run_that_died_after_its_last_checkpoint_is_finished_by_the_same_command(unbroken, corpus, tmp_path):
    workdir = cut_back(unbroken, tmp_path / "run", step=36)
    record = RunFolder(workdir).read_run()
    RunFolder(workdir).write_run({name: value for name, value in record.items() if name != "outcome"})
    assert mhsh_here("train", *CONFIG, corpus, f"--workdir={workdir}").returncode == 0
    assert RunFolder(workdir).read_run() == RunFolder(unbroken).read_run()


@pytest.mark.slow  # by default: tests/storage/test_run_folder.py opens the folder of an extended run
def test_an_extended_run_is_one_of_that_length(corpus, tmp_path):
    arguments = ["train", *CONFIG, corpus, "--config.optimizer.schedule=constant"]
    for name, *numbers in (("extended", 12, 24), ("one", 24)):
        for steps in numbers:
            done = mhsh(*arguments, f"--config.train.num_steps={steps}", f"--workdir={tmp_path / name}")
            assert done.returncode == 0, done.stderr
    extended, one = (
        [row for row in rows_without_timings(tmp_path / name) if row["split"] == "train"] for name in ("extended", "one")
    )
    assert extended == one
    for a, b in zip(final_state(tmp_path / "extended"), final_state(tmp_path / "one"), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_run_that_somebody_trains_is_refused(unbroken, corpus):
    with RunFolder(unbroken).hold():
        second = mhsh_here("train", *CONFIG, corpus, f"--workdir={unbroken}")
    assert second.returncode == 2 and f"in use: process {os.getpid()} on" in second.stderr and second.stderr.count("\n") == 1


def test_a_finished_run_that_has_lost_something_says_so(unbroken, corpus, tmp_path):
    workdir = cut_back(unbroken, tmp_path / "run", step=36)
    arguments = ["train", *CONFIG, corpus, f"--workdir={workdir}"]
    metrics, record = workdir / "metrics.jsonl", workdir / "run.json"
    whole = metrics.read_bytes()
    metrics.write_bytes(whole[:-9])
    cut = mhsh_here(*arguments)
    assert (
        cut.returncode == 2 and "metrics.jsonl has" in cut.stderr and "resume without the lost rows with --accept-gap" in cut.stderr
    )
    accepted = mhsh_here(*arguments, "--accept-gap")
    assert accepted.returncode == 0 and json.loads(record.read_text())["lost_rows"] == {"36": 1}
    compared = mhsh_here("compare", str(workdir), f"--out={tmp_path / 'report.html'}")
    assert f"{workdir}: 1 rows of metrics.jsonl up to step 36 are lost; the curve has a gap there" in compared.stderr
    metrics.write_bytes(whole)  # from a copy
    assert mhsh_here(*arguments).returncode == 0 and json.loads(record.read_text())["lost_rows"] == {}
    record.unlink()
    lost = mhsh_here(*arguments)
    assert lost.returncode == 2 and f"{workdir} was trained to step 36, but run.json is missing" in lost.stderr


def test_eval_gives_what_training_logged(unbroken, corpus, tmp_path):
    """Also on devices that do not divide a batch, and where the data have moved, which a flag says;
    other data are refused.
    """
    workdir, moved, other = shutil.copytree(unbroken, tmp_path / "run"), tmp_path / "moved.txt", tmp_path / "other.txt"
    content = Path(corpus.partition("text:")[2]).read_text(encoding="utf-8")
    moved.write_text(content, encoding="utf-8")
    other.write_text(content.replace("number", "figure"), encoding="utf-8")
    fields = json.loads((workdir / "config.json").read_text())
    fields["data"]["source"] = "text:gone/*.txt"
    fields["train"]["batch_size"] = 6  # which four devices do not divide
    (workdir / "config.json").write_text(json.dumps(fields))
    for flags, problem in (
        ((), "data.source = 'text:gone/*.txt' matches no file; correct the glob"),
        ((f"--config.data.source=text:{other}",), "was trained on other data (fingerprint"),
        (("--config.model.num_layers=3",), f"{workdir} is a run of another config (model.num_layers is 2 there, 3 here); leave"),
    ):
        refused = mhsh_here("eval", str(workdir), *flags)
        assert refused.returncode == 2 and problem in refused.stderr and refused.stderr.count("\n") == 1, refused.stderr
    four = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    done = mhsh("eval", str(workdir), f"--config.data.source=text:{moved}", environment=four)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    config = RunFolder(unbroken).read_config()
    logged = [row for row in rows_without_timings(unbroken) if row["split"] == "validation"][-1]
    assert figures["step"] == config.train.num_steps
    for name in ("loss", "accuracy", "next_sentence_loss", "next_sentence_accuracy"):
        assert figures[name] == pytest.approx(logged[name], rel=1e-6)


def test_other_text_under_the_same_name_and_damaged_metrics_stop_a_resume(unbroken, tmp_path):
    workdir, other = cut_back(unbroken, tmp_path / "moved"), tmp_path / "corpus.txt"
    metrics = workdir / "metrics.jsonl"
    truncated = b"\n".join(metrics.read_bytes().split(b"\n")[:5])[:-9]
    metrics.write_bytes(truncated)
    done = mhsh_here("train", f"--workdir={workdir}")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "metrics.jsonl has 4 of" in done.stderr
    text = Path(RunFolder(workdir).read_config().data.source.removeprefix("text:")).read_text(encoding="utf-8")
    other.write_text(text.replace("number", "figure"), encoding="utf-8")
    done = mhsh_here("train", f"--workdir={workdir}", f"--config.data.source=text:{other}")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "was trained on other data" in done.stderr
    assert metrics.read_bytes() == truncated


@pytest.mark.parametrize("arguments", [["configs"], ["configs", "--help"]])  # printed by Python, and by rich
def test_a_closed_pipe_is_no_traceback(arguments):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command(*arguments), cwd=ROOT, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert done.returncode == 128 + signal.SIGPIPE
    assert done.stderr == b""
