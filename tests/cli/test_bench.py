"""`mhsh bench` as it is run: real processes, a table on standard output, a JSON in a file, and
mistakes in one line.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mhsh.cli.main import main
from tests.conftest import ROOT

TINY = "--config=configs/bert.py:2l8h"
TRANSLATION = "--config=configs/translation.py:tiny"
ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu"}


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mhsh.cli.main", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def candidates(out: Path) -> list[dict]:
    (found,) = json.loads(out.read_text())["cells"]
    return found["candidates"]


def test_training_of_two_shapes(tmp_path):
    out = tmp_path / "train.json"
    arguments = ["train", TINY, "--against=configs/bert.py:2l8h", "--against.model.residual=post_ln"]
    done = bench(*arguments, "--rounds=3", "--repetitions=2", f"--out={out}")
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    ours, against = candidates(out)
    assert [ours["name"], against["name"]] == ["config", "against"]
    assert found["configs"]["against"]["model"]["residual"] == "post_ln" and against["omega"] == 0 < ours["omega"]
    assert [len(turn) for turn in ours["turns"]] == [1, 1, 1] and ours["repetitions"] == 2
    assert all(seconds > 0 for turn in ours["turns"] for seconds in turn)
    assert ours["work"] == 8 * 64 and ours["flops"] == against["flops"] > 0
    # The whole training state is the step's argument: parameters, both moments, step; and the
    # batch.
    assert ours["memory"]["arguments"] > 3 * 4 * ours["parameters"] and ours["memory"]["temporaries"] > 0
    assert ours["bytes_accessed"] is None, "a scan over layers is a loop"
    ceilings = found["ceilings"]
    assert ours["share_of_matmul"] == pytest.approx(ours["flops"] / ours["seconds"]["median"] / ceilings["matmul"]["rate"])
    assert against["time_ratio"]["low"] <= against["time_ratio"]["median"] <= against["time_ratio"]["high"]
    assert found["environment"]["devices"]["count"] == 1 and found["environment"]["torch"] is None
    assert "| against | mhsh 2L8H post_ln float32 |" in done.stdout


def test_inference_over_a_grid(tmp_path):
    out = tmp_path / "inference.json"
    unrolled = "--config.model.scan_unroll=2"
    done = bench("inference", TINY, unrolled, "--batch=1,2", "--length=16", "--rounds=2", "--repetitions=2", f"--out={out}")
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert [cell["setting"] for cell in found["cells"]] == [{"batch": 1, "length": 16}, {"batch": 2, "length": 16}]
    one, two = (cell["candidates"][0] for cell in found["cells"])
    assert (one["work"], two["work"]) == (16, 32) and two["flops"] == 2 * one["flops"]
    assert [len(turn) for turn in one["turns"]] == [2, 2], "every repetition is a latency of its own"
    # All parameters are read at least once, but for rows of the tables.
    assert one["bytes_accessed"] > 4 * 2 * 49_000 and one["share_of_copy"] > 0


def test_compiling(tmp_path):
    out = tmp_path / "compile.json"
    done = bench("compile", TINY, "--rounds=1", f"--out={out}")
    assert done.returncode == 0, done.stderr
    (ours,) = candidates(out)
    assert ours["work"] == 1 and ours["turns"][0][0] > 0.05, "no cache has answered"


def test_the_input_pipeline(tmp_path):
    sentences = [f"The number {n} is followed by the number {n + 1}. It is preceded by {n - 1}." for n in range(600)]
    documents = ["\n".join(sentences[start : start + 10]) for start in range(0, 600, 10)]
    (tmp_path / "corpus.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    out = tmp_path / "input.json"
    source = [f"--config.data.source=text:{tmp_path}/corpus.txt", "--config.data.validation_fraction=0.2"]
    done = bench("input", TINY, *source, "--rounds=2", "--batches=5", f"--out={out}")
    assert done.returncode == 0, done.stderr
    (ours,) = candidates(out)
    assert ours["work"] == 5 * 8 * 64 and ours["rate"] == pytest.approx(ours["work"] / ours["seconds"]["median"])


def test_decoding(tmp_path):
    out = tmp_path / "decode.json"
    few = ["--sentences=2", "--source-tokens=5", "--steps=4", "--file-sentences=3", "--rounds=1"]
    done = bench("decode", TRANSLATION, "--config.model.max_positions=64", *few, f"--out={out}")
    assert done.returncode == 0, done.stderr
    batch, file = json.loads(out.read_text())["cells"]
    assert batch["setting"] == {"setting": "batch", "sentences": 2, "tokens": 8}
    assert file["setting"]["sentences"] == 3 and 3 * 8 <= file["candidates"][0]["work"] <= 3 * 60


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", TINY, "--peer=tensorflow"], "there is no peer 'tensorflow' here; allowed: torch-eager, torch-compile"),
        (["train", TINY, "--peer=torch-eager,torch-eager"], "names torch-eager twice"),
        (["train", TINY, "--rounds=0"], "--rounds=0: give a number above 0"),
        (["train", TINY, "--seconds=-1"], "--seconds=-1.0: give a number above 0"),
        (["train", "--rounds=1"], "needs --config"),
        (["train", TINY, "--batch=4"], "--batch=4 is not an argument of mhsh bench"),
        (["train", TINY, "--out=/nowhere/at/all.json"], "there is no folder /nowhere/at"),
        (["train", TINY, "--out=pyproject.toml"], "exists, and nothing is overwritten"),
        (["inference", TINY, "--batch=1,many"], "--batch=1,many: give whole numbers"),
        (["inference", TINY, "--batch=0"], "--batch=0: give whole numbers of at least 1"),
        (["inference", TINY, "--length="], "--length=: give whole numbers"),
        (["inference", TINY, "--length=65"], "65 tokens are more than model.max_positions = 64"),
        (["input", TRANSLATION], "model.objective = 'translation' masks nothing"),
        (["input", TINY, "--peer=loader", "--config.data.whole_word_masking=True"], "whole_word_masking"),
        (["decode", TINY], "model.objective = 'mlm' does not translate"),
        (["decode", TRANSLATION, "--steps=1000"], "longer than model.max_positions"),
    ],
)
def test_mistakes(capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(ROOT)
    assert main(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and len(captured.err.strip().split("\n")) == 1 and not captured.out


@pytest.mark.parametrize("kind", ["train", "inference", "input", "decode"])
def test_a_peer_that_is_not_installed(capsys, monkeypatch, kind):
    monkeypatch.chdir(ROOT)
    monkeypatch.setitem(sys.modules, "torch", None)  # as good as missing, whether it is there or not
    peer = {"input": "loader", "decode": "marian"}.get(kind, "torch-eager")
    assert main(["bench", kind, TRANSLATION if kind == "decode" else TINY, f"--peer={peer}"]) == 2
    assert capsys.readouterr().err == f"mhsh: --peer={peer} needs torch: pip install 'mhsh[parity]', or leave --peer out\n"


@pytest.mark.parity
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["--config.model.residual=rezero"], "model.residual = 'rezero' has no torch peer; allowed with --peer: post_ln"),
        (["--config.optimizer.name=lamb"], "peers train with AdamW; add --config.optimizer.name=adamw"),
    ],
)
def test_what_no_peer_can_do(capsys, monkeypatch, overrides, message):
    monkeypatch.chdir(ROOT)
    assert main(["bench", "train", TINY, "--peer=torch-eager", *overrides]) == 2
    assert message in capsys.readouterr().err


def test_ctrl_c_leaves_a_line_and_no_file(tmp_path):
    out = tmp_path / "train.json"
    command = [sys.executable, "-m", "mhsh.cli.main", "bench", "train", TINY, "--rounds=1000000", f"--out={out}"]
    with subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None and process.stdout is not None
        said = []
        for line in process.stderr:
            said.append(line.strip())
            if "round 1 of" in line:
                process.send_signal(signal.SIGINT)
                break
        said += process.stderr.read().strip().split("\n")
        assert process.wait() == 130 and process.stdout.read() == ""
    assert said[-1] == "mhsh bench train: interrupted; nothing is written" and "Traceback" not in "".join(said)
    assert not out.exists()
