"""launch/local_cluster: several real processes of a stand-in for mhsh, their output, signals, ends
and exit statuses.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
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
# No `wait`: bash may sleep in it for ever where a signal comes just before.
WAIT = 'trap "echo saved; exit 75" TERM; trap "echo saved; exit 130" INT; echo ready; while :; do sleep 0.05; done\n'


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder with the stand-in in an environment's place."""
    mhsh = tmp_path / "environment/bin/mhsh"
    mhsh.parent.mkdir(parents=True)
    mhsh.write_text(MHSH)
    mhsh.chmod(0o755)
    return tmp_path


@pytest.fixture
def cluster(home: Path, launch: Callable) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """cluster("--processes=2", "--", "train"): runs the launcher to its end, after which nothing of
    it is left.
    """
    yield lambda *arguments: launch("local_cluster", *arguments, MHSH_VENV=str(home / "environment"))
    assert_nothing_left(home)


@pytest.fixture
def started(home: Path, environment: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """started(2): the launcher with so many processes, and nothing of it is left afterwards."""

    def start(processes: int) -> subprocess.Popen[str]:
        # Who misses a signal gets another one after the grace, and nothing would be seen.
        command = [str(LAUNCHER), f"--processes={processes}", "--grace=300", "--", "train"]
        variables = environment | {"MHSH_VENV": str(home / "environment")}
        return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)

    yield start
    assert_nothing_left(home)


def assert_nothing_left(home: Path) -> None:
    """No process runs; one that has ended and that nobody has fetched (Z) does not."""
    pids = home / "pids"
    deadline = time.monotonic() + 10
    for pid in pids.read_text().split() if pids.exists() else ():
        status = Path(f"/proc/{pid}/stat")
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            while status.read_text().rpartition(")")[2].split()[0] != "Z":
                assert time.monotonic() < deadline, pid
                time.sleep(0.02)
    assert not list(home.glob("tmp.*"))


def test_prints_the_commands(cluster: Callable, home: Path, hostile: list[str], shell_words: Callable) -> None:
    arguments = ["--processes=2", "--devices-per-process", "4", "--port=4321", "--dry-run", "--"]
    result = cluster(*arguments, "train", "--workdir=runs/x")
    common = (
        "env JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=4 JAX_CPU_COLLECTIVES_IMPLEMENTATION=gloo "
        f"JAX_COORDINATOR_BIND_ADDRESS=127.0.0.1:4321 {home}/environment/bin/mhsh train --workdir=runs/x "
        "--coordinator=127.0.0.1:4321 --num-processes=2"
    )
    assert result.stdout.splitlines() == [f"{common} --process-id=0 &", f"{common} --process-id=1 &", "wait"]
    assert not (home / "pids").exists()

    result = cluster("--processes=1", "--port=4321", "--dry-run", "--", "train", *hostile)
    assert shell_words(result.stdout.removesuffix(" &\nwait\n"))[6:-3] == ["train", *hostile]


def test_runs_all_processes_with_prefixed_output(cluster: Callable, home: Path, hostile: list[str]) -> None:
    result = cluster("--processes=2", "--devices-per-process=3", "--", "train", *hostile)
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
def test_exit_status_is_the_worst(cluster: Callable, home: Path, statuses: tuple[int | str, ...], expected: int) -> None:
    for number, status in enumerate(statuses):
        (home / str(number)).write_text(f"exit {status}\n" if isinstance(status, int) else f"ulimit -c 0; {status}\n")
    result = cluster(f"--processes={len(statuses)}", "--", "train")
    assert result.returncode == expected


def test_the_crash_seen_first_is_the_one_that_counts(cluster: Callable, home: Path) -> None:
    (home / "0").write_text("sleep 1; exit 3\n")
    (home / "1").write_text("exit 4\n")
    assert cluster("--processes=2", "--", "train").returncode == 4


def test_a_failure_ends_the_others(cluster: Callable, home: Path) -> None:
    (home / "0").write_text(WAIT)
    (home / "1").write_text("trap '' TERM; sleep 300 & echo $! >>\"$HOME/pids\"; echo deaf; while :; do sleep 0.05; done\n")
    (home / "2").write_text("sleep 0.5; echo broken >&2; exit 1\n")
    begin = time.monotonic()
    result = cluster("--processes=3", "--grace=1", "--", "train")
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


def test_after_a_loss_all_start_again(cluster: Callable, home: Path) -> None:
    (home / "0").write_text('rm "$HOME/0"; sleep 0.5; exit 75\n')
    (home / "1").write_text('rm "$HOME/1"; kill -KILL $$\n')
    result = cluster("--processes=2", "--pause=1", "--", "train")
    assert result.returncode == 0
    assert result.stderr.splitlines()[:3] == [
        "local_cluster: process 1 ended with exit status 137",
        "local_cluster: process 0 ended with exit status 75",
        "local_cluster: a process was lost: starting all again in 1 s, 1 of 100 times",
    ]
    assert len((home / "pids").read_text().split()) == 4


def test_it_starts_again_so_many_times(cluster: Callable, home: Path) -> None:
    (home / "0").write_text("exit 75\n")
    assert cluster("--processes=1", "--max-restarts=2", "--pause=0", "--", "train").returncode == 75
    assert len((home / "pids").read_text().split()) == 3


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 75), ("SIGINT", 130)])
def test_signals_reach_every_process(started: Callable, home: Path, name: str, status: int) -> None:
    for number in (0, 1):
        (home / str(number)).write_text(WAIT)
    with started(2) as process:
        assert {process.stdout.readline(), process.stdout.readline()} == {"[0] ready\n", "[1] ready\n"}
        process.send_signal(signal.Signals[name])
        assert sorted(process.stdout.read().splitlines()) == ["[0] saved", "[1] saved"]
        assert process.wait(30) == status


def test_a_second_signal_is_handed_on_too(started: Callable, home: Path) -> None:
    (home / "0").write_text(
        'n=0; trap "n=\\$((n + 1)); echo signal \\$n; [ \\$n -lt 2 ] || exit 143" TERM; echo ready; while :; do sleep 0.05; done\n'
    )
    with started(1) as process:
        for line in ("[0] ready\n", "[0] signal 1\n"):
            assert process.stdout.readline() == line
            time.sleep(0.3)  # bash may lose a signal that comes while it is in its trap
            process.terminate()
        assert process.stdout.read() == "[0] signal 2\n"
        assert process.wait(30) == 143


def test_children_left_behind_are_ended(cluster: Callable, home: Path) -> None:
    (home / "0").write_text('sleep 300 &\necho "$!" >>"$HOME/pids"; exit 0\n')
    assert cluster("--processes=1", "--", "train").returncode == 0


def test_a_missing_environment_is_named(launch: Callable, tmp_path: Path) -> None:
    result = launch("local_cluster", "--processes=1", "--", "train", MHSH_VENV=str(tmp_path / "nothing"))
    assert result.returncode == 2
    assert f"no {tmp_path}/nothing/bin/mhsh" in result.stderr
