"""A run that is preempted, killed and resumed is one run in W&B, with the rows of metrics.jsonl."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from mhsh.run_folder import RunFolder
from tests.runs import CONFIG, mhsh, start, wait_for_step
from tests.training.wandb_server import client_variables, expected_lines, lines_of, only_run, wandb_server


@pytest.mark.slow  # by default: tests/training/test_wandb.py, its processes without the training
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_stopped_and_killed_run_is_one_run(
    corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, status: int
) -> None:
    workdir = tmp_path / "run"
    intervals = ["--config.train.log_interval=1", "--config.train.eval_interval=9"]
    arguments = ["train", *CONFIG, corpus, *intervals, "--config.train.tracker=wandb", f"--workdir={workdir}"]
    with wandb_server() as server:
        for name, value in client_variables(server.url).items():
            monkeypatch.setenv(name, value)
        stopped = start(*arguments)
        wait_for_step(workdir, 3, stopped)
        stopped.send_signal(number)
        assert "state saved" in stopped.communicate()[0]
        assert stopped.returncode == status
        run = only_run(server, RunFolder(workdir))
        assert run.exit_code == 0
        assert lines_of(run) == expected_lines(RunFolder(workdir))
        killed = start(*arguments)
        wait_for_step(workdir, 14, killed)
        killed.kill()
        killed.communicate()
        again = mhsh(*arguments)
        assert again.returncode == 0, again.stderr
        assert "WARNING" not in again.stderr
        got, expected = lines_of(only_run(server, RunFolder(workdir))), expected_lines(RunFolder(workdir))
    assert [line["_step"] for line in got] == [line["_step"] for line in expected]
    clocks = ("seconds", "train/tokens_per_second", "train/flops_per_second")  # of the process that was first at a step
    assert [without(line, clocks) for line in got] == [without(line, clocks) for line in expected]


def without(line: dict[str, float], keys: tuple[str, ...]) -> dict[str, float]:
    return {key: value for key, value in line.items() if key not in keys}
