"""The wheel is the product too: built, installed elsewhere, and used from there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT


def run(*command: str, cwd: Path, **variables: str) -> str:
    """What the command prints."""
    done = subprocess.run(command, cwd=cwd, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as pip builds it, without a network."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    (path,) = folder.iterdir()
    return path


def of_the_checkout(folder: str) -> set[Path]:
    return {path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix != ".pyc"}


def test_it_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        found = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    wanted = {str(path.relative_to(ROOT)): path.read_bytes() for path in of_the_checkout("mhsh")}
    assert found == wanted
    assert {"mhsh/py.typed", "mhsh/configs/bert.py", "mhsh/report/compare/page.html"} <= set(found)


def test_a_shipped_config_and_one_of_the_users_own(wheel: Path, tmp_path: Path) -> None:
    """Unpacked, which is what pip does with it besides writing the command."""
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (work / "mine.py").write_text("from mhsh.configs.bert import get_config\n")
    described = ("-m", "mhsh", "describe", "--json", "--config=bert:2l8h", "--against=mine.py:2l8h")
    quickly = [f"--{name}.model.remat_policy=none" for name in ("config", "against")]  # auto traces the step
    found = json.loads(run(sys.executable, *described, *quickly, cwd=work, PYTHONPATH=str(site)))
    assert found["config"] == found["against"] and found["config"]["shape"] == "2 layers x 8 heads"


@pytest.mark.slow  # the default tests above read the wheel and use its configs
def test_a_tiny_quickstart_where_it_is_installed(wheel: Path, tmp_path: Path) -> None:
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    pip = ("-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target", str(site), str(wheel))
    run(sys.executable, *pip, cwd=work)
    run("git", "init", "--quiet", cwd=tmp_path)  # of something else than mhsh
    run("git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--allow-empty", "-m", "theirs", cwd=tmp_path)
    tiny = ("--config.train.num_steps=4", "--config.train.eval_interval=2", "--config.optimizer.warmup_steps=1")
    small = ("--config.train.eval_batches=1", "--config.train.checkpoint_interval=0", "--config.data.sequence_length=32")
    run(str(site / "bin" / "mhsh"), "quickstart", "--workdir=runs", *tiny, *small, cwd=work, PYTHONPATH=str(site))
    assert "24l1h_admin" in (work / "runs" / "report.html").read_text(encoding="utf-8")
    record = json.loads((work / "runs" / "24l1h_admin" / "run.json").read_text(encoding="utf-8"))
    assert record["status"] == "finished" and record["git_revision"] is None
    where = run(sys.executable, "-c", "import mhsh; print(mhsh.__file__)", cwd=work, PYTHONPATH=str(site))
    assert Path(where.strip()).is_relative_to(site)
