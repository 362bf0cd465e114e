"""What W&B has of a run that was killed and resumed, by W&B's own programs.

Every process here is a real one, with wandb and its own process behind it; the server is a stand-in
(wandb_server.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mhsh.errors import UserError
from mhsh.storage.run_folder import RunFolder
from mhsh.training import trackers
from tests.conftest import ROOT, MakeConfig
from tests.training.wandb_server import WandbServer, client_variables, expected_lines, lines_of, only_run, wandb_server

# One process of a run, without the training: as in training, rows go to metrics.jsonl first. A
# stage goes from a checkpoint at its first number to its second, or sends the rest.
PROCESS = """
import os, signal, subprocess, sys
from mhsh.storage.run_folder import RunFolder
from mhsh.training import trackers

trackers._INIT_SECONDS = 3.0
folder = RunFolder(sys.argv[1])
trackers.check_wandb()
for stage in sys.argv[2:]:
    if stage == "rest":
        trackers.WandbRun(folder, print).close(failed=False)
        continue
    begin, end, how = int(stage.split()[0]), int(stage.split()[1]), stage.split()[2]
    folder.cut_metrics(begin, begin + begin // 10, False)
    tracker = trackers.WandbRun(folder, print)
    for step in range(begin + 1, end + 1):
        costs = {"tokens": 512 * step, "flops": 10**21 * step, "seconds": 0.5 * step}
        rows = [{"step": step, "split": "train", **costs, "loss": 1 / step, "grad_norm": float("nan"), "batch": "00ff"}]
        if step % 10 == 0:
            rows.append({"step": step, "split": "validation", **costs, "loss": 2 / step})
        for row in rows:
            folder.append_metrics([row])
            tracker.on_row(row)
        if how == "loses-wandb" and step == (begin + end) // 2:
            [core] = subprocess.check_output(["pgrep", "-P", str(os.getpid()), "wandb-core"]).split()
            os.kill(int(core), signal.SIGKILL)
            os.waitid(os.P_PID, int(core), os.WEXITED | os.WNOWAIT)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    tracker.close(failed=False)
"""


@pytest.fixture
def server() -> Iterator[WandbServer]:
    with wandb_server() as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path, make_config: MakeConfig) -> RunFolder:
    folder = RunFolder.open_for_training(tmp_path / "run", make_config("bert", "2l8h", **{"train.tracker": "wandb"}))
    folder.write_run({"parameters": {"total": 7}})
    return folder


def environment(url: str, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    return kept | client_variables(url) | more


def process(folder: RunFolder, env: dict[str, str], *stages: str) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-c", PROCESS, str(folder.path), *stages]
    return subprocess.run(arguments, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def sync(folder: RunFolder, env: dict[str, str]) -> str:
    """`wandb sync` of all that lies in the run folder; what it printed."""
    arguments = [sys.executable, "-m", "wandb", "sync", "--yes"]
    done = subprocess.run(
        arguments, cwd=ROOT, env=env | {"WANDB_DIR": str(folder.path)}, capture_output=True, text=True, check=True
    )
    return done.stdout + done.stderr


def assert_every_step_once(folder: RunFolder, server: WandbServer, last: int) -> None:
    run = only_run(server, folder)
    assert [line["_step"] for line in run.history] == list(range(1, last + 1))
    assert lines_of(run) == expected_lines(folder)
    assert run.exit_code == 0


def test_killed_processes_without_a_server_sync_to_one_run_with_every_step_once(folder: RunFolder, server: WandbServer) -> None:
    offline = environment(server.url, WANDB_MODE="offline")
    assert process(folder, offline, "0 300 killed").returncode == -9
    [file] = Path(folder.path).glob("wandb/offline-run-*/*.wandb")
    os.truncate(file, file.stat().st_size - 1)  # the machine died too: the last record is cut short
    done = process(folder, offline, "290 340 finishes")
    assert done.returncode == 0, done.stderr
    assert "ERROR" not in sync(folder, environment(server.url))
    assert_every_step_once(folder, server, 340)


def test_a_resumed_run_repeats_no_step_on_the_server(folder: RunFolder, server: WandbServer) -> None:
    done = process(folder, environment(server.url), "0 120 finishes", "90 160 finishes")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "WARNING" not in done.stderr
    assert_every_step_once(folder, server, 160)
    config = {name: entry["value"] for name, entry in only_run(server, folder).config.items()}
    assert config["model"]["num_heads"] == 8
    assert (config["run_folder"], config["parameters"]) == (str(folder.path), {"total": 7})


@pytest.mark.slow  # the test above resumes without any failure
def test_the_server_gets_every_step_once_whatever_fails(folder: RunFolder, server: WandbServer) -> None:
    online, nowhere = environment(server.url), environment("http://127.0.0.1:9")
    unheard = process(folder, nowhere, "0 100 killed")
    assert unheard.returncode == -9
    assert unheard.stdout.count("W&B has failed (CommError") == 1
    assert not server.runs
    lost = process(folder, online, "60 120 loses-wandb")
    assert lost.returncode == 0, lost.stderr
    assert lost.stdout.count("W&B has failed (ConnectionResetError") == 1
    assert process(folder, online, "110 160 killed").returncode == -9
    assert process(folder, nowhere, "150 200 finishes").returncode == 0
    for _ in range(2):
        last = process(folder, online, "rest")
        assert (last.returncode, last.stdout) == (0, ""), last.stderr
        assert "WARNING" not in last.stderr
        assert_every_step_once(folder, server, 200)


def test_without_wandb_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"needs the package wandb .*: .*pip install .*wandb"):
        trackers.check_wandb()
