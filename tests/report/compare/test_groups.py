"""Tests of groups of seeds: which runs belong together, what the group is called, and its band
against hand-computed ones.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from mhsh.report.compare.fairness import find_conditions, verdict
from mhsh.report.compare.groups import BAND_POINTS, bands, group_runs
from mhsh.verdict.curves import Curve
from mhsh.verdict.runs import load_runs
from tests.planted import lineage_of


def grouped(*paths) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    return [(group.name, group.runs, group.seeds) for group in group_runs(load_runs(paths).runs)]


def curve(x: list[float], loss: list[float]) -> Curve:
    places = np.array(x)
    return Curve({"step": places, "tokens": 512 * places, "flops": places, "seconds": places / 2}, np.array(loss))


def test_runs_that_differ_in_their_seed_alone_are_one_group(make_run) -> None:
    runs = [make_run(f"deep/seed-{seed}", [3.0], training={"seed": seed}) for seed in (0, 1, 10)]
    wide = make_run("wide", [3.0], optimizer={"beta2": 0.98})
    assert grouped(runs[0], wide, *runs[1:]) == [("deep", (0, 2, 3), (0, 1, 10)), ("wide", (1,), (0,))]


def test_a_second_run_of_the_same_seed_starts_another_group(make_run) -> None:
    a, b = make_run("x/s0", [3.0]), make_run("x/s1", [3.0], training={"seed": 1})
    again = make_run("y", [3.0])
    assert grouped(a, b, again) == [("x", (0, 1), (0, 1)), ("y", (2,), (0,))]


def test_data_seeds_belong_together_only_where_each_run_has_its_own(make_run) -> None:
    both = [make_run(f"a-{seed}", [3.0], training={"seed": seed}, data={"seed": 7 + seed}) for seed in (0, 1)]
    assert grouped(*both) == [("a", (0, 1), (0, 1))]
    again = make_run("again", [3.0], data={"seed": 7})  # breaks no group up
    assert grouped(*both, again) == [("a", (0, 1), (0, 1)), ("again", (2,), (0,))]
    data_alone = make_run("b", [3.0], data={"seed": 8})
    third = make_run("a-2", [3.0], training={"seed": 2}, data={"seed": 7})
    assert grouped(both[0], data_alone) == [("a-0", (0,), (0,)), ("b", (1,), (0,))]
    assert grouped(*both, third) == [("a", (0, 2), (0, 2)), ("a-1", (1,), (1,))]


def two_phases(make_run, name: str, seed: int, steps: int = 20) -> Path:
    """A second phase from a first one of its own."""
    seeds = {"seed": seed}
    first = make_run(f"first-{name}-{seed}", [3.0] * steps, training=seeds)
    start = {"folder": str(first), "step": steps, "lineage": lineage_of(first, steps)}
    return make_run(f"{name}-{seed}", [2.0] * 20, training=seeds | {"start_from": str(first)}, record={"started_from": start})


def test_seeds_that_each_start_from_a_first_phase_of_their_own_are_one_group(make_run) -> None:
    runs = [two_phases(make_run, "two", seed) for seed in range(3)]
    assert grouped(*runs) == [("two", (0, 1, 2), (0, 1, 2))]


def test_first_phases_of_other_lengths_are_other_groups_and_not_comparable(make_run) -> None:
    long, short = two_phases(make_run, "long", 0, steps=20), two_phases(make_run, "short", 0, steps=10)
    runs = load_runs([long, short]).runs
    groups = group_runs(runs)
    assert len(groups) == 2
    rows = find_conditions(runs, groups)
    (start,) = [row for row in rows if row.name == "start"]
    assert start.matters and "at step 20, after 10240 tokens" in start.values[0] and "at step 10" in start.values[1]
    assert verdict(rows).startswith("Not comparable: different start")


def test_parents_of_parents_count(make_run) -> None:
    first = two_phases(make_run, "mid", 0)
    other = make_run("plain", [2.0] * 20, training={"start_from": "elsewhere"}, record={"started_from": None})
    for path in (first, other):
        assert [each["step"] for each in lineage_of(path, 20)] == ([20, 20] if path == first else [20])


def test_names_are_what_the_runs_have_in_common(make_run, tmp_path) -> None:
    ends = [make_run(f"{seed}/deep", [3.0], training={"seed": seed}) for seed in (0, 1)]
    assert [name for name, *_ in grouped(*ends)] == ["deep"]
    nothing = [make_run(name, [3.0], training={"seed": seed}) for seed, name in enumerate(("foo", "bar"))]
    assert [name for name, *_ in grouped(*nothing)] == ["2L8H admin"]
    more = [make_run(name, [3.0], training={"seed": s}, optimizer={"beta2": 0.9}) for s, name in enumerate(("qux", "baz"))]
    assert [name for name, *_ in grouped(*nothing, *more)] == ["2L8H admin", "2L8H admin (2)"]
    cut = [make_run(f"x-{seed}", [3.0], training={"seed": seed}) for seed in (10, 11)]
    assert [name for name, *_ in grouped(*cut)] == ["x"]


def test_a_band_by_hand() -> None:
    band = bands([curve([1, 2, 3, 4], [4.0, 3.0, 2.0, 1.0]), curve([2, 4, 6], [5.0, 3.0, 1.0])], smoothed=False)["step"]
    assert band.x.tolist() == [2, 3, 4]
    assert band.mean.tolist() == [4.0, 3.0, 2.0]
    # Two values d apart: the standard deviation is d / sqrt(2), and half the interval t(0.975, 1) d
    # / 2 = 12.7062 d / 2.
    assert (band.high - band.mean).tolist() == pytest.approx([12.706205] * 3)
    assert (band.mean - band.low).tolist() == pytest.approx([12.706205] * 3)


def test_a_band_has_each_axis_own_places() -> None:
    found = bands([curve([1, 2], [2.0, 1.0]), curve([1, 2], [4.0, 3.0])], smoothed=False)
    assert {axis: band.x.tolist() for axis, band in found.items()} == {
        "step": [1, 2],
        "tokens": [512, 1024],
        "flops": [1, 2],
        "seconds": [0.5, 1],
    }
    assert all(band.mean.tolist() == [3.0, 2.0] for band in found.values())


def test_one_run_is_its_own_band_without_an_interval() -> None:
    band = bands([curve([1, 2, 3], [4.0, math.nan, 2.0])], smoothed=False)["step"]
    np.testing.assert_array_equal(band.mean, [4.0, math.nan, 2.0])
    assert np.isnan(band.low).all()
    assert np.isnan(band.high).all()


def test_a_gap_in_one_run_is_a_gap_in_the_band_up_to_its_neighbours() -> None:
    band = bands([curve([0, 2, 4, 6], [4.0, math.nan, 2.0, 1.0]), curve(list(range(7)), [3.0] * 7)], smoothed=False)["step"]
    assert band.x.tolist() == list(range(7))
    assert np.isnan(band.mean).tolist() == [False, True, True, True, False, False, False]
    assert band.mean[[0, 4, 5, 6]].tolist() == [3.5, 2.5, 2.25, 2.0]


def test_a_row_whose_place_is_not_known_is_a_gap() -> None:
    odd = Curve(
        {axis: np.array([1.0, math.nan, 3.0]) for axis in ("step", "tokens", "flops", "seconds")}, np.array([3.0, 2.0, 1.0])
    )
    band = bands([odd, curve([1, 2, 3], [3.0, 3.0, 3.0])], smoothed=False)["step"]
    np.testing.assert_array_equal(band.mean, [3.0, math.nan, 2.0])


def test_runs_without_common_places_have_no_band() -> None:
    apart = bands([curve([1, 2], [3.0, 2.0]), curve([3, 4], [3.0, 2.0])], smoothed=False)["step"]
    assert len(apart.x) == len(apart.mean) == 0
    assert len(bands([curve([1, 2], [3.0, 2.0]), curve([], [])], smoothed=False)["step"].x) == 0


def test_a_long_band_is_thinned_and_keeps_its_ends() -> None:
    x = list(range(1, 5001))
    line = [5 - place / 1000 for place in x]
    band = bands([curve(x, line)] * 3, smoothed=False)["step"]
    assert len(band.x) == BAND_POINTS
    assert (band.x[0], band.x[-1]) == (1, 5000)
    assert band.mean.tolist() == pytest.approx((5 - band.x / 1000).tolist())


def test_training_is_smoothed_before_the_mean(make_run) -> None:
    runs = load_runs([make_run(f"a-{seed}", [0.0, 1.0] * 50, [2.0, 1.0], training={"seed": seed}) for seed in (0, 1)]).runs
    (group,) = group_runs(runs)
    assert group.bands["train"]["step"].mean.tolist() == [0.0] + [0.5] * 99
    assert group.bands["validation"]["step"].mean.tolist() == [2.0, 1.0]
