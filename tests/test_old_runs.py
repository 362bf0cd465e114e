"""Run folders of commit 38414e5: `eval`, `compare` and `export` read them, and `train` resumes
them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mhsh.run_folder import RunFolder
from tests.conftest import ROOT
from tests.runs import TIMINGS, mhsh, mhsh_here

FIXTURES = ROOT / "tests" / "fixtures" / "runs_of_38414e5"
RELATIVE_TOLERANCE = 1e-5  # another jax, or another processor, may round differently


def copied(name: str, tmp_path: Path) -> Path:
    """A run folder to write to."""
    return Path(shutil.copytree(FIXTURES / name, tmp_path / name))


def figures(row: dict[str, Any]) -> dict[str, float]:
    """The numbers of a row that do not depend on the machine's speed."""
    return {key: value for key, value in row.items() if key not in TIMINGS and not isinstance(value, str)}


@pytest.mark.parametrize("name", ["pretraining", pytest.param("translation", marks=pytest.mark.slow)])
def test_eval_prints_the_same_figures(name, tmp_path):
    done = mhsh("eval", str(copied(name, tmp_path)))
    assert done.returncode == 0, done.stderr
    expected = json.loads((FIXTURES / f"{name}_eval.json").read_text())
    assert json.loads(done.stdout) == pytest.approx(expected, rel=RELATIVE_TOLERANCE)


def test_compare_reads_both(tmp_path):
    page = tmp_path / "report.html"
    assert mhsh_here("compare", str(FIXTURES / "pretraining"), str(FIXTURES / "translation"), f"--out={page}").returncode == 0
    assert "pretraining" in page.read_text() and "translation" in page.read_text()


def test_export_writes_a_bert(tmp_path):
    assert mhsh_here("export", str(copied("pretraining", tmp_path)), f"--out={tmp_path / 'bert'}").returncode == 0
    exported = json.loads((tmp_path / "bert" / "config.json").read_text())
    assert (exported["num_hidden_layers"], exported["hidden_size"]) == (2, 16)


def test_pretraining_is_resumed_as_the_old_code_resumes_it(tmp_path):
    workdir = copied("pretraining", tmp_path)
    begun = (workdir / "metrics.jsonl").read_text()
    assert mhsh("train", f"--workdir={workdir}").returncode == 0
    assert (workdir / "metrics.jsonl").read_text().startswith(begun)
    rows = RunFolder(workdir).read_metrics().rows[begun.count("\n") :]
    expected = [json.loads(line) for line in (FIXTURES / "pretraining_continued.jsonl").read_text().splitlines()]
    assert len(rows) == len(expected) == 4  # three steps and a validation
    for row, wanted in zip(rows, expected, strict=True):
        assert (row["split"], row.get("batch")) == (wanted["split"], wanted.get("batch"))
        assert figures(row) == pytest.approx(figures(wanted), rel=RELATIVE_TOLERANCE)
    assert RunFolder(workdir).read_run()["omega"] == RunFolder(FIXTURES / "pretraining").read_run()["omega"]


def test_translation_is_refused_as_its_batches_come_in_another_order_now(tmp_path):
    workdir = copied("translation", tmp_path)
    begun = (workdir / "metrics.jsonl").read_bytes()
    done = mhsh_here("train", f"--workdir={workdir}")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "order of the batches has changed" in done.stderr
    assert (workdir / "metrics.jsonl").read_bytes() == begun
