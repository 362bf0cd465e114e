"""Tests of quality against an axis: means, intervals, differences and survivors, against figures by
hand.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from mhsh.report.estimate import estimate, holm
from mhsh.report.sweep.cells import load_sweep
from mhsh.report.sweep.quality import claims, format_difference, qualities
from tests.conftest import load_fields
from tests.sweeps import FAILED, write_sweep

T2 = 4.302652729749464  # 97.5 % point of Student's t with 2 degrees of freedom, from a printed table


@pytest.fixture
def fields() -> dict[str, Any]:
    return load_fields("evidence", "heads")


def name(heads: int, seed: int) -> str:
    return f"heads_per_layer-{heads}_seed-{seed}"


def test_mean_interval_and_paired_difference_by_hand(fields, tmp_path):
    losses = {8: (2.5, 2.6, 2.7), 1: (2.4, 2.52, 2.58)}
    ends = {name(heads, seed): loss for heads, each in losses.items() for seed, loss in enumerate(each)}
    write_sweep(tmp_path / "s", fields, ["heads_per_layer=8,1", "seed=0,1,2"], ends)
    (quality,) = qualities(load_sweep(tmp_path / "s"))
    (line,) = quality.lines
    first, second = line.points
    assert (first.value, first.planned, first.missing, first.against_first) == (8, 3, (), None)
    assert first.quality.mean == pytest.approx(2.6)
    assert first.quality.high == pytest.approx(2.6 + T2 * 0.1 / math.sqrt(3))  # the deviation of 2.5, 2.6, 2.7 is 0.1
    # Differences -0.1, -0.08, -0.12: mean -0.1, deviation 0.02.
    assert second.against_first.mean == pytest.approx(-0.1)
    assert second.against_first.low == pytest.approx(-0.1 - T2 * 0.02 / math.sqrt(3))
    assert second.against_first.excludes_zero
    assert claims(quality) == [
        "lowest final validation loss at heads_per_layer = 1: 2.500 (95 % interval 2.272 to 2.728, 3 seeds). "
        "Against heads_per_layer = 8: 1 is at -0.100 (-0.150 to -0.050), lower"
    ]


def test_what_diverged_is_no_part_of_a_mean_and_is_told(fields, tmp_path):
    ends = {
        name(8, 0): 2.5,
        name(8, 1): math.nan,
        name(8, 2): 2.7,
        name(1, 0): math.nan,
        name(1, 1): math.nan,
        name(1, 2): math.nan,
    }
    write_sweep(tmp_path / "s", fields, ["heads_per_layer=8,1", "seed=0,1,2"], ends)
    (quality,) = qualities(load_sweep(tmp_path / "s"))
    first, second = quality.lines[0].points
    assert first.quality.mean == pytest.approx(2.6) and first.quality.seeds == 2
    assert first.missing == ("seed 1, diverged",)
    assert second.quality is None and second.against_first is None
    assert second.missing == ("seed 0, diverged", "seed 1, diverged", "seed 2, diverged")
    assert "2 of 3 seeds" in claims(quality)[0]


def test_values_are_compared_on_the_seeds_that_ended_at_all_of_them(fields, tmp_path):
    """Seed 1 has an easy text; its run at one value alone must not make that value the best."""
    ends = {name(8, 0): 2.5, name(8, 1): 1.0, name(8, 2): 2.7, name(1, 0): 2.4, name(1, 1): FAILED, name(1, 2): 2.6}
    write_sweep(tmp_path / "s", fields, ["heads_per_layer=8,1,4", "seed=0,1,2"], ends)
    (quality,) = qualities(load_sweep(tmp_path / "s"))
    eight, one, four = quality.lines[0].points
    assert eight.losses == (2.5, 2.7) and one.losses == (2.4, 2.6)
    assert (eight.missing, one.missing) == ((), ("seed 1, failed",))
    assert one.against_first.mean == pytest.approx(-0.1)
    assert four.quality is None  # nothing has run there yet, which keeps no other value out
    assert (
        "lowest final validation loss at heads_per_layer = 1: 2.500 (95 % interval 1.229 to 3.771, 2 of 3 seeds)"
        in claims(quality)[0]
    )


def test_a_line_for_every_setting_of_the_other_axes(fields, tmp_path):
    ends = {f"scheme-{s}_heads_per_layer-{h}": 2 + h / 10 for s in ("post_ln", "admin") for h in (4, 2)}
    write_sweep(tmp_path / "s", fields, ["scheme=post_ln,admin", "heads_per_layer=4,2"], ends)
    (quality,) = qualities(load_sweep(tmp_path / "s"))  # a scheme is no number
    assert [line.label for line in quality.lines] == ["scheme = post_ln", "scheme = admin"]
    assert [point.quality.mean for point in quality.lines[1].points] == [2.4, 2.2]
    assert quality.lines[1].points[1].against_first.mean == pytest.approx(-0.2)
    assert not quality.lines[1].points[1].against_first.has_interval  # one seed


@pytest.mark.parametrize("axes", [["seed=0,1"], ["train_seed=0,1", "data_seed=0,1"]])
def test_a_seed_is_no_axis_of_quality(fields, tmp_path, axes):
    write_sweep(tmp_path / "s", fields, axes, {})
    assert qualities(load_sweep(tmp_path / "s")) == ()


def test_an_interval_without_zero_may_be_too_little_among_many():
    assert format_difference(estimate([-0.1, -0.12, -0.16])).endswith(", lower")
    wide = holm([estimate([-0.1, -0.12, -0.16])] * 5)[0]
    assert wide is not None and wide.excludes_zero and not wide.is_significant
    shown = f"{wide.mean:+.3f} ({wide.low:+.3f} to {wide.high:+.3f})"
    assert format_difference(wide) == f"{shown}, no significant difference by Holm's correction"
