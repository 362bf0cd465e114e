"""launch/paper: every experiment is there, its commands are mhsh's, and its prices the plan's."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mhsh.cli.main import main
from mhsh.cli.parser import parse

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS = re.findall(r"^(\w+)\|", (ROOT / "launch/paper").read_text(encoding="utf-8"), re.MULTILINE)

Launch = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def venv(make_venv: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with this python and its mhsh."""
    folder = tmp_path_factory.mktemp("paper") / "environment"
    return make_venv(folder, python=f'exec {sys.executable} "$@"', mhsh=f'exec {sys.executable} -m mhsh "$@"')


def run(venv: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What takes more than the minute that a launcher has here."""
    command, environment = ["bash", "launch/paper", *arguments], os.environ | {"MHSH_VENV": str(venv)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def test_every_experiment_is_a_list_of_valid_commands(launch: Launch, make_venv: Callable[..., Path], tmp_path: Path) -> None:
    """Without the table, whose prices take seconds each."""
    quick = make_venv(tmp_path / "environment", python="cat >/dev/null", mhsh="exit 1")
    done = launch("paper", "--dry-run", MHSH_VENV=str(quick))
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^(\w+):$", done.stdout, re.MULTILINE) == EXPERIMENTS
    commands = {line.split(" > ")[0] for line in done.stdout.split("\n") if line.startswith("    mhsh ")}
    assert len(commands) > 50
    for command in commands:
        _, name, *arguments = shlex.split(command)
        assert parse(name, arguments) is not None, command


@pytest.mark.slow
def test_the_price_is_the_plans(venv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = run(venv, "wmt", "--dry-run")
    (row,) = [line for line in done.stdout.split("\n") if line.startswith("| `wmt`")]
    assert main(["plan", "--config=translation:6l8h", "--chips=v5e:16"]) == 0
    printed = re.search(r"chip hours +([\d.]+) - ([\d.]+)", capsys.readouterr().out)
    assert printed is not None
    assert row.split(" | ")[4].split(", ")[0] == "-".join(f"{float(hours):.0f}" for hours in printed.groups())


def test_what_is_no_experiment_is_refused(launch: Launch, venv: Path) -> None:
    for arguments, said in (
        (["bert"], "bert is unknown; experiments: example wmt"),
        (["--scale=2"], "--scale=2 is not above 0 and at most 1"),
        (["--config.data.source=text:a"], "is the data of one experiment; name it"),
    ):
        done = launch("paper", *arguments, MHSH_VENV=str(venv))
        assert done.returncode == 2 and said in done.stderr


@pytest.mark.slow
def test_everything_runs_at_a_thousandth(venv: Path, tmp_path: Path) -> None:
    done = run(venv, "--scale=0.001", f"--workdir={tmp_path}/paper")
    rows = [line.split(" | ") for line in done.stdout.split("\n") if line.startswith("| `")]
    assert [row[0].strip("|` ") for row in rows] == EXPERIMENTS
    assert all("scaled 0.001, no result" in row[7] for row in rows)
