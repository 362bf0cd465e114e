"""Whole translation runs: trained from memory and from prepared rows, resumed, evaluated, used to
translate.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from mhsh.storage.run_folder import RunFolder
from tests.clusters import finish, start
from tests.forks import Fork
from tests.runs import cut_back, mhsh, mhsh_here, rows_without_timings, wait_for_step

CONFIG = [
    "--config=translation:tiny",
    "--config.data.source=numbers:600",
    "--config.data.validation_sentences=6",
    "--config.data.sequence_length=32",
    "--config.model.remat_policy=none",
    "--config.train.batch_size=8",
    "--config.train.num_steps=12",
    "--config.train.log_interval=1",
    "--config.train.eval_interval=6",
    "--config.train.eval_batches=1",
    "--config.train.checkpoint_interval=3",
    "--config.optimizer.warmup_steps=4",
]
TRAIN = ["train", *CONFIG]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an unbroken run."""
    workdir = tmp_path_factory.mktemp("runs") / "unbroken"
    done = mhsh(*TRAIN, f"--workdir={workdir}")
    assert done.returncode == 0, done.stderr
    return workdir


def test_what_a_run_leaves_behind(unbroken):
    workdir = unbroken
    rows = rows_without_timings(workdir)
    train = [row for row in rows if row["split"] == "train"]
    validation = [row for row in rows if row["split"] == "validation"]
    assert [row["step"] for row in train] == list(range(1, 13))
    assert train[-1]["loss"] < train[0]["loss"]
    assert [row["step"] for row in validation] == [6, 12]
    assert all(0 <= row["exact_match"] <= 1 and row["bleu"] >= 0 for row in validation)
    record = RunFolder(workdir).read_run()
    assert [record["omega"][stack][0] for stack in ("encoder", "decoder")] == [1.0, 1.0]
    assert [len(record["omega"][stack]) for stack in ("encoder", "decoder")] == [4, 6]
    assert (workdir / "tokenizer.json").exists() and not (workdir / "vocab.txt").exists()


@pytest.mark.slow
def test_a_stopped_run_goes_on_bit_for_bit(unbroken, tmp_path):
    workdir = tmp_path / "stopped"
    process = Fork([*TRAIN, f"--workdir={workdir}"])
    wait_for_step(workdir, 4, process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate()
    assert process.returncode in (75, 0), (out, err)  # 0: it was at its end already
    assert mhsh(*TRAIN, f"--workdir={workdir}").returncode == 0
    assert rows_without_timings(workdir) == rows_without_timings(unbroken)


@pytest.mark.slow
def test_a_run_goes_on_in_two_processes_which_translate_nothing(unbroken, tmp_path):
    """The field cannot be changed any more. A run that begins so is told to set it to 0."""
    began = finish(start(2, [*TRAIN, f"--workdir={tmp_path / 'fresh'}"]))
    assert [status for status, _, err in began if "set it to 0, and use mhsh eval afterwards" in err] == [2, 2], began
    resumed = cut_back(unbroken, tmp_path / "resumed", step=9)
    results = finish(start(2, ["train", f"--workdir={resumed}"]))
    assert [status for status, _, _ in results] == [0, 0], results
    assert "this one has 2: nothing is translated from here on" in results[0][1]
    rows, expected = rows_without_timings(resumed), rows_without_timings(unbroken)
    assert [row["loss"] for row in rows] == pytest.approx([row["loss"] for row in expected], rel=1e-5)
    assert ["bleu" in row for row in rows if row["split"] == "validation"] == [True, False]


@pytest.mark.slow  # tests/cli/test_predict.py translates with less
def test_eval_and_predict(unbroken, tmp_path):
    workdir = unbroken
    done = mhsh("eval", str(workdir))
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["step"] == 12
    assert {"loss", "accuracy", "bleu", "chrf", "exact_match"} <= set(figures)
    source, out = tmp_path / "source.en", tmp_path / "out.de"
    source.write_text("seven\n\nnine hundred and twelve\nthe third of March nineteen eighty-seven\n", encoding="utf-8")
    done = mhsh("predict", str(workdir), f"--input={source}", f"--output={out}", "--average=3", "--beam=2")
    assert done.returncode == 0, done.stderr
    lines = out.read_text(encoding="utf-8").split("\n")
    assert len(lines) == 5 and lines[1] == "" and lines[4] == ""
    scored = mhsh_here("score", f"--hypotheses={out}", f"--references={source}")
    assert scored.returncode == 0 and json.loads(scored.stdout)["num_lines"] == 4, scored.stderr


@pytest.mark.slow
def test_prepared_rows_train_like_those_in_memory(unbroken, tmp_path):
    prepared = mhsh("prepare", *CONFIG, f"--out={tmp_path / 'rows'}", "--workers=2")
    assert prepared.returncode == 0, prepared.stderr
    workdir = tmp_path / "run"
    done = mhsh(*TRAIN, f"--config.data.source=arrayrecord:{tmp_path / 'rows'}", f"--workdir={workdir}")
    assert done.returncode == 0, done.stderr
    rows, expected = rows_without_timings(workdir), rows_without_timings(unbroken)
    assert [row["loss"] for row in rows] == [row["loss"] for row in expected]
