"""Samples of the experiments in benchmarks/faults, whose commands run them whole."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from benchmarks.faults import power, signals, table, workers

pytestmark = pytest.mark.slow


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new folder; the runs share what they compile."""
    for name in ("JAX_COMPILATION_CACHE_DIR", *table.CACHE):
        monkeypatch.setenv(name, "")  # put back after the test
    folder = tmp_path / "work"
    folder.mkdir()
    table.use_cache(folder)
    return folder


@pytest.mark.parametrize("fault", ["kills", "errors", "questions"])
def test_every_twelfth_fault_of_the_disk_leaves_the_unbroken_curve(work: Path, fault: str) -> None:
    assert not table.report(work, kills=fault == "kills", errors=fault == "errors", questions=fault == "questions", every=12)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems, which only root may")
def test_twenty_power_cuts_leave_the_unbroken_curve(work: Path) -> None:
    assert not power.experiment(work / "power", runs=2, cuts=10, seed=1)


def test_signals_leave_nothing_behind(work: Path) -> None:
    assert not signals.experiment(work / "signals", each=6, seed=3, only=None)


def test_workers_that_die_freeze_and_come_late_train_every_cell_once(work: Path) -> None:
    flags = workers.set_up(work)
    assert not workers.one_run(work / "0", work / "single", flags, random.Random(0), stopped=120)
