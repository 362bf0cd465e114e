"""The suite: its stages exist as commands, and it goes on where it stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from benchmarks.bench.__main__ import parse
from benchmarks.suite import SIZES, Stage, main, outcome, run_suite, stages
from mhsh.cli.parser import parse as parse_command
from tests.conftest import ROOT

# Real commands that need no jax: the first ends well, the second does not.
GOOD = Stage("good", "ends well", ("mhsh", "--version"))
BAD = Stage("bad", "is not a command", ("mhsh", "trian"))
ELSEWHERE = Stage("elsewhere", "needs another device", ("mhsh", "--version"), "there is none")


def told(chosen, folder):
    found = []
    assert run_suite(chosen, folder, lambda stage, ended: found.append((stage.name, ended and ended.state))) is None
    return found


def test_what_is_done_is_not_done_again(tmp_path):
    chosen = [BAD, ELSEWHERE, GOOD]
    assert told(chosen, tmp_path) == [("bad", None), ("bad", "failed"), ("elsewhere", "not here"), ("good", None), ("good", "done")]
    failed = outcome(BAD, tmp_path)
    assert failed is not None
    assert failed.reason.startswith("exit status 2: mhsh: unknown command 'trian'")
    assert outcome(ELSEWHERE, tmp_path) is None
    assert told(chosen, tmp_path) == [("bad", None), ("bad", "failed"), ("elsewhere", "not here"), ("good", "done")]
    assert (tmp_path / "good.log").read_text().startswith("mhsh ")


@pytest.mark.parametrize("size", list(SIZES))
def test_every_stage_is_a_command_with_valid_configs(size):
    for stage in stages(SIZES[size]):
        if stage.is_run:
            assert parse_command("train", [*stage.arguments[2:], "--workdir=x"]), stage.name
        else:
            assert parse([*stage.arguments[1:], "--out=x"]), stage.name


def test_a_stage_that_does_not_exist(tmp_path, capsys):
    assert main([f"--out={tmp_path / 'measured'}", "--size=tiny", "--only=nix"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("benchmarks.suite: --only=nix: unknown stage 'nix'; allowed: train-large, ")
    assert error.count("\n") == 1
    assert not (tmp_path / "measured").exists()


def test_results_that_are_gone_are_named(tmp_path, capsys):
    (tmp_path / "train-large.state.json").write_text('{"state": "done", "seconds": 2.0, "reason": ""}')
    assert main([f"--out={tmp_path}", "--size=tiny", "--only=train-large"]) == 2
    assert capsys.readouterr().err == f"benchmarks.suite: {tmp_path / 'train-large.json'} does not exist\n"


@pytest.mark.slow
def test_it_measures_and_goes_on_after_ctrl_c(tmp_path):
    folder = tmp_path / "measured"
    command = [sys.executable, "-m", "benchmarks.suite", "--size=tiny", f"--out={folder}", "--only=train-large,run-deep"]
    first = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    while not (folder / "train-large.state.json").exists():
        time.sleep(0.1)
        assert first.poll() is None
    first.send_signal(signal.SIGINT)
    output, _ = first.communicate()
    assert first.returncode == 130
    assert "stopped; the same command goes on: 1 of 2 stages are done" in output
    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "train-large: done" in second.stdout and "train-large: a step of both large twins ..." not in second.stdout
    assert "run-deep: done" in second.stdout
    for name in ("train-large.json", "report.html", "run-deep/metrics.jsonl"):
        assert (folder / name).exists(), name
