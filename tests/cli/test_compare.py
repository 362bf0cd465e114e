"""Tests of `mhsh compare`: what it writes, what it says, what it returns, and what it never
overwrites. What it finds is tested in tests/verdict, how that looks in tests/report.
"""

from __future__ import annotations

import csv
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mhsh.cli.compare import run
from mhsh.config.schema import Config
from mhsh.errors import UserError
from mhsh.storage.run_folder import RunFolder
from tests.cli.light_process import mhsh_without_jax
from tests.conftest import ROOT, load_fields
from tests.sweeps import TRAINED_ALIKE, write_sweep

MakeRun = Callable[..., str]
FILES = ("report.html", "report.json", "report.md", "report.csv", "report.svg")
OF_TWO = (*FILES, "report_forest.svg")


@pytest.fixture
def make_run(tmp_path: Path, make_config: Callable[..., Config]) -> MakeRun:
    """Writes a run folder with the training losses given, one a step."""

    def make(name: str, losses: tuple[float, ...] = (3.0, 2.5, 2.0), **changes: Any) -> str:
        config = make_config("bert", "2l8h", **{"train.num_steps": max(1, len(losses)), "optimizer.warmup_steps": 0, **changes})
        folder = RunFolder.open_for_training(tmp_path / "runs" / name, config)
        folder.write_run({"status": "finished", "data": {"fingerprint": "f00d"}, "parameters": {"total": 1000}, **TRAINED_ALIKE})
        for step, loss in enumerate(losses, 1):
            cost = {"tokens": 512 * step, "flops": 1e9 * step, "seconds": 0.1 * step}
            folder.append_metrics([{"step": step, "split": "train", **cost, "loss": loss}])
        return str(folder.path)

    return make


def groups(out: Path) -> list[dict[str, str]]:
    with open(out.with_suffix(".csv"), encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_good_runs(make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "report.html"
    paths = [make_run("a"), make_run("b", (3.0, 2.9, 2.8), **{"model.residual": "pre_ln"})]
    assert run(*paths, out=str(out)) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.replace("\n", "").startswith(
        "No verdict: 2x8 admin ends 0.800 below 2x8 pre_ln (one seed is not enough to rule out chance)"
    )
    assert f"Report: {out}\nBeside it: " in said.out
    assert {path.name for path in out.parent.iterdir()} == set(OF_TWO)
    assert "<h1>No verdict: 2x8 admin ends 0.800 below" in out.read_text(encoding="utf-8")
    results = out.with_suffix(".md").read_text(encoding="utf-8")
    assert "\n- No verdict: 2x8 admin ends" in results and "](report.svg)\n" in results and "\n| 2x8 pre_ln | " in results
    # A report replaces a report, and equal runs give equal files.
    before = {path: path.read_bytes() for path in out.parent.iterdir()}
    assert run(*paths, out=str(out)) == 0
    assert {path: path.read_bytes() for path in out.parent.iterdir()} == before
    assert run(*paths[:1], out=str(out), png=True) == 0
    assert out.read_bytes() != before[out] and out.with_suffix(".png").exists()


def test_two_pages_in_one_folder_share_no_file(make_run: MakeRun, tmp_path: Path) -> None:
    a, b = make_run("a"), make_run("b", (3.0, 2.9, 2.8), **{"model.residual": "pre_ln"})
    for name, paths in (("one", [a]), ("two", [a, b])):
        run(*paths, out=str(tmp_path / f"{name}.html"))
    assert "pre_ln" not in (tmp_path / "one.csv").read_text()
    assert {path.name for path in tmp_path.glob("*.*")} == {
        f"{page}{name[6:]}" for page, names in (("one", FILES), ("two", OF_TWO)) for name in names
    }


def test_problems_are_named_and_the_others_drawn(make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, cut, young, missing = make_run("good"), make_run("cut", (3.0, 2.9, 2.8)), make_run("young", ()), str(tmp_path / "missing")
    metrics = Path(cut) / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-10])
    out = tmp_path / "report.html"
    assert run(good, cut, young, missing, out=str(out)) == 2
    said = capsys.readouterr()
    lines = said.err.splitlines()
    assert len(lines) == 3
    for path, line in zip((missing, cut, young), lines, strict=True):
        assert line.startswith("mhsh compare: ")
        assert path in line
    text = out.read_text(encoding="utf-8")
    assert all(path in text for path in (missing, cut, young)) and "line 3 is cut short; only the 2 rows before it are read" in text


def test_the_baseline_is_the_one_asked_for(make_run: MakeRun, tmp_path: Path) -> None:
    paths = [make_run("a"), make_run("b", (3.0, 2.9, 2.8), **{"model.residual": "pre_ln"})]
    for baseline in ("b", paths[1], "2x8 pre_ln"):
        run(*paths, out=str(tmp_path / "report.html"), baseline=baseline)
        a, b = groups(tmp_path / "report.html")
        assert float(a["difference"]) == pytest.approx(-0.8) and b["difference"] == ""


def test_what_is_meant_to_differ_is_what_is_asked_for(make_run: MakeRun, tmp_path: Path) -> None:
    paths = [make_run("a"), make_run("b", (3.0, 2.9, 2.8), **{"model.residual": "pre_ln", "model.hidden_dropout": 0.5})]
    for treatment, words in (
        (None, "different dropout"),
        ("shape,model.hidden_dropout", "the residual scheme and the hidden_dropout"),
    ):
        run(*paths, treatment=treatment, out=str(tmp_path / "report.html"))
        assert words in (tmp_path / "report.md").read_text().replace("\\", "").replace("\n  ", " ")


def test_a_sweep_over_the_rate_compares_shapes_each_at_its_best(tmp_path: Path) -> None:
    """Eight heads are best at 1e-3, one head at 2e-3."""
    ends = {
        f"heads_per_layer-{heads}_learning_rate-{rate}_seed-{seed}": 2.3 + 0.1 * (heads == 1) + 0.05 * distance + 0.002 * seed
        for heads in (8, 1)
        for distance, rate in enumerate(("0.001", "0.002", "0.004") if heads == 8 else ("0.002", "0.001", "0.004"))
        for seed in range(6)
    }
    axes = ["heads_per_layer=8,1", "lr=1e-3,2e-3,4e-3", "seed=0,1,2,3,4,5"]
    sweep = str(write_sweep(tmp_path / "sweep", load_fields("evidence", "heads"), axes, ends).path)
    out = tmp_path / "report.html"
    assert run(sweep, over="lr", choosing_seeds=3, out=str(out)) == 0
    assert [row["best learning_rate"] for row in groups(out)] == ["0.001", "0.002"]
    assert "validation loss by learning rate" in out.read_text(encoding="utf-8")
    # By the heads, once for each rate.
    assert run(sweep, by="heads_per_layer", out=str(out)) == 0
    said = out.with_suffix(".md").read_text(encoding="utf-8")
    for rate in ("0.001", "0.002", "0.004"):
        assert f"learning_rate {rate}: " in said.replace("\\", "")


def test_a_file_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_text("{}")
    with pytest.raises(UserError, match=r"bench\.json is a file; give the folder that --workdir named"):
        run(str(tmp_path / "bench.json"), out=str(tmp_path / "report.html"))
    assert not (tmp_path / "report.html").exists()


def test_a_watched_folder_shows_the_runs_that_begin_in_it_until_an_interrupt(make_run: MakeRun, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    command = [sys.executable, "-m", "mhsh", "compare", "--watch", str(tmp_path / "runs")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"Watching 0 runs at (http://127\.0\.0\.1:[0-9]+/)", process.stdout.readline())
            assert found is not None
            with urllib.request.urlopen(found[1], timeout=60) as page:
                assert "holds no run" in page.read().decode()
            make_run("later")
            while "2x8 admin" not in (text := urllib.request.urlopen(found[1], timeout=60).read().decode()):
                time.sleep(0.2)
            assert "holds no run" not in text
            before = sorted(tmp_path.rglob("*"))
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
            assert sorted(tmp_path.rglob("*")) == before
        finally:
            process.kill()


def test_it_needs_neither_jax_nor_the_backend_of_a_notebook(make_run: MakeRun, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    done = mhsh_without_jax("compare", make_run("a"), f"--out={tmp_path / 'report.html'}")
    assert done.returncode == 0, done.stderr
