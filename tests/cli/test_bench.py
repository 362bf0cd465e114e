"""Tests of `mhsh bench`: a table on standard output, a JSON in a file, and mistakes in one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mhsh.cli.main import main
from mhsh.errors import install_command
from tests.conftest import ROOT
from tests.runs import mhsh

# A remat policy saves the tracing that `auto` takes.
SHAPE = {"model.embed_dim": 16, "model.head_dim": 2, "model.mlp_dim": 16, "model.remat_policy": "none", "data.sequence_length": 16}
BERT = "--config=mhsh/configs/bert.py:2l8h"
TRANSLATION = "--config=mhsh/configs/translation.py:tiny"
ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu"}


def tiny(flag: str, base: str, **changes: Any) -> list[str]:
    """Arguments of a config of SHAPE."""
    shape = SHAPE | ({"model.vocab_size": 512} if base.startswith("bert") else {})
    return [f"--{flag}=mhsh/configs/{base}", *(f"--{flag}.{name}={value}" for name, value in (shape | changes).items())]


@pytest.fixture(autouse=True)
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def bench(out: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """The JSON and the table of a bench. In a process of its own: here every shape is checked,
    which makes tracing slow, and `compile` would clear the caches of other tests.
    """
    done = mhsh("bench", *arguments, f"--out={out}")
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text()), done.stdout


def candidates(found: dict[str, Any]) -> list[dict[str, Any]]:
    (cell,) = found["cells"]
    return cell["contestants"]


def test_training_of_two_shapes(tmp_path):
    configs = [*tiny("config", "bert.py:2l8h"), *tiny("against", "bert.py:2l8h"), "--against.model.residual=post_ln"]
    found, table = bench(tmp_path / "train.json", "train", *configs, "--rounds=3", "--repetitions=2")
    first, against = candidates(found)
    assert [first["name"], against["name"]] == ["config", "against"]
    assert found["configs"]["against"]["model"]["residual"] == "post_ln" and against["omega"] == 0 < first["omega"]
    assert [len(turn) for turn in first["turns"]] == [1, 1, 1] and first["repetitions"] == 2
    assert all(seconds > 0 for turn in first["turns"] for seconds in turn)
    assert first["work"] == 8 * 16 and first["flops"] == against["flops"] > 0
    # The whole training state is the step's argument: parameters, both moments, step; and the
    # batch.
    assert first["memory"]["arguments"] > 3 * 4 * first["parameters"] and first["memory"]["temporaries"] > 0
    assert first["bytes_accessed"] is None, "a scan over layers is a loop"
    limits = found["ceilings"]
    assert first["share_of_matmul"] == pytest.approx(first["flops"] / first["seconds"]["median"] / limits["matmul"]["rate"])
    assert against["time_ratio"]["low"] <= against["time_ratio"]["median"] <= against["time_ratio"]["high"]
    assert found["environment"]["devices"]["count"] == first["devices"] == 1
    assert found["environment"]["torch"] is None
    assert "against: mhsh 2x8 post_ln float32" in table


@pytest.mark.slow
def test_inference_over_a_grid(tmp_path):
    config = tiny("config", "bert.py:2l8h", **{"model.scan_unroll": 2})
    found, _ = bench(
        tmp_path / "inference.json", "inference", *config, "--batch=1,2", "--length=16", "--rounds=2", "--repetitions=2"
    )
    assert [cell["setting"] for cell in found["cells"]] == [{"batch": 1, "length": 16}, {"batch": 2, "length": 16}]
    one, two = (cell["contestants"][0] for cell in found["cells"])
    assert (one["work"], two["work"]) == (16, 32) and two["flops"] == 2 * one["flops"]
    assert [len(turn) for turn in one["turns"]] == [2, 2], "every repetition is a latency of its own"
    # All parameters are read at least once, but for rows of the tables.
    tables = (512 + 64 + 2) * 16
    assert one["bytes_accessed"] > 4 * (one["parameters"] - tables) > 0 and one["share_of_copy"] > 0


def test_the_input_pipeline(tmp_path):
    sentences = [f"The number {n} is followed by the number {n + 1}. It is preceded by {n - 1}." for n in range(600)]
    documents = ["\n".join(sentences[start : start + 10]) for start in range(0, 600, 10)]
    (tmp_path / "corpus.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    source = {"data.source": f"text:{tmp_path}/corpus.txt", "data.validation_fraction": 0.2}
    config = tiny("config", "bert.py:2l8h", **source)
    out = tmp_path / "input.json"
    assert main(["bench", "input", *config, "--rounds=2", "--batches=5", f"--out={out}"]) == 0
    (only,) = candidates(json.loads(out.read_text()))
    assert only["work"] == 5 * 8 * 16 and only["rate"] == pytest.approx(only["work"] / only["seconds"]["median"])


@pytest.mark.slow
def test_decoding(tmp_path):
    config = tiny("config", "translation.py:tiny", **{"model.max_positions": 64})
    few = ["--sentences=2", "--source-tokens=5", "--steps=4", "--file-sentences=3", "--rounds=1"]
    found, _ = bench(tmp_path / "decode.json", "decode", *config, *few)
    batch, file = found["cells"]
    assert batch["setting"] == {"setting": "batch", "sentences": 2, "tokens": 8}
    assert file["setting"]["sentences"] == 3 and 3 * 8 <= file["contestants"][0]["work"] <= 3 * 60


@pytest.mark.slow
def test_writing(tmp_path):
    config = tiny("config", "quickstart.py:6l4h_post_ln", **{"model.max_positions": 64})
    few = ["--sentences=2", "--source-tokens=5", "--steps=4", "--rounds=1"]
    found, _ = bench(tmp_path / "decode.json", "decode", *config, *few)
    (only,) = found["cells"]
    assert only["setting"] == {"prompts": 2, "prompt_tokens": 5, "tokens": 8}


@pytest.mark.parity
def test_writing_beside_gpt2(tmp_path):
    causal = {"model.residual": "pre_ln", "model.embed_dim": 16, "model.head_dim": 4, "model.max_positions": 64}
    config = tiny("config", "quickstart.py:6l4h_post_ln", **causal)
    few = ["--sentences=2", "--source-tokens=5", "--steps=4", "--rounds=1", "--peer=gpt2"]
    found, _ = bench(tmp_path / "decode.json", "decode", *config, *few)
    assert [each["name"] for each in found["cells"][0]["contestants"]] == ["config", "gpt2"]


@pytest.mark.slow
def test_compiling(tmp_path):
    found, table = bench(tmp_path / "compile.json", "compile", *tiny("config", "bert.py:2l8h"), "--rounds=1")
    (only,) = candidates(found)
    assert only["work"] == 1 and only["turns"][0][0] > 0.05, "no cache has answered"
    assert "config: mhsh 2x8 admin float32" in table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", BERT, "--peer=torch-eager,torch-eager"], "names torch-eager twice"),
        (["input", BERT, "--peer=loader", "--config.data.whole_word_masking=True"], "whole_word_masking"),
    ],
)
def test_mistakes(capsys, arguments, message):
    assert main(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and len(captured.err.strip().split("\n")) == 1 and not captured.out


@pytest.mark.parametrize("kind", ["train", "inference", "input", "decode"])
def test_a_peer_that_is_not_installed(capsys, monkeypatch, kind):
    monkeypatch.setitem(sys.modules, "torch", None)  # as good as missing, whether it is there or not
    peer = {"input": "loader", "decode": "marian"}.get(kind, "torch-eager")
    assert main(["bench", kind, TRANSLATION if kind == "decode" else BERT, f"--peer={peer}"]) == 2
    hint = install_command("parity")
    assert capsys.readouterr().err == f"mhsh: --peer={peer} needs torch: {hint}, or leave --peer out\n"


@pytest.mark.parity
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["--config.model.residual=rezero"], "model.residual = 'rezero' has no torch peer; allowed with --peer: post_ln"),
        (["--config.optimizer.name=lamb"], "peers train with AdamW; add --config.optimizer.name=adamw"),
    ],
)
def test_what_no_peer_can_do(capsys, overrides, message):
    assert main(["bench", "train", BERT, "--peer=torch-eager", *overrides]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_leaves_a_line_and_no_file(tmp_path):
    out = tmp_path / "train.json"
    command = [sys.executable, "-m", "mhsh", "bench", "train", *tiny("config", "bert.py:2l8h")]
    command += ["--rounds=1000000", f"--out={out}"]
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
