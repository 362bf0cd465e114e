"""launch/sky.yaml as SkyPilot reads it, in an environment of its own: its packages do not go with
those of mhsh. MHSH_SKY names a Python that has it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT

VERSION = "0.14.1"
READ = """
import json, sys
import sky
task = sky.Task.from_yaml(sys.argv[1])
found = [[each.region, each.accelerators, each.use_spot, each.job_recovery] for each in task.resources]
print(json.dumps([sky.__version__, task.workdir, task.envs, task.setup, task.run, sorted(found, key=str)]))
"""


@pytest.mark.slow  # installs 70 packages
def test_skypilot_reads_a_worker_of_several_zones_and_types(tmp_path: Path) -> None:
    python = os.environ.get("MHSH_SKY", str(tmp_path / "environment/bin/python"))
    if "MHSH_SKY" not in os.environ:
        subprocess.run([sys.executable, "-m", "venv", tmp_path / "environment"], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", f"skypilot=={VERSION}"], check=True)
    command = [python, "-c", READ, str(ROOT / "launch/sky.yaml")]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}  # no account, and no network
    read = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert read.returncode == 0, read.stderr
    version, workdir, envs, setup, run, resources = json.loads(read.stdout.splitlines()[-1])
    assert (version, workdir, envs) == (VERSION, ".", {"SWEEP": "gs://BUCKET/SWEEP"})
    assert setup == "bash launch/tpu_worker install"
    assert run == '.venv/bin/mhsh work "$SWEEP" --distributed'
    places = [(region, accelerators) for region, accelerators, _, _ in resources]
    assert places == [
        ("europe-west4", {"tpu-v5litepod-16": 1}),
        ("us-east5", {"tpu-v6e-16": 1}),
        ("us-west4", {"tpu-v5litepod-16": 1}),
    ]
    for _, _, spot, recovery in resources:
        assert spot and recovery["recover_on_exit_codes"] == [75] and recovery["max_restarts_on_errors"] == 0


def test_the_python_of_a_vm_may_be_too_old(environment: dict[str, str], tools: Path, stand_in: Callable, tmp_path: Path) -> None:
    """It is 3.10 on TPU VMs: https://github.com/pytorch/xla/pull/5294."""
    (tools / "python3").unlink()
    for name, script in dict.fromkeys(["python3", "python3.13", "python3.11"], "exit 1").items() | {("python3.12", "exit 0")}:
        stand_in(name, script)
    (tmp_path / "launch").mkdir()
    shutil.copy(ROOT / "launch/tpu_worker", tmp_path / "launch")
    (tmp_path / "launch/environment").write_text('echo "$PYTHON, $1"\n')
    [setup] = re.findall(r"^setup: (.*?)(?: #.*)?$", (ROOT / "launch/sky.yaml").read_text(), re.MULTILINE)
    done = subprocess.run(["bash", "-c", setup], env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "python3.12, tpu,gcs\n"
