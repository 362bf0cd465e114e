"""What an error suggests: a name that was meant, a command that works."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from mhsh.cli.main import NAMES
from mhsh.config.fields import all_fields
from mhsh.errors import closest, install_command
from tests.conftest import ROOT

KNOWN = ["shape", *NAMES, *(field.path for field in all_fields("mlm"))]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("num_layer", "model.num_layers"),
        ("model.nun_heads", "model.num_heads"),
        ("model.learning_rate", "optimizer.learning_rate"),
        ("wieght_decay", "optimizer.weight_decay"),
        ("batch", "train.batch_size"),
        ("warmup", "optimizer.warmup_steps"),
        ("shapes", "shape"),
        ("model.colour", None),
        ("colour", None),
        ("trian", "train"),
        ("plot", None),
        ("lr", None),
        ("", None),
    ],
)
def test_a_field_or_command_is_suggested_only_where_it_is_near(name, meant):
    assert closest(name, KNOWN) == meant


def test_a_checkout_installs_an_extra_by_its_name(tmp_path, monkeypatch):
    bin_folder = Path(sys.executable).parent
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PATH", str(bin_folder), prepend=os.pathsep)
    assert install_command("gcs") == "pip install -e '.[gcs]'"
    monkeypatch.chdir(tmp_path)
    assert install_command("gcs") == f"pip install -e '{ROOT}[gcs]'"
    monkeypatch.setenv("PATH", "")  # another pip would install for another Python
    assert install_command("gcs") == f"{sys.executable} -m pip install -e '{ROOT}[gcs]'"
