"""Tests of `mhsh compare`: what it writes, what it says, what it returns, and what it never
overwrites.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mhsh.cli.reports.compare import run
from mhsh.config.schema import Config
from mhsh.errors import UserError
from mhsh.run_folder import RunFolder

ROOT = Path(__file__).resolve().parents[2]
MakeRun = Callable[..., str]


@pytest.fixture
def make_run(tmp_path: Path, make_config: Callable[..., Config]) -> MakeRun:
    """Writes a run folder with the training losses given, one a step, and no run.json."""
    config = make_config("bert", "2l8h")

    def make(name: str, losses: tuple[float, ...] = (3.0, 2.5, 2.0)) -> str:
        folder = RunFolder.open_for_training(tmp_path / "runs" / name, config)
        for step, loss in enumerate(losses, 1):
            cost = {"tokens": 512 * step, "flops": 1e9 * step, "seconds": 0.1 * step}
            folder.append_metrics([{"step": step, "split": "train", **cost, "loss": loss}])
        return str(folder.path)

    return make


def test_good_runs(make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "report.html"
    assert run([make_run("a"), make_run("b", (3.0, 2.9, 2.8))], str(out)) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "a ended lowest: final training loss 2.000" in said.out
    assert f"Report: {out}" in said.out
    assert sorted(path.name for path in out.parent.iterdir()) == [
        "curves.csv",
        "curves.png",
        "curves.svg",
        "curves_column.png",
        "curves_column.svg",
        "groups.csv",
        "report.html",
        "results.md",
    ]
    assert "<h1>a ended lowest" in out.read_text(encoding="utf-8")
    results = (out.parent / "results.md").read_text(encoding="utf-8")
    assert "\n- a ended lowest" in results and "\n![Loss curves](curves.png)\n" in results and "\n| b | " in results


def test_a_report_replaces_a_report(make_run: MakeRun, tmp_path: Path) -> None:
    out, a = str(tmp_path / "report.html"), make_run("a")
    assert run([a, make_run("b")], out) == 0
    before = Path(out).read_bytes()
    assert run([a, make_run("c", (3.0, 2.9, 2.8))], out) == 0
    assert Path(out).read_bytes() != before


def test_two_pages_in_one_folder_share_no_file(make_run: MakeRun, tmp_path: Path) -> None:
    a, b = make_run("a"), make_run("b", (3.0, 2.9, 2.8))
    for name, runs in (("one", [a]), ("two", [a, b])):
        run(runs, str(tmp_path / f"{name}.html"))
    assert "\nb," not in (tmp_path / "one_curves.csv").read_text()
    written = sorted(path.name for path in tmp_path.glob("*_*"))
    assert written == sorted(
        f"{page}_{name}"
        for page in ("one", "two")
        for name in ("curves.csv", "curves.png", "curves.svg", "curves_column.png", "curves_column.svg", "groups.csv", "results.md")
    )


def test_problems_are_named_and_the_others_drawn(make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, cut, young, missing = make_run("good"), make_run("cut"), make_run("young", ()), str(tmp_path / "missing")
    metrics = Path(cut) / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-10])
    out = tmp_path / "report.html"
    assert run([good, cut, young, missing], str(out)) == 2
    said = capsys.readouterr()
    lines = said.err.splitlines()
    assert len(lines) == 3
    for path, line in zip((missing, cut, young), lines, strict=True):
        assert line.startswith("mhsh compare: ")
        assert path in line
    assert "good ended lowest" in said.out
    text = out.read_text(encoding="utf-8")
    assert text.count("files damaged or missing") == 2
    assert "is cut short in line 3; only the 2 whole rows before it are read" in text


def test_nothing_to_draw(make_run: MakeRun, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    for folders in ([], [str(tmp_path / "missing")], [make_run("young", ())]):
        with pytest.raises(UserError):
            run(folders, str(out))
    assert not out.exists()


@pytest.mark.parametrize("name", ["report.html", "curves.png", "curves.svg", "curves.csv", "groups.csv", "results.md"])
def test_what_is_no_former_report_is_not_overwritten(make_run: MakeRun, tmp_path: Path, name: str) -> None:
    folders = [make_run("a"), make_run("b")]
    (tmp_path / name).write_text("my thesis")
    with pytest.raises(UserError, match="was not written by mhsh compare"):
        run(folders, str(tmp_path / "report.html"))
    assert (tmp_path / name).read_text() == "my thesis"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "runs"])


def test_the_baseline_and_the_target_are_those_asked_for(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("a"), make_run("b", (3.0, 2.9, 2.8))]
    for baseline in ("b", runs[1]):
        run(runs, str(tmp_path / "report.html"), target=2.9, baseline=baseline)
        with open(tmp_path / "groups.csv", encoding="utf-8", newline="") as file:
            rows = {(row["group"], row["measure"], row["axis"]): row for row in csv.DictReader(file)}
        assert float(rows["a", "reached loss 2.9", "step"]["mean"]) == pytest.approx(1.2)
        assert float(rows["a", "final training loss", ""]["difference"]) == pytest.approx(-0.8)
        assert {row["baseline"] for row in rows.values()} == {"b"}


@pytest.mark.parametrize("wrong", [{"baseline": "c"}, {"target": float("nan")}])
def test_a_baseline_or_target_that_is_none_is_refused(make_run: MakeRun, tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        run([make_run("a"), make_run("b")], str(tmp_path / "report.html"), **wrong)
    assert not (tmp_path / "report.html").exists()


def test_an_out_that_cannot_be_written(make_run: MakeRun, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for out in (tmp_path / "file" / "report.html", tmp_path / "folder"):
        with pytest.raises(UserError, match="choose another --out"):
            run([make_run("a")], str(out))
    assert (tmp_path / "file").read_text() == ""


def test_it_imports_neither_jax_nor_the_backend_of_a_notebook(make_run: MakeRun, tmp_path: Path) -> None:
    code = (
        "import sys; from mhsh.cli.main import main; "
        "assert main(['compare', sys.argv[1], f'--out={sys.argv[2]}']) == 0; "
        "sys.exit(3 if {'jax', 'flax', 'optax', 'orbax', 'grain'} & set(sys.modules) else 0)"
    )
    arguments = [make_run("a"), str(tmp_path / "report.html")]
    environment = os.environ | {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    assert subprocess.run([sys.executable, "-c", code, *arguments], cwd=ROOT, env=environment, check=False).returncode == 0
