"""Tests of the stability map: each square's verdict by the written rule, from hand-made runs."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mhsh.report.sweep.cells import load_sweep
from mhsh.report.sweep.stability_map import LETTERS, as_table, map_axes, stability_map
from tests.conftest import load_fields
from tests.sweeps import ENTROPY, FAILED, write_sweep

AXES = ["scheme=post_ln,admin_closed_log", "depth=6,12", "lr=1e-3,1e-2"]


@pytest.fixture
def fields() -> dict[str, Any]:
    return load_fields("evidence", "heads")


def test_one_seed_a_square(fields, tmp_path):
    ends = {
        "scheme-post_ln_num_layers-6_learning_rate-0.001": 2.0,
        "scheme-post_ln_num_layers-6_learning_rate-0.01": ENTROPY - 0.09,  # not 0.1 nats below
        "scheme-post_ln_num_layers-12_learning_rate-0.001": math.nan,
        "scheme-post_ln_num_layers-12_learning_rate-0.01": FAILED,
        "scheme-admin_closed_log_num_layers-6_learning_rate-0.001": ENTROPY - 0.11,
    }
    write_sweep(tmp_path / "s", fields, AXES, ends)
    first, second = stability_map(load_sweep(tmp_path / "s"))
    assert (first.title, second.title) == ("post_ln", "admin_closed_log")
    assert first.learning_rates == (0.001, 0.01) and first.depths == (6, 12)
    assert {place: (square.verdict, square.figure, square.share) for place, square in first.squares.items()} == {
        (0.001, 6): ("converged", "2.000", ""),
        (0.01, 6): ("plateaued", "2.910", ""),
        (0.001, 12): ("diverged", "not finite", ""),
        (0.01, 12): ("failed", "", ""),
    }
    assert second.squares[0.001, 6].verdict == "converged"
    assert second.squares[0.01, 12].verdict == "not run"
    table = as_table((first, second))
    assert table.columns == ["setting", "layers", "0.001", "0.01"]
    assert table.rows[:2] == [
        ["post_ln", "6", "2.000, converged", "2.910, plateaued"],
        ["post_ln", "12", "not finite, diverged", "failed"],
    ]
    assert first.summary() == "post_ln: 1 of 4 squares converged, 1 diverged, 1 plateaued, 1 failed"


@pytest.mark.parametrize(
    ("losses", "verdict", "figure", "share"),
    [
        ((2.0, 2.2, 2.4), "converged", "2.200", ""),
        ((2.0, 2.2, 3.0), "plateaued", "2.400", "1 of 3 seeds"),
        ((2.0, math.nan, 3.0), "diverged", "2.500", "1 of 3 seeds"),
        ((math.nan, math.nan, math.nan), "diverged", "not finite", ""),
        ((2.0, FAILED, None), "converged", "2.000", "1 of 3 seeds"),
        ((None, FAILED, None), "failed", "", "1 of 3 seeds"),
    ],
)
def test_several_seeds_a_square(fields, tmp_path, losses, verdict, figure, share):
    axes = ["depth=6,12", "lr=1e-3,1e-2", "seed=0,1,2"]
    ends = {f"num_layers-6_learning_rate-0.01_seed-{seed}": loss for seed, loss in enumerate(losses) if loss is not None}
    write_sweep(tmp_path / "s", fields, axes, ends)
    (grid,) = stability_map(load_sweep(tmp_path / "s"))
    square = grid.squares[0.01, 6]
    assert (square.verdict, square.figure, square.share) == (verdict, figure, share)


def test_heads_per_layer_is_a_depth_too_and_other_axes_get_their_own_grids(fields, tmp_path):
    write_sweep(tmp_path / "s", fields, ["heads_per_layer=8,1", "lr=1e-3,1e-2", "batch_size=4,8", "scheme=pre_ln"], {})
    grids = stability_map(load_sweep(tmp_path / "s"))
    assert [grid.title for grid in grids] == ["pre_ln, batch_size = 4", "pre_ln, batch_size = 8"]
    assert grids[0].depths == (3, 24)


@pytest.mark.parametrize("axes", [["lr=1e-3,1e-2"], ["depth=6,12", "lr=1e-3"], ["depth=6,12", "scheme=post_ln,admin"]])
def test_without_two_learning_rates_and_two_depths_there_is_no_map(fields, tmp_path, axes):
    write_sweep(tmp_path / "s", fields, axes, {})
    sweep = load_sweep(tmp_path / "s")
    assert map_axes(sweep) is None and stability_map(sweep) == ()


def test_letters_tell_the_verdicts_apart():
    assert len(set(LETTERS.values())) == len(LETTERS)
