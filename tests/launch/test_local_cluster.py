"""launch/local_cluster: several real processes of a stand-in for mhsh, their output, signals, ends
and exit statuses.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

LAUNCHER = Path(__file__).resolve().parents[2] / "launch" / "local_cluster"
# Each process does what the file named by its number says; without one it prints what it was given.
MHSH = """#!/usr/bin/env bash
number="${!#}"; number="${number#--process-id=}"
echo "$$" >>"$HOME/pids"
if [ -e "$HOME/$number" ]; then . "$HOME/$number"; fi
printf '%s\\0' "$@" >"$HOME/call.$number"
echo "JAX_PLATFORMS=$JAX_PLATFORMS JAX_NUM_CPU_DEVICES=$JAX_NUM_CPU_DEVICES $JAX_CPU_COLLECTIVES_IMPLEMENTATION"
echo "to the error stream" >&2
printf 'without an end'
"""
WAIT = 'trap "echo saved; exit 75" TERM; trap "echo saved; exit 130" INT; sleep 1000 & echo ready; wait\n'


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder with the stand-in in an environment's place."""
    mhsh = tmp_path / "environment/bin/mhsh"
    mhsh.parent.mkdir(parents=True)
    mhsh.write_text(MHSH)
    mhsh.chmod(0o755)
    return tmp_path


@pytest.fixture
def variables(home: Path) -> dict[str, str]:
    """The launcher's environment."""
    return {"MHSH_VENV": str(home / "environment")}


def is_alive(pid: str) -> bool:
    """Whether the process runs; one that has ended and that nobody has fetched does not."""
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


def assert_nothing_left(home: Path) -> None:
    deadline = time.monotonic() + 10
    for pid in (home / "pids").read_text().split():
        while is_alive(pid):
            assert time.monotonic() < deadline, pid
            time.sleep(0.02)
    assert not list(home.glob("tmp.*"))


def test_prints_the_commands(
    launch: Callable, variables: dict[str, str], home: Path, hostile: list[str], shell_words: Callable
) -> None:
    arguments = ["--processes=2", "--devices-per-process", "4", "--port=4321", "--dry-run", "--"]
    result = launch("local_cluster", *arguments, "train", "--workdir=runs/x", **variables)
    common = (
        "env JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=4 JAX_CPU_COLLECTIVES_IMPLEMENTATION=gloo "
        f"JAX_COORDINATOR_BIND_ADDRESS=127.0.0.1:4321 {home}/environment/bin/mhsh train --workdir=runs/x "
        "--coordinator=127.0.0.1:4321 --num-processes=2"
    )
    assert result.stdout.splitlines() == [f"{common} --process-id=0 &", f"{common} --process-id=1 &", "wait"]
    assert not (home / "pids").exists()

    result = launch("local_cluster", "--processes=1", "--port=4321", "--dry-run", "--", *hostile, **variables)
    assert shell_words(result.stdout.removesuffix(" &\nwait\n"))[6:-3] == hostile


def test_runs_all_processes_with_prefixed_output(
    launch: Callable, variables: dict[str, str], home: Path, hostile: list[str]
) -> None:
    result = launch("local_cluster", "--processes=2", "--devices-per-process=3", "--", "train", *hostile, **variables)
    assert result.returncode == 0
    line = "JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=3 gloo"
    expected = [f"[{i}] {text}" for i in (0, 1) for text in (line, "without an end")]
    assert sorted(result.stdout.splitlines()) == sorted(expected)
    assert sorted(result.stderr.splitlines()) == ["[0] to the error stream", "[1] to the error stream"]
    calls = [(home / f"call.{i}").read_text().split("\0")[:-1] for i in (0, 1)]
    assert [call[:-3] for call in calls] == [["train", *hostile]] * 2
    assert [call[-1] for call in calls] == ["--process-id=0", "--process-id=1"]
    assert calls[0][-3:-1] == calls[1][-3:-1]
    assert re.fullmatch(r"--coordinator=127\.0\.0\.1:\d{5}", calls[0][-3])
    assert calls[0][-2] == "--num-processes=2"
    assert_nothing_left(home)


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ((0, 75), 75),
        ((75, 130, 0), 130),
        ((75, 130, 1), 1),
        ((1, 2, 75), 2),
        ((0, "kill -ABRT $$"), 134),
    ],
)
def test_exit_status_is_the_worst(
    launch: Callable, variables: dict[str, str], home: Path, statuses: tuple[int | str, ...], expected: int
) -> None:
    for number, status in enumerate(statuses):
        (home / str(number)).write_text(f"exit {status}\n" if isinstance(status, int) else f"ulimit -c 0; {status}\n")
    result = launch("local_cluster", f"--processes={len(statuses)}", "--", "train", **variables)
    assert result.returncode == expected
    assert_nothing_left(home)


def test_the_crash_seen_first_is_the_one_that_counts(launch: Callable, variables: dict[str, str], home: Path) -> None:
    (home / "0").write_text("sleep 1; exit 3\n")
    (home / "1").write_text("exit 4\n")
    assert launch("local_cluster", "--processes=2", "--", "train", **variables).returncode == 4


def test_a_failure_ends_the_others(launch: Callable, variables: dict[str, str], home: Path) -> None:
    (home / "0").write_text(WAIT)
    (home / "1").write_text("trap '' TERM; sleep 300 & echo $! >>\"$HOME/pids\"; echo deaf; while :; do sleep 0.05; done\n")
    (home / "2").write_text("sleep 0.5; echo broken >&2; exit 1\n")
    begin = time.monotonic()
    result = launch("local_cluster", "--processes=3", "--grace=1", "--", "train", **variables)
    assert result.returncode == 1
    assert 2 <= time.monotonic() - begin < 15
    assert "[0] saved" in result.stdout
    assert result.stderr.splitlines() == [
        "[2] broken",
        "local_cluster: process 2 ended with exit status 1",
        "local_cluster: a process has failed and others go on; SIGTERM to them",
        "local_cluster: process 0 ended with exit status 75",
        "local_cluster: a process has failed and others go on; SIGKILL to them",
        "local_cluster: process 1 ended with exit status 137",
    ]
    assert_nothing_left(home)


def test_after_a_loss_all_start_again(launch: Callable, variables: dict[str, str], home: Path) -> None:
    (home / "0").write_text('rm "$HOME/0"; sleep 0.5; exit 75\n')
    (home / "1").write_text('rm "$HOME/1"; kill -KILL $$\n')
    result = launch("local_cluster", "--processes=2", "--", "train", **variables)
    assert result.returncode == 0
    assert result.stderr.splitlines()[:3] == [
        "local_cluster: process 1 ended with exit status 137",
        "local_cluster: process 0 ended with exit status 75",
        "local_cluster: a process was lost: starting all again, 1 of 100 times",
    ]
    assert len((home / "pids").read_text().split()) == 4
    assert_nothing_left(home)


def test_it_starts_again_so_many_times(launch: Callable, variables: dict[str, str], home: Path) -> None:
    (home / "0").write_text("exit 75\n")
    assert launch("local_cluster", "--processes=1", "--max-restarts=2", "--", "train", **variables).returncode == 75
    assert len((home / "pids").read_text().split()) == 3


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 75), ("SIGINT", 130)])
def test_signals_reach_every_process(
    environment: dict[str, str], variables: dict[str, str], home: Path, name: str, status: int
) -> None:
    for number in (0, 1):
        (home / str(number)).write_text(WAIT)
    command = [str(LAUNCHER), "--processes=2", "--", "train"]
    with subprocess.Popen(command, env=environment | variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert {process.stdout.readline(), process.stdout.readline()} == {"[0] ready\n", "[1] ready\n"}
        process.send_signal(signal.Signals[name])
        assert sorted(process.stdout.read().splitlines()) == ["[0] saved", "[1] saved"]
        assert process.wait(30) == status
    assert_nothing_left(home)


def test_a_second_signal_is_handed_on_too(environment: dict[str, str], variables: dict[str, str], home: Path) -> None:
    (home / "0").write_text(
        'n=0; trap "n=\\$((n + 1)); echo signal \\$n; [ \\$n -lt 2 ] || exit 143" TERM; echo ready; while :; do sleep 0.05; done\n'
    )
    command = [str(LAUNCHER), "--processes=1", "--", "train"]
    with subprocess.Popen(command, env=environment | variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in ("[0] ready\n", "[0] signal 1\n"):
            assert process.stdout.readline() == line
            time.sleep(0.3)  # bash may lose a signal that comes while it is in its trap
            process.terminate()
        assert process.stdout.read() == "[0] signal 2\n"
        assert process.wait(30) == 143
    assert_nothing_left(home)


def test_children_left_behind_are_ended(launch: Callable, variables: dict[str, str], home: Path) -> None:
    (home / "0").write_text('sleep 300 &\necho "$!" >>"$HOME/pids"; exit 0\n')
    assert launch("local_cluster", "--processes=1", "--", "train", **variables).returncode == 0
    assert_nothing_left(home)


def test_a_missing_environment_is_named(launch: Callable, tmp_path: Path) -> None:
    result = launch("local_cluster", "--processes=1", "--", "train", MHSH_VENV=str(tmp_path / "nothing"))
    assert result.returncode == 2
    assert f"no {tmp_path}/nothing/bin/mhsh" in result.stderr
