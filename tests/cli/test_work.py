"""Tests of `mhsh work`: workers in real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mhsh.cli.compare import CompareOptions, make_report
from mhsh.cli.main import main
from mhsh.report.watch import LiveReport
from mhsh.storage.run_record import FINISHED
from mhsh.sweep.folder import FAILED, SweepFolder
from mhsh.verdict.experiment import load_experiment
from tests.clusters import finish, start
from tests.conftest import ROOT, load_fields
from tests.runs import CONFIG
from tests.sweeps import write_sweep
from tests.test_buckets import use_here
from tests.test_clusters import assert_same_curve


def test_what_a_signal_ends_at_once_is_told_before():
    lines = (
        "import os, time",
        "from mhsh.cli import early_stop",
        "early_stop.before_end(lambda number: print('told', number, flush=True))",
        "early_stop.end_at_once()",
        "os.kill(os.getpid(), 15)",
        "time.sleep(60)",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout) == (75, "told 15\n")


def test_a_sweep_in_a_bucket_is_read_as_one_on_a_disk_and_watched(tmp_path, bucket, monkeypatch):
    use_here(bucket, monkeypatch)
    ends = {f"heads_per_layer-{heads}_seed-{seed}": 2.0 + seed / heads for heads in (8, 1) for seed in (0, 1, 2)}
    axes, fields = ["heads_per_layer=8,1", "seed=0,1,2,3"], load_fields("evidence", "heads")
    here, there = write_sweep(tmp_path / "s", fields, axes, ends), write_sweep("gs://runs/s", fields, axes, ends)
    loaded = [load_experiment([str(folder.path)]) for folder in (here, there)]
    seen = [
        [(group.name, [(each.name, each.state, each.run and each.run.end) for each in group.members]) for group in each.groups]
        for each in loaded
    ]
    assert seen[0] == seen[1] and loaded[0].problems == loaded[1].problems == ()
    report = LiveReport([str(there.path)], lambda: make_report(CompareOptions([str(there.path)])), rest=0)
    before = report.newest()
    there.finish("heads_per_layer-1_seed-3", 2, "it has failed without a run")
    assert report.newest() != before


@pytest.mark.slow  # by default test_clusters.py has two processes, test_sweep.py cells together
def test_two_processes_train_the_cells_of_a_sweep_together(unbroken: Path, corpus: str, tmp_path: Path) -> None:
    """A cell that fails in both stops neither."""
    text, folder = corpus.partition("=")[2], SweepFolder(tmp_path / "s")
    axes = ["--axes", f"source=text:{tmp_path / 'missing.txt'},{text}", f"--workdir={folder.path}"]
    assert main(["sweep", *CONFIG, *axes, "--parallel=0"]) == 0
    results = finish(start(2, ["work", str(folder.path)]))
    assert [status for status, _, _ in results] == [2, 2], results
    names = [cell.name for cell in folder.read_plan().cells]
    assert [folder.state(name).kind for name in names] == [FAILED, FINISHED]
    assert "missing.txt" in results[1][2] and f"{names[1]}: finished" in results[0][1]
    assert_same_curve(Path(folder.run_folder(names[1]).path), unbroken)
