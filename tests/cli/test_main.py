"""The command line: every mistake is one line that names it, with exit status 2, and nothing is
damaged.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mhsh.configs import take_config
from mhsh.storage.run_folder import RunFolder
from tests.cli.light_process import mhsh_without_jax
from tests.conftest import ROOT
from tests.runs import CONFIG

TINY = "--config=configs/bert.py:2l8h"


def test_a_mistake_can_be_mended_in_the_same_folder(fails, tmp_path, make_config):
    workdir = tmp_path / "run"
    fails("train", TINY, "--config.data.source=text:/nowhere/*.txt", f"--workdir={workdir}")
    folder = RunFolder.open_for_training(workdir, make_config("bert", "2l8h"))
    assert folder.read_config() == make_config("bert", "2l8h")


def test_a_folder_of_another_run_is_left_as_it_is(fails, tmp_path, make_config):
    folder = RunFolder.open_for_training(tmp_path / "run", make_config("bert", "2l8h"))
    folder.append_metrics([{"step": 1, "split": "train", "loss": 7.0}])
    before = {path: path.read_bytes() for path in sorted(Path(folder.path).rglob("*")) if path.is_file()}
    line = fails("train", TINY, "--config.train.seed=1", f"--workdir={folder.path}")
    assert "train.seed is 0 there, 1 here" in line
    assert {path: path.read_bytes() for path in sorted(Path(folder.path).rglob("*")) if path.is_file()} == before


@pytest.mark.slow
def test_a_full_disk_is_one_line(fails, tmp_path, corpus, monkeypatch):
    """/dev/full is a disk without room: the first write of run.json fails as it would there."""
    workdir = tmp_path / "run"
    arguments = ["train", *CONFIG, corpus, f"--workdir={workdir}"]
    config, _ = take_config("config", CONFIG[0].removeprefix("--config="), [*CONFIG[1:], corpus])
    assert config is not None
    RunFolder.open_for_training(workdir, config)
    (workdir / ".run.json.half.tmp").symlink_to("/dev/full")
    monkeypatch.setattr("mhsh.storage.files.uuid.uuid4", lambda: SimpleNamespace(hex="half"))
    assert "the disk is full" in fails(*arguments)
    assert not (workdir / "run.json").exists()


def test_compare_starts_without_jax():
    assert "/nowhere is no folder" in mhsh_without_jax("compare", "/nowhere").stderr


def test_no_file_of_a_command_imports_jax():
    code = (
        "import sys; from mhsh.cli.main import NAMES, main\n"
        "main(['--help'])\n"
        "light = {'rich', 'cyclopts', 'numpy', 'msgspec', 'etils', 'ml_collections', 'mhsh.cli.train'}.isdisjoint(sys.modules)\n"
        "from mhsh.cli.parser import pages\n"
        "for name in NAMES: pages(name)\n"
        "print(light, {'jax', 'flax', 'optax', 'orbax', 'grain', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("\nTrue set()\n"), done.stdout + done.stderr
