"""Tests of a sweep's parallel coordinates: places by hand, and cells without a loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from mhsh.report.sweep.cells import load_sweep
from mhsh.report.sweep.parallel import Parallel, parallel
from tests.conftest import load_fields
from tests.sweeps import FAILED, write_sweep


@pytest.fixture
def picture(tmp_path: Path) -> Parallel:
    """Two schemes at three rates; one cell failed, two have not run."""
    ends = {
        "scheme-post_ln_learning_rate-0.001": 2.0,
        "scheme-post_ln_learning_rate-0.01": 3.0,
        "scheme-post_ln_learning_rate-0.1": FAILED,
        "scheme-admin_learning_rate-0.001": 2.5,
    }
    folder = write_sweep(tmp_path / "sweep", load_fields("evidence", "heads"), ["scheme=post_ln,admin", "lr=1e-3,1e-2,1e-1"], ends)
    found = parallel(load_sweep(folder.path))
    assert found is not None
    return found


def test_axes_have_a_tick_at_every_value(picture: Parallel) -> None:
    scheme, rate, loss = picture.axes
    assert [label for _, label in scheme.ticks] == ["post_ln", "admin"]
    low, high = picture.bottom, picture.top
    # By their logarithms: 0.01 is half way.
    assert list(rate.ticks) == [(low, "0.001"), ((low + high) / 2, "0.01"), (high, "0.1")]
    assert loss.ticks[0] == (low, "2.000")
    assert loss.ticks[-1] == (high, "3.000")


def test_lines_end_at_their_losses(picture: Parallel) -> None:
    by_title = {line.title: line for line in picture.lines}
    best = by_title["scheme = post_ln, learning_rate = 0.001: 2.000 nats per token"]
    worst = by_title["scheme = post_ln, learning_rate = 0.01: 3.000 nats per token"]
    end = picture.axes[-1].x
    assert best.points.split()[-1] == f"{end:.1f},{picture.bottom:.1f}"
    assert worst.points.split()[-1] == f"{end:.1f},{picture.top:.1f}"
    assert (best.color, worst.color) == ("#0072b2", "#d55e00")
    assert picture.lines[-1] is best  # on top


def test_cells_without_a_loss_end_before_its_axis(picture: Parallel) -> None:
    without = [line for line in picture.lines if line.color is None]
    assert {line.title.rpartition(": ")[2] for line in without} == {"failed", "not run"}
    assert {len(line.points.split()) for line in without} == {2}
    assert len(picture.lines) == 6


def test_without_a_loss_or_an_axis_there_is_no_picture(tmp_path: Path) -> None:
    fields = load_fields("evidence", "heads")
    assert parallel(load_sweep(write_sweep(tmp_path / "none", fields, ["lr=1e-3,1e-2"], {}).path)) is None
    seeds = write_sweep(tmp_path / "seeds", fields, ["seed=0,1"], {"seed-0": 2.0})
    assert parallel(load_sweep(seeds.path)) is None
