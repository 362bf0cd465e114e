"""Tests of which cells of a sweep are needed."""

from __future__ import annotations

import dataclasses

from mhsh.cli.selection import CellSelection, values_to_try
from mhsh.sweep.folder import Tuning
from tests.conftest import load_fields
from tests.sweeps import write_sweep


def test_the_choosing_cells_come_first_and_then_the_others_at_the_values_chosen(tmp_path, capsys):
    """The first shape has its best rate before the second one has ended."""
    ends = {f"heads_per_layer-8_learning_rate-{rate}_seed-0": loss for rate, loss in (("0.001", 2.0), ("0.002", 1.0))}
    axes = ["heads_per_layer=8,1", "lr=1e-3,2e-3", "seed=0,1,2"]
    folder = write_sweep(tmp_path / "s", load_fields("evidence", "heads"), axes, ends)
    plan = dataclasses.replace(folder.read_plan(), choosing=Tuning("lr", 1))
    needed, choosing = CellSelection(folder), [cell.name for cell in plan.cells if cell.name.endswith("seed-0")]
    assert needed(plan, ()) == choosing
    capsys.readouterr()
    for _ in range(2):  # it is said once
        reporting = [f"heads_per_layer-8_learning_rate-0.002_seed-{seed}" for seed in (1, 2)]
        assert needed(plan, list(ends)) == [*choosing, *reporting]
    assert capsys.readouterr().out.endswith(" admin: 0.002\n")


def test_a_cell_whose_folder_was_moved_and_linked_keeps_its_name(tmp_path):
    """As to another disk, where it has another name."""
    names = [f"learning_rate-{rate}_seed-{seed}" for rate in ("0.001", "0.002") for seed in (0, 1)]
    ends = dict(zip(names, (2.0, 2.1, 1.0, 1.1), strict=True))
    folder = write_sweep(tmp_path / "s", load_fields("evidence", "heads"), ["lr=1e-3,2e-3", "seed=0,1"], ends)
    run = folder.run_folder(names[3]).path
    run.rename(tmp_path / "moved")
    (tmp_path / "s/runs" / names[3]).symlink_to(tmp_path / "moved")
    plan = dataclasses.replace(folder.read_plan(), choosing=Tuning("lr", 1))
    assert CellSelection(folder)(plan, names) == [names[0], names[2], names[3]]


def test_another_run_in_the_folder_of_a_sweep_does_not_choose(tmp_path):
    """Its seed is the lowest, so that one that chooses would report; and rates would be added
    around its own for ever.
    """
    fields = load_fields("evidence", "heads")
    losses = {("0.001", 1): 2.0, ("0.001", 2): 1.5, ("0.002", 1): 2.1, ("0.002", 2): 1.0}
    ends = {f"learning_rate-{rate}_seed-{seed}": loss for (rate, seed), loss in losses.items()}
    folder = write_sweep(tmp_path / "s", fields, ["lr=1e-3,2e-3", "seed=1,2,3"], ends)
    folder.open_for(plan := dataclasses.replace(folder.read_plan(), choosing=Tuning("lr", 2), fields=fields))
    needed, added = [*ends, "learning_rate-0.002_seed-3"], values_to_try(folder, Tuning("lr", 2))
    assert CellSelection(folder)(plan, list(ends)) == needed
    other = write_sweep(tmp_path / "other", fields, ["lr=5e-2", "seed=0"], {"learning_rate-0.05_seed-0": 1.7})
    other.run_folder("learning_rate-0.05_seed-0").path.rename(folder.run_folder("mine").path)
    assert CellSelection(folder)(plan, list(ends)) == needed
    assert values_to_try(folder, Tuning("lr", 2)) == added == [0.00141, 0.004]
