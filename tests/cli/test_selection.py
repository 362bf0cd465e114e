"""Tests of which cells of a sweep are needed."""

from __future__ import annotations

import dataclasses

from mhsh.cli.selection import CellSelection
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
