"""launch/slurm: the batch script it writes, and that script's run with stand-ins for Slurm's
commands.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Runs one task, without srun's own options, and tells TERM apart: to srun itself it would be the
# end of all tasks.
SRUN = """
trap 'echo killed >>"$HOME/slurm.log"; exit 143' TERM
echo "srun $*" | head -n 1 >>"$HOME/slurm.log"
while [[ "$1" = --* ]]; do shift; done
env --default-signal=INT "$@" &
echo "$!" >"$HOME/task"
wait "$!"
"""
SCANCEL = 'echo "scancel $*" >>"$HOME/slurm.log"\nkill -s "${1#--signal=}" "$(cat "$HOME/task")"\n'


@pytest.fixture
def cluster(stand_in: Callable, tmp_path: Path) -> Path:
    """A home folder with Slurm's commands, which note what they are asked, and an mhsh that ends
    with MHSH_STATUS.
    """
    stand_in("srun", SRUN)
    stand_in("scancel", SCANCEL)
    stand_in("scontrol", 'echo "scontrol $*" >>"$HOME/slurm.log"\n')
    stand_in("squeue", 'echo "${JOB_STATE-RUNNING}"\n')
    mhsh = tmp_path / "environment/bin/mhsh"
    mhsh.parent.mkdir(parents=True)
    mhsh.write_text(
        '#!/usr/bin/env bash\nprintf \'%s\\0\' "$@" >"$HOME/call"\n'
        'if [ -n "${MHSH_WAITS-}" ]; then\n'
        '  trap "echo saved; exit 75" TERM; trap "echo saved; exit 130" INT; echo ready; while :; do sleep 0.05; done\n'
        'fi\nexit "$MHSH_STATUS"\n'
    )
    mhsh.chmod(0o755)
    return tmp_path


def batch_script(launch: Callable, home: Path, *arguments: str) -> Path:
    result = launch("slurm", "--nodes=2", "--dry-run", *arguments, MHSH_VENV=str(home / "environment"))
    assert (result.returncode, result.stderr) == (0, "")
    path = home / "job.sh"
    path.write_text(result.stdout, encoding="utf-8")
    return path


def test_prints_the_script(launch: Callable, cluster: Path) -> None:
    options = ["--gpus-per-node=4", "--time=1-12:00:00", "--partition=long", "--account", "lab", "--mem=0", "--cpus-per-task=8"]
    lines = batch_script(launch, cluster, *options, "--logs=/logs/a b", "--", "train", "--workdir=runs/x").read_text().splitlines()
    assert [line for line in lines if line.startswith("#!") or line.startswith("#SBATCH")] == [
        "#!/usr/bin/env bash",
        "#SBATCH --job-name=mhsh",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=4",
        "#SBATCH --gpus-per-node=4",
        "#SBATCH --cpus-per-task=8",
        "#SBATCH --mem=0",
        "#SBATCH --time=1-12:00:00",
        "#SBATCH --partition=long",
        "#SBATCH --account=lab",
        '#SBATCH --output="/logs/a b/%x-%j.log"',
        "#SBATCH --open-mode=append",
        "#SBATCH --requeue",
        "#SBATCH --signal=B:TERM@120",
    ]
    assert f"cd {ROOT} || exit 2" in lines
    assert (
        "srun --ntasks=8 --ntasks-per-node=4 --kill-on-bad-exit=0 --wait=120 --gpu-bind=none "
        f"{cluster}/environment/bin/mhsh train --workdir=runs/x --distributed &"
    ) in lines


def test_script_is_clean(launch: Callable, cluster: Path, hostile: list[str]) -> None:
    path = batch_script(launch, cluster, "--tasks-per-node=3", "--", "train", *hostile)
    assert "#SBATCH --ntasks-per-node=3\n" in path.read_text()
    assert "gpu" not in path.read_text()
    subprocess.run(["bash", "-n", str(path)], check=True)
    path = batch_script(launch, cluster, "--gpus-per-node=8", "--", "train", hostile[0])
    shellcheck = Path(sys.executable).with_name("shellcheck")
    # SC2016 says that single quotes do not expand, which is what they are for here.
    result = subprocess.run(
        [str(shellcheck), "--exclude=SC2016", str(path)], env={"LC_ALL": "C.UTF-8"}, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("status", "state", "requeued"),
    [(0, "RUNNING", False), (2, "RUNNING", False), (1, "RUNNING", False), (75, "RUNNING", True), (75, "COMPLETING", False)],
)
def test_only_75_goes_back_into_the_queue(
    launch: Callable, cluster: Path, environment: dict[str, str], hostile: list[str], status: int, state: str, requeued: bool
) -> None:
    path = batch_script(launch, cluster, "--", "train", *hostile)
    variables = {"SLURM_JOB_ID": "77", "MHSH_STATUS": str(status), "JOB_STATE": state}
    result = subprocess.run(
        ["bash", str(path)], env=environment | variables, check=False, timeout=30, capture_output=True, text=True
    )
    assert result.returncode == status
    assert f"mhsh ended with exit status {status}" in result.stderr
    assert (cluster / "call").read_text().split("\0")[:-1] == ["train", *hostile, "--distributed"]
    assert ("scontrol requeue 77" in (cluster / "slurm.log").read_text()) == requeued
    assert not list(cluster.rglob("harm"))


@pytest.mark.parametrize(("name", "status", "requeued"), [("TERM", 75, True), ("INT", 130, False)])
def test_a_signal_reaches_the_tasks_and_not_srun(
    launch: Callable, cluster: Path, environment: dict[str, str], name: str, status: int, requeued: bool
) -> None:
    path = batch_script(launch, cluster, "--", "train")
    variables = {"SLURM_JOB_ID": "77", "MHSH_WAITS": "1"}
    with subprocess.Popen(["bash", str(path)], env=environment | variables, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        while not (cluster / "task").exists():
            time.sleep(0.02)
        process.send_signal(signal.Signals[f"SIG{name}"])
        assert process.stdout.read() == "saved\n"
        assert process.wait(30) == status
    notes = (cluster / "slurm.log").read_text().splitlines()[1:]
    assert notes == [f"scancel --signal={name} 77"] + ["scontrol requeue 77"] * requeued


def test_submits_what_it_prints(launch: Callable, stand_in: Callable, cluster: Path) -> None:
    stand_in("sbatch", 'echo "$*" >"$HOME/options"; cat >"$HOME/submitted"; echo 77\n')
    arguments = [f"--logs={cluster}/new/logs", "--", "train", "a b"]
    expected = batch_script(launch, cluster, *arguments).read_text()
    assert not (cluster / "new").exists()
    result = launch("slurm", "--nodes=2", *arguments, MHSH_VENV=str(cluster / "environment"))
    assert (result.returncode, result.stdout) == (0, "77\n")
    assert (cluster / "options").read_text() == "--parsable\n"
    assert (cluster / "submitted").read_text() == expected
    assert (cluster / "new/logs").is_dir()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--", "train"), "needs --nodes=N"),
        (("--nodes=2",), "needs the arguments of mhsh after --"),
        (("--nodes=two", "--", "train"), "--nodes 'two' must be a whole number from 1"),
        (("--nodes=0", "--", "train"), "--nodes '0' must be a whole number from 1"),
        (("--nodes=1", "--gpus-per-node=2", "--tasks-per-node=1", "--", "train"), "one process a GPU"),
        (("--nodes=1", "--partition=a b", "--", "train"), "--partition 'a b' has a character that has no place there"),
        (("--nodes=1", "--time", "--", "train"), "--time needs a value"),
        (("--nodes=1", '--logs=a"b', "--", "train"), "must not have quotes"),
        (("--nodes=1", "--colour=red", "--", "train"), "--colour is not an option"),
        (("--nodes=1", "--", "train", "--distributed"), "--distributed is set by this launcher"),
    ],
)
def test_mistakes_are_one_line(launch: Callable, arguments: tuple[str, ...], message: str) -> None:
    result = launch("slurm", "--dry-run", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_missing_environment_is_named(launch: Callable, stand_in: Callable, tmp_path: Path) -> None:
    stand_in("sbatch", "exit 1\n")
    result = launch("slurm", "--nodes=1", "--", "train", MHSH_VENV=str(tmp_path / "nothing"))
    assert result.returncode == 2
    assert f"no {tmp_path}/nothing/bin/mhsh" in result.stderr


def test_refuses_credentials(launch: Callable, credential: str) -> None:
    result = launch("slurm", "--nodes=1", "--dry-run", "--", "train", credential)
    assert result.returncode == 2
    assert "hush" not in result.stdout + result.stderr


def test_help(launch: Callable) -> None:
    result = launch("slurm", "--help")
    assert result.returncode == 0
    assert result.stdout.startswith("Trains on a Slurm cluster")
