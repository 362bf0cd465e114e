"""What trained a run is recorded, and a comparison sees it: the code, jax's numeric settings."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mhsh.storage.run_folder import RunFolder
from mhsh.training.environment import code_hash
from mhsh.training.record import lost_rows
from tests.conftest import ROOT
from tests.runs import CONFIG, command, cut_back, mhsh, mhsh_here


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an mhsh whose learning rates are three times as large as they say."""
    folder = tmp_path_factory.mktemp("edited")
    shutil.copytree(ROOT / "mhsh", folder / "mhsh", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "configs", folder / "configs", ignore=shutil.ignore_patterns("__pycache__"))
    optimizer = folder / "mhsh" / "training" / "optimizer.py"
    source, line = optimizer.read_text(encoding="utf-8"), "-jnp.asarray(learning_rate"
    assert source.count(line) == 1
    optimizer.write_text(source.replace(line, line.replace("-", "-3 * ")), encoding="utf-8")
    return folder


def train(workdir: Path, corpus: str, folder: Path = ROOT, **variables: str) -> dict[str, Any]:
    """run.json of a run with the mhsh of `folder`."""
    done = subprocess.run(
        command("train", *CONFIG, corpus, f"--workdir={workdir}"),
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return RunFolder(workdir).read_run()


def verdict(tmp_path: Path, *runs: Path) -> str:
    done = mhsh_here("compare", *map(str, runs), f"--out={tmp_path / 'report.html'}")
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


def test_an_edit_of_the_learning_rate_and_other_numeric_settings_are_not_comparable(unbroken, corpus, edited, tmp_path):
    before = RunFolder(unbroken).read_run()
    assert before["code"] == {"0": code_hash()}
    after = train(tmp_path / "tripled", corpus, edited, JAX_ENABLE_X64="1")
    assert list(after["code"]) == ["0"] and after["code"] != before["code"]
    assert (after["git_revision"], after["versions"]) == (None, before["versions"])
    here, there = before["numerics"]["0"], after["numerics"]["0"]
    assert [name for name in here if here[name] != there[name]] == ["jax_enable_x64"]
    said = verdict(tmp_path, unbroken, tmp_path / "tripled")
    assert "Not comparable: different code that decides losses and numeric settings." in said


@pytest.mark.slow  # by default: the test above
def test_a_run_that_went_on_with_other_code_has_both(unbroken, corpus, edited, tmp_path):
    resumed = cut_back(unbroken, tmp_path / "resumed")
    code = train(resumed, corpus, edited)["code"]
    assert list(code) == ["0", "24"] and code["0"] == code_hash() != code["24"]
    assert "Not comparable: different code that decides losses." in verdict(tmp_path, unbroken, resumed)
    # Steps that are trained again with the first code have nothing of the other.
    again = cut_back(resumed, tmp_path / "again")
    assert train(again, corpus)["code"] == {"0": code_hash()}
    assert "A fair comparison: nothing that matters differs" in verdict(tmp_path, unbroken, again)


def test_a_spike_after_a_restart_is_one_over_the_rows_before_it(unbroken, corpus, tmp_path):
    resumed = cut_back(unbroken, tmp_path / "resumed")
    path = resumed / "metrics.jsonl"
    low = [json.dumps(json.loads(line) | {"loss": 0.5}) + "\n" for line in path.read_text().splitlines()]
    path.write_text("".join(low))  # next to which the losses of the steps to come are spikes
    assert mhsh("train", *CONFIG, corpus, f"--workdir={resumed}").returncode == 0
    spikes = [row["step"] for row in RunFolder(resumed).rows() if "spike" in row]
    assert spikes[0] == 25 and not any("spike" in row for row in RunFolder(unbroken).rows())


def test_rows_that_are_there_again_are_not_called_lost():
    """After an older checkpoint they are logged again; at the same one the file may be restored."""
    assert lost_rows({"12": 1, "24": 5}, 12, 0) == {}
    assert lost_rows({"12": 1, "24": 5}, 24, 5) == {"12": 1, "24": 5}
    assert lost_rows({"12": 1}, 24, 0) == {"12": 1}
