"""Tests of `mhsh sweep --over`: which cells wait for a choice, and what is added to its grid."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

from mhsh.cli.main import main
from mhsh.cli.progress import Progress
from mhsh.cli.selection import CellSelection
from mhsh.cli.sweep import _add_values, _refine, make_plan
from mhsh.sweep.folder import FAILED, SweepFolder, Tuning
from tests.conftest import load_fields
from tests.sweeps import write_sweep


def tuned(path: Path, axes: list[str], ends: dict[str, Any], over: str = "lr") -> SweepFolder:
    """A sweep of which the first seed chooses the rate."""
    fields = load_fields("evidence", "heads")
    folder = write_sweep(path, fields, axes, ends)
    folder.open_for(dataclasses.replace(folder.read_plan(), choosing=Tuning(over, 1), fields=fields))
    return folder


def test_seeds_are_added_once_more_where_all_cells_that_are_needed_have_ended(tmp_path, capsys):
    """Cells at values that were not chosen never run. What was refined since does not count."""
    names = [f"learning_rate-{rate}_seed-{seed}" for rate, seed in (("0.001", 0), ("0.002", 0), ("0.002", 1))]
    folder = tuned(tmp_path / "s", ["lr=1e-3,2e-3", "seed=0,1"], dict(zip(names, (2.0, 1.0, 1.1), strict=True)))
    more = ["sweep", f"--workdir={folder.path}", "--add-seeds=1", "--parallel=0"]

    def seeds() -> tuple[Any, ...]:
        assert main(more) == 0
        return folder.read_plan().axes[1].values

    assert [seeds(), seeds()] == [(0, 1, 2)] * 2
    folder.finish("learning_rate-0.002_seed-2", 2, "ended, in some way")
    assert main([*more, "--retry", "--dry-run"]) == 0 and "in all" in (said := capsys.readouterr().out)
    assert said.rpartition("in all")[2].split()[0] == "6"  # it goes on with the cell that has failed
    assert [seeds(), seeds()] == [(0, 1, 2, 3)] * 2
    plan = folder.read_plan()
    folder.open_for(make_plan(_add_values(plan.axes, plan.axes[0].path, [0.004]), plan.fields, plan.choosing), "--refine")
    assert seeds() == (0, 1, 2, 3)


def test_a_value_that_was_added_and_failed_is_not_added_for_ever(tmp_path):
    ends = {f"learning_rate-{rate}_seed-0": end for rate, end in (("0.00141", 2.0), ("0.002", 1.0), ("0.004", FAILED))}
    folder = tuned(tmp_path / "s", ["lr=0.00141,0.002,0.004", "seed=0,1"], ends)
    assert _refine(folder, folder.read_plan()) is None


def test_a_choosing_run_that_failed_or_lost_rows_is_said_to_leave_its_group_without_a_value(tmp_path, capsys):
    """Its other seeds wait, and the status is not that of a sweep that is done."""
    names = [f"learning_rate-{rate}_seed-{seed}" for rate, seed in (("0.001", 0), ("0.002", 0), ("0.002", 1))]
    folder = tuned(tmp_path / "s", ["lr=1e-3,2e-3", "seed=0,1"], dict(zip(names, (2.0, 1.0, 1.1), strict=True)))
    again = ["sweep", f"--workdir={folder.path}"]
    assert main(again) == 0 and "next: mhsh compare" in capsys.readouterr().out
    metrics = folder.run_folder(names[0]).path / "metrics.jsonl"
    rows = metrics.read_text(encoding="utf-8")
    metrics.write_text(rows.splitlines(keepends=True)[0], encoding="utf-8")
    assert main(again) == 2
    assert f"No value is chosen for 3x8 admin: a run that chooses has lost its last rows, and mhsh compare {folder.path} " in (
        capsys.readouterr().out
    )
    assert main(["compare", str(folder.path), f"--out={tmp_path / 'report.html'}"]) == 2
    assert f"{names[0]} ended at step" in capsys.readouterr().err
    metrics.write_text(rows, encoding="utf-8")
    assert main(again) == 0
    shutil.rmtree(metrics.parent)
    folder.finish(names[0], 2, "out of memory")
    capsys.readouterr()
    assert main(again) == 2
    assert "1 cells have failed; --retry tries them again, and 3x8 admin waits for them" in capsys.readouterr().out


def test_a_value_that_the_field_does_not_allow_is_not_added(tmp_path, capsys):
    ends = {f"beta2-{value}_seed-0": end for value, end in (("0.3", 2.0), ("0.9", 1.0))}
    folder = tuned(tmp_path / "s", ["beta2=0.3,0.9", "seed=0,1"], ends, "beta2")
    refined = _refine(folder, folder.read_plan())
    assert refined is not None and refined.axes[0].values == (0.3, 0.52, 0.9)  # an octave beyond the best is 1.8


def test_a_plan_that_another_command_adds_to_is_followed(tmp_path, capsys):
    """As by --add-seeds or --refine on another machine, while this one waits for its cells."""
    ends = {f"learning_rate-{rate}_seed-0": end for rate, end in (("0.001", 2.0), ("0.002", 1.0))}
    folder = tuned(tmp_path / "s", ["lr=1e-3,2e-3", "seed=0,1"], ends)
    plan, progress, selection = folder.read_plan(), Progress(folder), CellSelection(folder)
    before = [*ends, "learning_rate-0.002_seed-1"]
    assert progress.needed_cells == before
    folder.open_for(make_plan(_add_values(plan.axes, "seed", [2]), plan.fields, plan.choosing), "--add-seeds=1")
    assert selection(plan, list(ends)) == before  # a worker has yet to read the new plan
    folder.finish(before[-1], 2, "ended")
    capsys.readouterr()
    progress.look(at_once=True)
    assert progress.cells_left == ["learning_rate-0.002_seed-2"] and f"[3/4] {before[-1]}: failed" in capsys.readouterr().out
    folder.forget_failures()  # as --retry does
    progress.look(at_once=True)
    assert progress.cells_left == [before[-1], "learning_rate-0.002_seed-2"]
    refined = _refine(folder, plan)  # beside the seed that was added
    assert refined is not None and [axis.values for axis in refined.axes] == [(0.001, 0.00141, 0.002, 0.004), (0, 1, 2)]
    folder.open_for(refined, "--refine")
    assert _refine(folder, plan) == refined  # another machine has planned it: there is something to train
