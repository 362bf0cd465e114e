"""Run folders of commit 38414e5: `eval`, `compare` and `export` read them, and `train` resumes
them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mhsh.cli.main import main
from mhsh.run_folder import RunFolder
from tests.conftest import ROOT

FIXTURES = ROOT / "tests" / "fixtures" / "runs_of_38414e5"
RELATIVE_TOLERANCE = 1e-5  # another jax, or another processor, may round differently
TIMINGS = {"seconds", "tokens_per_second", "flops_per_second"}


pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """The configs name their text relative to the checkout."""
    monkeypatch.chdir(ROOT)


def copied(name: str, tmp_path: Path) -> Path:
    """A run folder to write to."""
    return Path(shutil.copytree(FIXTURES / name, tmp_path / name))


def figures(row: dict[str, Any]) -> dict[str, float]:
    """The numbers of a row that do not depend on the machine's speed."""
    return {key: value for key, value in row.items() if key not in TIMINGS and not isinstance(value, str)}


@pytest.mark.parametrize("name", ["pretraining", "translation"])
def test_eval_prints_the_same_figures(name, tmp_path, capsys):
    assert main(["eval", str(copied(name, tmp_path))]) == 0
    expected = json.loads((FIXTURES / f"{name}_eval.json").read_text())
    assert json.loads(capsys.readouterr().out) == pytest.approx(expected, rel=RELATIVE_TOLERANCE)


def test_compare_reads_both(tmp_path):
    page = tmp_path / "report.html"
    assert main(["compare", str(FIXTURES / "pretraining"), str(FIXTURES / "translation"), f"--out={page}"]) == 0
    assert "pretraining" in page.read_text() and "translation" in page.read_text()


def test_export_writes_a_bert(tmp_path):
    assert main(["export", str(copied("pretraining", tmp_path)), f"--out={tmp_path / 'bert'}"]) == 0
    exported = json.loads((tmp_path / "bert" / "config.json").read_text())
    assert (exported["num_hidden_layers"], exported["hidden_size"]) == (2, 16)


def test_pretraining_is_resumed_as_the_old_code_resumes_it(tmp_path):
    workdir = copied("pretraining", tmp_path)
    begun = (workdir / "metrics.jsonl").read_text()
    assert main(["train", f"--workdir={workdir}"]) == 0
    assert (workdir / "metrics.jsonl").read_text().startswith(begun)
    rows = RunFolder(workdir).read_metrics().rows[begun.count("\n") :]
    expected = [json.loads(line) for line in (FIXTURES / "pretraining_continued.jsonl").read_text().splitlines()]
    assert len(rows) == len(expected) == 4  # three steps and a validation
    for row, wanted in zip(rows, expected, strict=True):
        assert (row["split"], row.get("batch")) == (wanted["split"], wanted.get("batch"))
        assert figures(row) == pytest.approx(figures(wanted), rel=RELATIVE_TOLERANCE)
    assert RunFolder(workdir).read_run()["omega"] == RunFolder(FIXTURES / "pretraining").read_run()["omega"]


def test_translation_is_refused_as_its_batches_come_in_another_order_now(tmp_path, capsys):
    workdir = copied("translation", tmp_path)
    begun = (workdir / "metrics.jsonl").read_bytes()
    assert main(["train", f"--workdir={workdir}"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "order of the batches has changed" in error
    assert (workdir / "metrics.jsonl").read_bytes() == begun
