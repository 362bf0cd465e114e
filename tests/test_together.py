"""Cells of a sweep that are trained together, in real processes: each is as a run of its own."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from mhsh.storage.run_folder import RunFolder
from mhsh.storage.run_record import FINISHED, STOPPED
from mhsh.sweep.folder import SweepFolder
from tests.forks import Fork
from tests.runs import CONFIG, mhsh, mhsh_here, rows_without_timings, wait_for_step

AXES = ("--axes", "lr=1e-3,3e-3", "seed=0,1")
TOLERANCE = 1e-5  # relative; 7e-8 was the largest difference in 24 steps


def planned(folder: Path, source: str) -> SweepFolder:
    assert mhsh_here("sweep", *CONFIG, source, *AXES, f"--workdir={folder}", "--parallel=0").returncode == 0
    return SweepFolder(folder)


def kinds(folder: SweepFolder) -> list[str]:
    return [folder.outcome(cell.name).kind for cell in folder.read_plan().cells]


def runs(folder: SweepFolder) -> list[RunFolder]:
    return [folder.run_folder(cell.name) for cell in folder.read_plan().cells]


@pytest.fixture(scope="module")
def single(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> SweepFolder:
    """The cells, each trained alone."""
    folder = planned(tmp_path_factory.mktemp("single") / "s", corpus)
    assert mhsh("work", str(folder.path)).returncode == 0
    return folder


def test_a_worker_of_several_devices_and_a_wrong_number_are_refused(corpus, tmp_path):
    folder = planned(tmp_path / "s", corpus)
    refused = mhsh_here("work", str(folder.path), "--together=2")
    assert refused.returncode == 2
    assert (
        "--together=2 is for a worker of one device, and this one has 8; leave it out, or start a worker a device" in refused.stderr
    )
    assert mhsh_here("work", str(folder.path), "--together=0").returncode == 2


@pytest.mark.slow  # by default: tests/training/test_step.py has the step, tests/cli/test_sweep.py a whole sweep
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_cells_stopped_together_go_on_alone_and_together_with_the_curves_of_single_runs(corpus, single, tmp_path, number):
    folder = planned(tmp_path / "s", corpus)
    stopped = Fork(["work", str(folder.path), "--together=4"])
    cells = runs(folder)
    wait_for_step(Path(cells[-1].path), 14, stopped)
    while None in {cell.newest_checkpoint() for cell in cells}:  # the save of step 12 may take longer than two steps
        assert stopped.poll() is None
        time.sleep(0.02)
    stopped.send_signal(number)
    said = stopped.communicate()
    assert stopped.returncode == (75 if number == signal.SIGTERM else -number), said
    assert kinds(folder) == [STOPPED] * 4
    (step,) = {cell.newest_checkpoint() for cell in cells}
    assert step is not None and 12 <= step < 36
    # One of them goes on alone, as the run that it is.
    alone: dict[str, Any] = {"train.seed": 1, "data.seed": 1, "optimizer.learning_rate": 1e-3}
    flags = [f"--config.{name}={value}" for name, value in alone.items()]
    assert mhsh("train", *CONFIG, corpus, *flags, f"--workdir={cells[1].path}").returncode == 0
    assert mhsh("work", str(folder.path), "--together=4").returncode == 0
    assert kinds(folder) == [FINISHED] * 4
    together = [[each.get("cells_together", 1) for each in cell.read_run()["clock"].values()] for cell in cells]
    assert together == [[4, 3], [4, 1], [4, 3], [4, 3]]
    for ours, theirs in zip(cells, runs(single), strict=True):
        rows, expected = (rows_without_timings(Path(run.path)) for run in (ours, theirs))
        assert [(row["step"], row["split"], row["batch"], row["tokens"]) for row in rows] == [
            (row["step"], row["split"], row["batch"], row["tokens"]) for row in expected
        ]
        assert [row["loss"] for row in rows] == pytest.approx([row["loss"] for row in expected], rel=TOLERANCE)
    assert len({rows_without_timings(Path(cell.path))[0]["batch"] for cell in cells}) == 2  # of two data seeds
