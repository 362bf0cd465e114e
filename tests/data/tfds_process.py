"""Processes in which TFDS prepares or reads small data sets: one process knows one folder of them,
all its life.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from mhsh.errors import UserError
from tests.conftest import ROOT

needs_tfds = pytest.mark.skipif(importlib.util.find_spec("tensorflow_datasets") is None, reason="the tfds extra is not installed")
needs_tensorflow = pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")


def python(program: str, data_dir: Path, *arguments: str) -> str:
    """What `program` prints, for which `data_dir` is TFDS's folder; raises what the user would be
    told where it ends with 2.
    """
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"TFDS_DATA_DIR": str(data_dir), "PATH": "", "HOME": str(data_dir), "JAX_PLATFORMS": "cpu"},
    )
    if done.returncode == 2:
        raise UserError(done.stderr.rstrip("\n").split("\n")[-1])
    assert done.returncode == 0, done.stderr
    return done.stdout
