"""Running commands: in a process of their own, in a fork that has imported all, or in this process;
and reading what a run leaves behind.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
from jax.sharding import AxisType

from mhsh.cli.main import main
from mhsh.config.schema import Config
from mhsh.storage.run_folder import RunFolder, vocab_file
from mhsh.training.checkpoints.checkpoint import Checkpoints
from mhsh.training.optimizer import build_optimizer
from mhsh.training.sharding import MESH_AXES
from mhsh.training.state import TrainState, abstract_state
from tests.conftest import ROOT
from tests.forks import Fork

# Runs the commands of a JSON list in one process; prints their exit statuses and what they say.
ANSWERS = """
import contextlib, io, json, shlex, sys
from mhsh.cli.main import main
answers = []
for line in json.loads(sys.argv[1]):
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = main(shlex.split(line))
    answers.append([status, said.buffer.getvalue().decode()])
print(json.dumps(answers))
"""
TIMINGS = {"seconds", "tokens_per_second", "flops_per_second"}

# A tiny run. A remat policy saves the tracing that `auto` takes.
CONFIG = [
    "--config=configs/bert.py:2l8h",
    "--config.data.validation_fraction=0.2",
    "--config.model.vocab_size=512",
    "--config.model.embed_dim=16",
    "--config.model.head_dim=2",
    "--config.model.mlp_dim=16",
    "--config.model.remat_policy=none",
    "--config.train.num_steps=36",  # long enough to be stopped in the middle on a busy machine
    "--config.train.checkpoint_interval=12",
    "--config.train.eval_batches=0",
]


def command(*arguments: str) -> list[str]:
    """For tests that start Python itself."""
    return [sys.executable, "-m", "mhsh", *arguments]


def mhsh(*arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command in a fork."""
    process = Fork(arguments, environment)
    out, err = process.communicate()
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def mhsh_here(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in this process, on one of its eight devices: nothing is imported again. For
    commands that trace no model: here every shape is checked, which makes tracing slower.
    """
    out, err, devices = io.StringIO(), io.StringIO(), jax.devices
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.chdir(ROOT),
        mock.patch.object(jax, "devices", lambda *backend: devices(*backend)[:1]),
    ):
        status = main(arguments)
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())


def wait_for_step(folder: Path, step: int, process: Fork) -> None:
    while not any(row["step"] >= step for row in RunFolder(folder).rows()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def rows_without_timings(folder: Path) -> list[dict[str, Any]]:
    assert RunFolder(folder).read_metrics().problem is None
    return [{key: value for key, value in row.items() if key not in TIMINGS} for row in RunFolder(folder).rows()]


def final_state(folder: Path) -> list[np.ndarray]:
    config = RunFolder(folder).read_config()
    optimizer = build_optimizer(config)
    checkpoints = Checkpoints(RunFolder(folder).checkpoints_path, keep=9)
    mesh = jax.make_mesh((1, 1, 1), MESH_AXES, axis_types=(AxisType.Auto,) * 3, devices=jax.devices()[:1])
    state = checkpoints.restore(config.train.num_steps, abstract_state(config, optimizer, mesh))
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]


def cut_back(run: Path, to: Path, step: int = 24) -> Path:
    """A copy of a finished run as if it had been killed after `step` was saved."""
    shutil.copytree(run, to)
    for path in (to / "checkpoints").iterdir():
        if int(path.name) > step:
            shutil.rmtree(path)
    folder = RunFolder(to)
    folder.write_run(folder.read_run() | {"checkpoint": step, "status": "running"})
    return to


def saved_run(path: Path, config: Config, tokenizer: Any, *params: Any) -> str:
    """A run folder as training leaves it, with a checkpoint of each `params`, from step 1. Its data
    is not there.
    """
    folder = RunFolder.open_for_training(path, config)
    tokenizer.save(folder.path / vocab_file(config))
    folder.write_run({"status": "finished", "vocabulary": folder.vocabulary_hash(config)})
    checkpoints = Checkpoints(folder.checkpoints_path, keep=5)
    for step, each in enumerate(params, 1):
        checkpoints.save(step, jax.device_put(TrainState(each, {}, np.int32(step))))
    checkpoints.close()
    return str(folder.path)
