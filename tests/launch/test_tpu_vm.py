"""launch/tpu_vm: the commands it prints, and the run on a worker played by this machine."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

AT = ("--zone=us-west4-a", "--project=MY-PROJECT")
TPU_VM = "gcloud compute tpus tpu-vm"
QUEUED = "gcloud compute tpus queued-resources"
# Runs what gcloud would run on the one worker; scp and the others are only noted.
GCLOUD = """
printf '%s\\n' "$*" >>"$HOME/gcloud.log"
for argument; do
  case "$argument" in --command=*) cd "$HOME" && exec sh -c "${argument#--command=}" ;; esac
done
"""


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (
            ("create", "mine", *AT, "--accelerator-type=v5litepod-16", "--spot"),
            f"{TPU_VM} create mine --zone=us-west4-a --project=MY-PROJECT --accelerator-type=v5litepod-16 "
            "--version=v2-alpha-tpuv5-lite --spot",
        ),
        (
            ("create", "mine", "--zone", "z", "--accelerator-type", "v4-32", "--version", "v", "--flag=--network=a b"),
            f"{TPU_VM} create mine --zone=z --accelerator-type=v4-32 --version=v '--network=a b'",
        ),
        (
            ("create", "mine", "--zone=z", "--accelerator-type=v6e-8", "--queued", "--valid-until=6h"),
            f"{QUEUED} create mine --zone=z --accelerator-type=v6e-8 --runtime-version=v2-alpha-tpuv6e --node-id=mine "
            "--valid-until-duration=6h",
        ),
        (
            ("create", "mine", "--zone=z", "--accelerator-type=v5p-32", "--queued", "--slices=4", "--spot"),
            f"{QUEUED} create mine --zone=z --accelerator-type=v5p-32 --runtime-version=v2-alpha-tpuv5 --node-count=4 "
            "--node-prefix=mine --spot",
        ),
        (("delete", "mine", *AT), f"{TPU_VM} delete mine --zone=us-west4-a --project=MY-PROJECT"),
        (("delete", "mine", "--zone=z", "--queued", "--yes"), f"{QUEUED} delete mine --zone=z --force --quiet"),
    ],
)
def test_prints_the_command(launch: Callable, arguments: tuple[str, ...], command: str) -> None:
    result = launch("tpu_vm", *arguments, "--dry-run")
    assert (result.returncode, result.stdout, result.stderr) == (0, command + "\n", "")


def test_prints_the_installation(launch: Callable, shell_words: Callable, tmp_path: Path) -> None:
    before = set(tmp_path.rglob("*"))
    result = launch("tpu_vm", "install", "mine", "--zone=z", "--queued", "--python=python3.12", "--dry-run")
    assert result.returncode == 0
    archive, copy, install = result.stdout.split("\n", 2)
    path = f"{tmp_path}/TEMPORARY/mhsh.tar.gz"
    assert archive.startswith("git -C ")
    assert archive.endswith(f"archive --format=tar.gz --output={path} HEAD")
    assert copy == f"{QUEUED} scp {path} mine:mhsh.tar.gz --zone=z --node=all --worker=all"
    command = shell_words(install)
    assert command[:-1] == [*QUEUED.split(), "ssh", "mine", "--zone=z", "--node=all", "--worker=all"]
    bash, dash_c, script, _, python = shell_words(command[-1].removeprefix("--command="), shell="sh")
    assert (bash, dash_c, python) == ("bash", "-c", "python3.12")
    assert script.endswith('PYTHON=$python bash -c ". launch/environment tpu" install')
    assert subprocess.run(["bash", "-n", "-c", script], check=False).returncode == 0
    assert set(tmp_path.rglob("*")) == before


def test_prints_how_logs_are_fetched(launch: Callable, tmp_path: Path) -> None:
    result = launch("tpu_vm", "logs", "mine", "--zone=z", "--run=one", f"--to={tmp_path}/my logs", "--dry-run")
    assert result.stdout.splitlines()[0] == f"mkdir -p '{tmp_path}/my logs'"
    assert "cat \"$HOME/mhsh-logs/$1.log\"'\\'' mhsh one'" in result.stdout
    assert result.stdout.endswith(f" '--output-directory={tmp_path}/my logs'\n")
    assert not (tmp_path / "my logs").exists()


@pytest.fixture
def worker(stand_in: Callable, tmp_path: Path) -> Path:
    """The home folder of a worker with an mhsh that notes its arguments and ends with the next
    status of `statuses`.
    """
    stand_in("gcloud", GCLOUD)
    mhsh = tmp_path / "mhsh/.venv/bin/mhsh"
    mhsh.parent.mkdir(parents=True)
    mhsh.write_text(
        '#!/usr/bin/env bash\nprintf \'%s\\0\' "$@" >>"$HOME/calls"; printf \'\\1\' >>"$HOME/calls"\n'
        'read -r status rest <"$HOME/statuses"; echo "$rest" >"$HOME/statuses"\n'
        'if [ "$status" = wait ]; then trap "echo saved; exit 75" TERM; echo ready; while :; do sleep 0.05; done; fi\n'
        'exit "$status"\n'
    )
    mhsh.chmod(0o755)
    return tmp_path


def test_runs_again_after_75_with_the_same_arguments(launch: Callable, worker: Path, hostile: list[str]) -> None:
    (worker / "statuses").write_text("75 75 0\n")
    result = launch("tpu_vm", "run", "mine", "--zone=z", "--retry-delay=0", "--", "train", *hostile)
    assert result.returncode == 0, result.stderr
    assert "started; its output goes to" in result.stdout
    log = worker / "mhsh-logs/run.log"
    wait_for(lambda: log.exists() and log.read_text().count("ended") == 3)
    assert log.read_text().splitlines() == [f"mhsh ended with exit status {status}" for status in (75, 75, 0)]
    calls = (worker / "calls").read_text().split("\1")[:-1]
    assert [call.split("\0")[:-1] for call in calls] == [["train", *hostile, "--distributed"]] * 3
    assert not list(worker.rglob("harm"))


def test_a_mistake_is_not_run_again(launch: Callable, worker: Path) -> None:
    (worker / "statuses").write_text("2 0\n")
    launch("tpu_vm", "run", "mine", "--zone=z", "--run=one", "--retry-delay=0", "--", "train")
    log = worker / "mhsh-logs/one.log"
    wait_for(lambda: log.exists() and "ended" in log.read_text())
    wait_for(lambda: not (worker / "mhsh-logs/one.pid").exists())
    assert log.read_text() == "mhsh ended with exit status 2\n"


def test_stop_lets_the_run_save_and_does_not_start_it_again(launch: Callable, worker: Path) -> None:
    (worker / "statuses").write_text("wait 0\n")
    launch("tpu_vm", "run", "mine", "--zone=z", "--retry-delay=0", "--", "train")
    log, pid = worker / "mhsh-logs/run.log", worker / "mhsh-logs/run.pid"
    wait_for(lambda: log.exists() and "ready" in log.read_text())
    again = launch("tpu_vm", "run", "mine", "--zone=z", "--", "train")
    assert again.returncode == 2
    assert "run is running already" in again.stderr
    assert launch("tpu_vm", "stop", "mine", "--zone=z").returncode == 0
    wait_for(lambda: not pid.exists())
    assert log.read_text().splitlines() == ["ready", "saved", "mhsh ended with exit status 75"]
    assert "is not running" in launch("tpu_vm", "stop", "mine", "--zone=z").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "needs a command: create, install, run, logs, stop or delete"),
        (("make", "mine"), "make is not a command"),
        (("create",), "create needs the NAME of the slice"),
        (("create", "Mine", "--zone=z"), "NAME 'Mine' must be small letters"),
        (("create", "mine"), "create needs --zone=ZONE"),
        (("create", "mine", "--zone"), "--zone needs a value"),
        (("create", "mine", "--zone", "--spot"), "--zone needs a value"),
        (("create", "mine", "--zone=z"), "create needs --accelerator-type=TYPE"),
        (("create", "mine", "--zone=z", "--accelerator-type=v99-8"), "no software version is known for v99-8"),
        (("create", "mine", "--zone=z", "--accelerator-type=v4-8", "--slices=2"), "more than one slice needs --queued"),
        (("create", "mine", "--zone=z", "--colour=red"), "--colour is not an option"),
        (("install", "mine", "--zone=z", "--spot"), "are for create"),
        (("run", "mine", "--zone=z"), "run needs the arguments of mhsh after --"),
        (("run", "mine", "--zone=z", "--", "train", "--process-id=1"), "--process-id is set by this launcher"),
        (("run", "mine", "--zone=z", "--run=a/b", "--", "train"), "--run 'a/b' must be"),
        (("logs", "mine", "other", "--zone=z"), "other is one argument too many"),
    ],
)
def test_mistakes_are_one_line(launch: Callable, arguments: tuple[str, ...], message: str) -> None:
    result = launch("tpu_vm", "--dry-run", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_refuses_credentials(launch: Callable, credential: str) -> None:
    result = launch("tpu_vm", "run", "mine", "--zone=z", "--dry-run", "--", "train", credential)
    assert result.returncode == 2
    assert "hush" not in result.stdout + result.stderr


def test_help(launch: Callable) -> None:
    result = launch("tpu_vm", "--help")
    assert result.returncode == 0
    assert result.stdout.startswith("Trains on Cloud TPU VMs")
    assert "Prerequisites:" in result.stdout
    assert "set -" not in result.stdout
