"""launch/slurm as Slurm runs it: a copy of the file, in the folder of sbatch, with Slurm's
variables, and with stand-ins for its commands.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mhsh.cli.main import main
from mhsh.storage.run_record import FINISHED
from mhsh.sweep.folder import SweepFolder
from tests.cli.test_sweep import CONFIG
from tests.conftest import ROOT

# Runs its tasks without its own options, and tells TERM apart: to srun itself it would be the end
# of all tasks.
SRUN = """
trap 'echo killed >>"$HOME/slurm.log"; exit 143' TERM
options=
while [[ "$1" = --* ]]; do options="$options $1"; shift; done
echo "srun$options" >>"$HOME/slurm.log"
for ((task = 0; task < SLURM_NTASKS; task++)); do
  SLURM_PROCID="$task" SLURM_LOCALID=0 SLURM_STEP_NODELIST=127.0.0.1 env --default-signal=INT "$@" &
  echo "$!" >>"$HOME/tasks"
done
status=0
while read -r task; do
  wait "$task"
  code=$?
  [ "$code" -le "$status" ] || status=$code
done <"$HOME/tasks"
exit "$status"
"""
SCANCEL = 'echo "scancel $*" >>"$HOME/slurm.log"\nxargs kill -s "${1#--signal=}" <"$HOME/tasks"\n'
MHSH = """#!/usr/bin/env bash
printf '%s\\0' "$@" >"$HOME/call"
echo "${JAX_LOCAL_DEVICE_IDS-none}" >"$HOME/devices"
if [ -n "${MHSH_WAITS-}" ]; then
  trap "echo saved; exit 75" TERM; trap "echo saved; exit 130" INT; echo ready; while :; do sleep 0.05; done
fi
exit "$MHSH_STATUS"
"""
JOB = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1", "MHSH_STATUS": "0"}
TWO = {"SLURM_NTASKS": "2", "SLURM_JOB_NUM_NODES": "2"}


@pytest.fixture
def cluster(stand_in: Callable, tmp_path: Path) -> Path:
    """A home folder with Slurm's commands, which note what they are asked, and an environment
    whose mhsh ends with MHSH_STATUS.
    """
    stand_in("srun", SRUN)
    stand_in("scancel", SCANCEL)
    stand_in("scontrol", 'echo "scontrol $*" >>"$HOME/slurm.log"\n')
    stand_in("squeue", 'echo "${JOB_STATE-RUNNING}"\n')
    mhsh = tmp_path / "environment/bin/mhsh"
    mhsh.parent.mkdir(parents=True)
    mhsh.write_text(MHSH)
    mhsh.chmod(0o755)
    return tmp_path


@pytest.fixture
def job(cluster: Path, environment: dict[str, str]) -> Callable[..., subprocess.Popen[str]]:
    """job("train", ..., SLURM_NTASKS="2"): starts the batch script, away from where it lies."""
    script = cluster / "spool/slurm_script"
    script.parent.mkdir()
    shutil.copy(ROOT / "launch/slurm", script)

    def start(*arguments: str, **variables: str) -> subprocess.Popen[str]:
        everything = environment | {"MHSH_VENV": str(cluster / "environment")} | JOB | variables
        return subprocess.Popen(
            ["bash", str(script), *arguments],
            cwd=ROOT,
            env=everything,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    return start


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """(exit status, output, errors)."""
    output, errors = process.communicate(timeout=240)
    return process.returncode, output, errors


def call(cluster: Path) -> list[str]:
    return (cluster / "call").read_text(encoding="utf-8").split("\0")[:-1]


@pytest.mark.parametrize(
    ("status", "state", "requeued"),
    [
        *((status, "RUNNING", False) for status in (0, 2)),
        *((status, "RUNNING", True) for status in (75, 137)),
        (75, "COMPLETING", False),
    ],
)
def test_only_75_and_a_kill_go_back_into_the_queue(
    job: Callable, cluster: Path, hostile: list[str], status: int, state: str, requeued: bool
) -> None:
    ended, _, errors = end(job("train", *hostile, MHSH_STATUS=str(status), JOB_STATE=state, MHSH_PAUSE="0"))
    assert ended == status
    assert f"mhsh ended with exit status {status}" in errors
    assert call(cluster) == ["train", *hostile]
    assert ("scontrol requeue 77" in (cluster / "slurm.log").read_text()) == requeued
    assert ("starting again in 0 s, 1 of 100 times\n" in errors) == requeued
    assert not list(cluster.rglob("harm"))


def test_it_goes_back_into_the_queue_100_times(job: Callable, cluster: Path) -> None:
    status, _, errors = end(job("train", MHSH_STATUS="75", SLURM_RESTART_COUNT="100"))
    assert status == 75 and "starting again" not in errors
    assert "requeue" not in (cluster / "slurm.log").read_text()


ARRAY = {"SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "4"}  # 77 alone would be all of its tasks


@pytest.mark.parametrize(
    ("name", "status", "requeued", "array", "named"), [("TERM", 75, True, ARRAY, "77_4"), ("INT", 130, False, {}, "77")]
)
def test_a_signal_reaches_the_tasks_and_not_srun(
    job: Callable, cluster: Path, name: str, status: int, requeued: bool, array: dict[str, str], named: str
) -> None:
    with job("train", MHSH_WAITS="1", **array) as process:
        assert process.stdout.readline() == "ready\n"
        while not (cluster / "tasks").exists():
            time.sleep(0.02)
        process.send_signal(signal.Signals[f"SIG{name}"])
        assert process.stdout.read() == "saved\n"
        assert process.wait(30) == status
    notes = (cluster / "slurm.log").read_text().splitlines()[1:]
    assert notes == [f"scancel --signal={name} {named}"] + [f"scontrol requeue {named}"] * requeued


@pytest.mark.parametrize(
    ("variables", "arguments", "options", "devices"),
    [
        ({}, [], "", "none"),
        (TWO, ["--distributed"], "", "none"),
        # One process a node has all its GPUs; of one process a GPU, jax gives each its own.
        (
            TWO | {"SLURM_GPUS_ON_NODE": "8", "SLURM_CPUS_PER_TASK": "64"},
            ["--distributed"],
            "--cpus-per-task=64",
            "0,1,2,3,4,5,6,7",
        ),
        ({"SLURM_GPUS_ON_NODE": "1"}, [], "", "0"),
        (ARRAY | {"SLURM_ARRAY_TASK_COUNT": "3"}, [], "", "none"),
        ({"SLURM_NTASKS": "16", "SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_ON_NODE": "8"}, ["--distributed"], "", "none"),
    ],
)
def test_processes_and_their_gpus(
    job: Callable, cluster: Path, variables: dict[str, str], arguments: list[str], options: str, devices: str
) -> None:
    assert end(job("train", "--workdir=x", **variables))[0] == 0
    assert call(cluster) == ["train", "--workdir=x", *arguments]
    assert (cluster / "devices").read_text() == f"{devices}\n"
    wanted = ["srun", f"--ntasks={(JOB | variables)['SLURM_NTASKS']}", *options.split(), "--kill-on-bad-exit=0", "--wait=120"]
    wanted += ["--gpu-bind=none"] * ("SLURM_GPUS_ON_NODE" in variables)
    assert (cluster / "slurm.log").read_text().splitlines()[0].split() == wanted


def test_the_mhsh_of_an_image(job: Callable, cluster: Path, stand_in: Callable) -> None:
    """srun gets the options of pyxis, and needs no environment; its folder is mounted."""
    stand_in("mhsh", MHSH.partition("\n")[2])
    arguments = ["--container-image=nvcr.io#me/mhsh:1", "--container-mounts=/data:/data", "train", "--workdir=/data/x"]
    assert end(job(*arguments, MHSH_VENV="/nothing"))[0] == 0
    assert call(cluster) == ["train", "--workdir=/data/x"]
    options = (cluster / "slurm.log").read_text().splitlines()[0].split()
    assert options[-4:] == [f"--container-workdir={ROOT}", f"--container-mounts={ROOT}:{ROOT}", *arguments[:2]]


def test_what_sbatch_reads() -> None:
    lines = (ROOT / "launch/slurm").read_text(encoding="utf-8").splitlines()
    directives = [option for line in lines if line.startswith("#SBATCH ") for option in line.split()[1:]]
    assert directives == ["--job-name=mhsh", "--ntasks-per-node=1", "--signal=B:TERM@120", "--requeue", "--open-mode=append"]
    first_command = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first_command:])  # sbatch reads no further


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        (["train"], {"SLURM_JOB_ID": ""}, "hand this to sbatch"),
        (["eval", "RUN"], {"SLURM_NTASKS": "2"}, "mhsh eval is one process, and these are 2; give it one node"),
        (["train"], {"MHSH_VENV": "/nothing"}, "no /nothing/bin/mhsh; call sbatch in the folder of the checkout"),
    ],
)
def test_mistakes_are_one_line(job: Callable, arguments: list[str], variables: dict[str, str], message: str) -> None:
    status, output, errors = end(job(*arguments, **variables))
    assert (status, output, errors.count("\n")) == (2, "", 1)
    assert message in errors


def test_refuses_credentials(job: Callable, credential: str) -> None:
    status, output, errors = end(job("train", credential))
    assert status == 2 and errors.count("\n") == 1
    assert "hush" not in output + errors


REAL = {"MHSH_VENV": str(Path(sys.executable).parents[1]), "JAX_PLATFORMS": "cpu"}
REAL |= {name: value for name, value in os.environ.items() if name.startswith(("JAX_", "XLA_"))}


@pytest.mark.slow
def test_an_array_trains_all_cells_of_a_sweep(job: Callable, corpus: str, tmp_path: Path) -> None:
    """Two tasks of an array at once, with real processes; the same command finds all done."""
    assert main(["sweep", *CONFIG, corpus, "--axes", "seed=0,1,2", f"--workdir={tmp_path / 's'}", "--parallel=0"]) == 0
    arguments = ["work", str(tmp_path / "s")]
    for turn in range(2):
        tasks = []
        for number in "12":
            home = tmp_path / f"home{turn}{number}"
            home.mkdir()
            tasks.append(job(*arguments, **REAL, SLURM_ARRAY_TASK_COUNT="2", SLURM_ARRAY_TASK_ID=number, HOME=str(home)))
        for task in tasks:
            status, output, errors = end(task)
            assert status == 0, errors
            assert "All cells have ended: 3 finished" in output and ("seed-0 ..." not in output or not turn)
        folder = SweepFolder(tmp_path / "s")
        assert [folder.state(cell.name).kind for cell in folder.read_plan().cells] == [FINISHED] * 3


@pytest.mark.slow
def test_two_nodes_find_each_other_save_and_go_on(job: Callable, corpus: str, cluster: Path) -> None:
    """Real processes, which jax joins by Slurm's variables alone."""
    arguments = ["train", *CONFIG, corpus, "--config.train.num_steps=200", f"--workdir={cluster / 'run'}"]
    two = REAL | TWO | {"SLURM_JOB_ID": str(os.getpid())}  # jax makes the port of it
    process = job(*arguments, **two)
    metrics = cluster / "run/metrics.jsonl"
    while process.poll() is None and (not metrics.exists() or metrics.read_bytes().count(b"\n") < 20):
        time.sleep(0.1)
    process.terminate()
    status, _, errors = end(process)
    assert status == 75, errors
    assert f"scontrol requeue {os.getpid()}" in (cluster / "slurm.log").read_text()
    (cluster / "tasks").unlink()
    record = json.loads((cluster / "run/run.json").read_text(encoding="utf-8"))
    assert record["processes"] == 2
    status, _, errors = end(job(*arguments, **two))
    assert status == 0, errors
    rows = [json.loads(line) for line in metrics.read_bytes().splitlines()]
    assert [row["step"] for row in rows if row["split"] == "train"] == list(range(1, 201))
