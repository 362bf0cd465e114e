"""mhsh bench suite from the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from mhsh.cli.main import main

SUITE = ["bench", "suite", "--size=tiny"]


def test_a_stage_that_is_none(tmp_path, capsys):
    assert main([*SUITE, f"--out={tmp_path / 'measured'}", "--only=nix"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("mhsh: --only=nix: there is no stage 'nix'; allowed: train-large, ")
    assert error.count("\n") == 1
    assert not (tmp_path / "measured").exists()


@pytest.mark.slow
def test_it_measures_and_goes_on_after_ctrl_c(tmp_path):
    folder = tmp_path / "measured"
    command = [sys.executable, "-m", "mhsh", *SUITE, f"--out={folder}", "--only=train-large,run-deep"]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    while not (folder / "train-large.state.json").exists():
        time.sleep(0.1)
        assert first.poll() is None
    first.send_signal(signal.SIGINT)
    output, _ = first.communicate()
    assert first.returncode == 130
    assert "stopped; the same command goes on: 1 of 2 stages are done" in output
    second = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "train-large: done" in second.stdout and "train-large: a step" not in second.stdout
    assert "run-deep: done" in second.stdout
    for name in ("train-large.json", "report.html", "run-deep/metrics.jsonl"):
        assert (folder / name).exists(), name
