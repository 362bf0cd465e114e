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

from tests.conftest import ROOT
from tests.runs import mhsh

# A remat policy saves the tracing that `auto` takes.
SHAPE = {"model.embed_dim": 16, "model.head_dim": 2, "model.mlp_dim": 16, "model.remat_policy": "none", "data.sequence_length": 16}
ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu"}


def tiny(flag: str, base: str, **changes: Any) -> list[str]:
    """Arguments of a config of SHAPE."""
    shape = SHAPE | ({"model.vocab_size": 512} if base.startswith("bert") else {})
    return [f"--{flag}=configs/{base}", *(f"--{flag}.{name}={value}" for name, value in (shape | changes).items())]


def bench(out: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """The JSON and the table of a bench. In a process of its own: here every shape is checked,
    which makes tracing slow, and `compile` would clear the caches of other tests.
    """
    done = mhsh("bench", *arguments, f"--out={out}")
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text()), done.stdout


def candidates(found: dict[str, Any]) -> list[dict[str, Any]]:
    (cell,) = found["cells"]
    return cell["candidates"]


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
    assert against["time_ratio"]["low"] <= against["time_ratio"]["median"] <= against["time_ratio"]["high"]
    assert found["environment"]["devices"]["count"] == first["devices"] == 1
    assert found["environment"]["torch"] is None
    assert "against: mhsh 2x8 post_ln float32" in table


@pytest.mark.slow
def test_inference_over_a_grid(tmp_path):
    config = tiny("config", "bert.py:2l8h")
    found, _ = bench(
        tmp_path / "inference.json", "inference", *config, "--batch=1,2", "--length=16", "--rounds=2", "--repetitions=2"
    )
    assert [cell["setting"] for cell in found["cells"]] == [{"batch": 1, "length": 16}, {"batch": 2, "length": 16}]
    one, two = (cell["candidates"][0] for cell in found["cells"])
    assert (one["work"], two["work"]) == (16, 32) and two["flops"] == 2 * one["flops"]
    assert [len(turn) for turn in one["turns"]] == [2, 2], "every repetition is a latency of its own"


@pytest.mark.slow
def test_decoding(tmp_path):
    few = ["--sentences=2", "--source-tokens=5", "--steps=4", "--rounds=1"]
    config = tiny("config", "translation.py:tiny", **{"model.max_positions": 64})
    batch, file = bench(tmp_path / "translated.json", "decode", *config, *few, "--file-sentences=3")[0]["cells"]
    assert batch["setting"] == {"setting": "batch", "sentences": 2, "tokens": 8}
    assert file["setting"]["sentences"] == 3 and 3 * 8 <= file["candidates"][0]["work"] <= 3 * 60
    config = tiny("config", "quickstart.py:6l4h_post_ln", **{"model.max_positions": 64})
    (only,) = bench(tmp_path / "written.json", "decode", *config, *few)[0]["cells"]
    assert only["setting"] == {"prompts": 2, "prompt_tokens": 5, "tokens": 8}


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
