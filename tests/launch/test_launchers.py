"""What all launchers do: help, one line for each mistake, no credentials on a command line."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch.conftest import LAUNCH

TPU = "--name=mine --image=IMAGE:1 --accelerator=tpu-v5-lite-podslice"
GPU = "--name=mine --image=IMAGE:1 --accelerator=nvidia-h100-80gb"
SLICE, NODES = f"{TPU} --topology=4x4", f"{GPU} --nodes=2 --gpus-per-node=8"
TRAIN, WORK = "-- train --workdir=gs://BUCKET/RUN", "-- work gs://BUCKET/SWEEP"
UP = "up mine --zone=z --accelerator-type"

MISTAKES = [
    ("gke", TRAIN, "the following arguments are required: --name, --image, --accelerator"),
    ("gke", f"{SLICE.replace('mine', 'Mine')} {TRAIN}", "'Mine' must be at most 40 small letters"),
    ("gke", f"{TPU.replace('v5-lite-podslice', 'v1')} {TRAIN}", "'tpu-v1' must be one of tpu-v4-podslice"),
    ("gke", f"{TPU} {TRAIN}", "tpu-v5-lite-podslice needs --topology"),
    ("gke", f"{TPU} --topology=4*4 {TRAIN}", "'4*4' must be numbers with an x between, such as 4x4"),
    ("gke", f"{TPU} --topology=4x4x4 {TRAIN}", "--topology=4x4x4 must have 2 numbers for tpu-v5-lite-podslice"),
    ("gke", f"{TPU} --topology=3x3 {TRAIN}", "has no hosts of 4 chips"),
    ("gke", f"{TPU} --topology=2x2 --num-slices=2 {TRAIN}", "is 1 hosts; start each run by itself"),
    ("gke", f"{SLICE} --nodes=2 {TRAIN}", "does not go with --nodes"),
    ("gke", f"{GPU} --nodes=2 {TRAIN}", "nvidia-h100-80gb needs --gpus-per-node"),
    ("gke", f"{NODES} --num-slices=2 {TRAIN}", "nvidia-h100-80gb does not go with --num-slices"),
    ("gke", f"{SLICE} --num-slices=none {TRAIN}", "'none' must be a number from 1"),
    ("gke", f"{NODES} --network=tcpxo {TRAIN}", "--network=tcpxo is not that of nvidia-h100-80gb with 8 GPUs a node; take none"),
    ("gke", f"{SLICE} --network=none {TRAIN}", "tpu-v5-lite-podslice does not go with --network"),
    ("gke", f"{SLICE} --volume=disk {TRAIN}", "'disk' must be CLAIM:/PATH"),
    ("gke", f"{NODES} -- sweep --workdir=gs://b/s", "mhsh sweep runs on one host, and these are 2"),
    ("gke", f"{SLICE} --num-slices=2 {WORK}", "is 4 hosts; start each worker by itself"),
    ("gke", f"{NODES} -- eval RUN", "mhsh eval runs on one host, and these are 2"),
    ("gke", SLICE, "needs the arguments of mhsh after --"),
    ("gke", f"{SLICE} -- train --num-processes=2", "--num-processes is set by this launcher"),
    ("tpu_vm", "", "the following arguments are required: command, name, --zone"),
    ("tpu_vm", "make mine --zone=z", "argument command: invalid choice: 'make'"),
    ("tpu_vm", "up Mine --zone=z", "'Mine' must be small letters, digits and dashes"),
    ("tpu_vm", "up mine --zone=US", "'US' must be a zone"),
    ("tpu_vm", f"up mine --zone=z {TRAIN}", "up needs --accelerator-type=TYPE"),
    ("tpu_vm", f"{UP}=v4 {TRAIN}", "'v4' must be a type, for example v5litepod-16"),
    ("tpu_vm", f"{UP}=v99-8 {TRAIN}", "no software version is known for v99-8"),
    ("tpu_vm", f"{UP}=v4-8 --slices=0 {TRAIN}", "'0' must be a whole number from 1"),
    ("tpu_vm", f"{UP}=v4-8 --flag=network=n {TRAIN}", "'network=n' must be a flag: --flag=--NAME=VALUE"),
    ("tpu_vm", f"{UP}=v4-8 --flag=--api-key=hush {TRAIN}", "--api-key looks like a credential"),
    ("tpu_vm", f"{UP}=v6e-8 --flex-start {TRAIN}", "--flex-start needs --max-hours, at most 168"),
    ("tpu_vm", f"{UP}=v4-8 --valid-until=soon {TRAIN}", "'soon' must be a duration, for example 6h"),
    ("tpu_vm", f"{UP}=v4-8", "up needs the arguments of mhsh after --"),
    ("tpu_vm", f"{UP}=v4-8 -- train --process-id=1", "--process-id is set by this launcher"),
    ("tpu_vm", f"{UP}=v4-8 --delay=soon {TRAIN}", "'soon' must be a whole number of seconds"),
    ("tpu_vm", f"stop mine --zone=z {TRAIN}", "stop takes no arguments of mhsh"),
    ("tpu_vm", "stop mine --zone=z --spot", "--valid-until, --max-hours, --delete are for up"),
    ("tpu_vm", "logs mine --zone=z --worker=some", "'some' must be the number of a worker, or all"),
    ("tpu_vm", "logs mine HF_TOKEN=hush --zone=z", "HF_TOKEN is not an option"),
    ("local_cluster", "--processes=2", "needs the arguments of mhsh after --"),
    ("local_cluster", "--processes=none -- train", "argument --processes: 'none' must be a whole number"),
    ("local_cluster", "--processes=2 --devices-per-process=0 -- train", "--devices-per-process must be 1 or more"),
    ("local_cluster", "--processes=2 -- eval RUN", "mhsh eval is done by one process; start it without this launcher"),
    ("local_cluster", "--processes=2 -- train --coordinator=x", "--coordinator is set by this launcher"),
]


@pytest.mark.parametrize(("name", "line", "message"), MISTAKES)
def test_mistakes_are_one_line(launch: Callable, name: str, line: str, message: str) -> None:
    result = launch(name, *line.split())
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert message in result.stderr and "hush" not in result.stderr


def test_credentials_are_refused_and_never_repeated(launch: Callable, credential: str) -> None:
    """By what all of them read their arguments with."""
    result = launch("local_cluster", "--processes=1", "--dry-run", "--", "train", credential)
    assert result.returncode == 2
    assert "hush" not in result.stdout + result.stderr


# Stands for Python, and for that of the environment that it makes. The mhsh that it installs says
# of which checkout and which Python it is.
PYTHON = """
here="$(dirname "$0")"
case "$*" in
  --version) echo "Python $(cat "$here/version")" ;;
  *"-m venv --clear"*)
    rm -rf "$4" && mkdir -p "$4/bin" && cp "$0" "$4/bin/python" && cp "$here/version" "$4/bin" && echo venv >>made ;;
  *"-m pip install"*)
    printf '#!/bin/sh\\necho %s\\n' "'$PWD' $(cat "$here/version")" >"$here/mhsh" && chmod +x "$here/mhsh" && echo install >>made ;;
esac
"""


def test_an_environment_serves_where_and_with_what_it_was_made(
    environment: dict[str, str], tools: Path, stand_in: Callable, tmp_path: Path
) -> None:
    """A copied checkout would run the code of the first one, and a moved one would not start."""
    (tools / "python3").unlink()
    (tools / "newer").mkdir()
    for folder, version in ((tools, "3.11.7"), (tools / "newer", "3.12.1")):
        stand_in(f"{'' if folder == tools else 'newer/'}python3", PYTHON)
        (folder / "version").write_text(version)

    def quickstart(root: Path, **variables: str) -> tuple[str, list[str]]:
        """What the installed mhsh says, and what was made for it."""
        command = ["bash", str(root / "launch/quickstart")]
        done = subprocess.run(command, env=environment | variables, stdout=subprocess.PIPE, text=True, check=True)
        made = root / "made"
        steps = made.read_text().split() if made.exists() else []
        made.unlink(missing_ok=True)
        return done.stdout.splitlines()[-1], steps

    first, moved, copied = tmp_path / "first", tmp_path / "moved here", tmp_path / "copied"
    for name in ("launch/environment", "launch/quickstart", "pyproject.toml", "constraints.txt"):
        (first / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(LAUNCH.parent / name, first / name)
    assert quickstart(first) == (f"{first} 3.11.7", ["venv", "install"])
    assert quickstart(first) == (f"{first} 3.11.7", [])
    shutil.copytree(first, copied)
    assert quickstart(copied) == (f"{copied} 3.11.7", ["venv", "install"])
    first.rename(moved)
    assert quickstart(moved) == (f"{moved} 3.11.7", ["venv", "install"])
    assert quickstart(moved, PYTHON=str(tools / "newer/python3")) == (f"{moved} 3.12.1", ["venv", "install"])
    (moved / "constraints.txt").write_text("another\n")
    assert quickstart(moved, PYTHON=str(tools / "newer/python3")) == (f"{moved} 3.12.1", ["install"])
    subprocess.run(["bash", "-c", ". launch/environment dev"], env=environment, cwd=copied, check=True, stdout=subprocess.DEVNULL)
    assert quickstart(copied) == (f"{copied} 3.11.7", ["install"])  # with more than the quickstart needs
    (tmp_path / "linked").symlink_to(moved)
    assert quickstart(tmp_path / "linked", PYTHON=str(tools / "newer/python3")) == (f"{moved} 3.12.1", [])


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("gke", "Trains on Google Kubernetes Engine"),
        ("tpu_vm", "Trains on a Cloud TPU slice"),
        ("local_cluster", "Trains with several processes on this machine's CPU"),
    ],
)
def test_help(launch: Callable, name: str, begins: str) -> None:
    result = launch(name, "--help")
    assert result.returncode == 0 and result.stdout.startswith(begins) and "import" not in result.stdout
