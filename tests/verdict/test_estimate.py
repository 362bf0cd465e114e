"""Tests of means, differences and counts, against numbers worked out by hand and scipy."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from benchmarks.verdicts import pages
from mhsh.verdict.estimate import (
    MEDIANS,
    MIN_SEEDS,
    OWN_SHARE,
    POOLED_WIDENING,
    WIDENING,
    Doubt,
    Estimate,
    Replicate,
    Spread,
    difference,
    estimate,
    judge,
    rank_sum,
    spreads,
)

LOSSES = st.floats(0.5, 12, allow_nan=False).map(lambda loss: round(loss, 6))
GROUPS = st.dictionaries(st.tuples(st.integers(0, 7), st.integers(0, 2)), LOSSES, min_size=1, max_size=10)


def keyed(*losses: float, first: int = 0) -> dict[Replicate, float]:
    return {(seed, seed): loss for seed, loss in enumerate(losses, first)}


def test_an_interval_by_hand() -> None:
    # Standard deviation 1: half of Student's interval is t(0.975, 2) / sqrt(3) = 4.30265 / 1.73205.
    found = estimate([1.0, 2.0, 3.0])
    assert (found.mean, found.seeds) == (2.0, 3)
    assert (found.low, found.high) == pytest.approx((2 - WIDENING * 2.484138, 2 + WIDENING * 2.484138), abs=1e-5)


def test_one_seed_has_a_mean_and_no_interval() -> None:
    for found in (estimate([2.5]), difference(keyed(3.5), keyed(1.0)), difference(keyed(3.0, 4.0), keyed(1.0, first=9))):
        assert found.mean == 2.5
        assert not (found.has_interval or found.is_significant) and math.isnan(found.p_value)


def test_two_seeds_have_an_interval_and_no_verdict() -> None:
    found = difference(keyed(1.0, 1.0001), keyed(9.0, 9.0002))
    assert found.high < 0
    assert math.isnan(found.p_value) and not found.is_significant
    assert MIN_SEEDS == 3
    assert difference(keyed(1.0, 1.0001, 1.0), keyed(9.0, 9.0002, 9.0)).is_significant


def test_seeds_that_do_nothing_are_no_evidence() -> None:
    for found in (
        difference(keyed(*[1.5] * 9), keyed(*[1.0] * 9)),
        difference(keyed(2.0, 2.0, 2.0), keyed(1.4, 1.5, 1.6, first=5)),
    ):
        assert found.mean == pytest.approx(0.5)
        assert not (found.has_interval or found.is_significant) and math.isnan(found.p_value)


@pytest.mark.parametrize("seeds", range(3, 9))
def test_equal_differences_are_judged_by_their_signs(seeds: int) -> None:
    """In floats 1.5 - 1.0 is not 9.3 - 8.8."""
    ours = [1.5 + 7.8 * (seed % 2) + 0.1 * seed for seed in range(seeds)]
    found = difference(keyed(*ours), keyed(*(each - 0.5 for each in ours)))
    assert found.p_value == pytest.approx(stats.binomtest(seeds, seeds).pvalue) and not found.has_interval
    assert found.is_significant == (seeds >= 6)
    assert not judge(found, doubt=Doubt(resolution=0.6)).is_significant
    assert judge(found, tests=4).p_value == min(1, 4 * found.p_value)
    beside = judge(found, Spread(0.1, 4))  # the other groups have a spread
    assert beside.high - beside.mean == pytest.approx(POOLED_WIDENING * stats.t.ppf(0.975, 4) * 0.1 / math.sqrt(seeds))


def test_pairs_are_the_keys_in_common() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(size=(2, 5))
    found = difference(keyed(*ours) | {(7, 7): 99.0}, dict(reversed(keyed(*theirs).items())) | {(0, 1): -99.0})
    peer = stats.ttest_rel(ours, theirs)
    low, high = peer.confidence_interval(0.95)
    assert (found.seeds, found.paired) == (5, True)
    assert found.p_value == pytest.approx(2 * stats.t.sf(abs(peer.statistic) / WIDENING, 4)) and found.p_value > peer.pvalue
    middle, half = (low + high) / 2, (high - low) / 2
    assert (found.mean, found.low, found.high) == pytest.approx((middle, middle - WIDENING * half, middle + WIDENING * half))


def test_one_training_seed_on_other_texts_is_no_pair() -> None:
    ours = {(seed, seed): 1.0 + seed for seed in range(3)}
    theirs = {(seed, (seed + 1) % 3): 1.5 + seed for seed in range(3)}
    assert not difference(ours, theirs).paired


@given(GROUPS, GROUPS, st.floats(0, 1), st.floats(0, 1), st.floats(0, 2), st.integers(1, 9))
def test_the_verdict_is_that_of_the_interval(
    ours: dict[Replicate, float], theirs: dict[Replicate, float], error: float, shift: float, typical: float, tests: int
) -> None:
    found = judge(difference(ours, theirs), Spread(typical, 4), Doubt(shift, error), tests)
    nearest = min(abs(found.low), abs(found.high))
    if found.seeds >= MIN_SEEDS and found.has_interval and nearest > 1e-9 * (found.high - found.low):
        assert found.is_significant == (found.low > 0 or found.high < 0)
        assert found.low <= found.mean <= found.high


def test_of_several_groups_the_typical_spread_counts_by_hand() -> None:
    """Deviations of 1, 2 and 9 of five seeds' differences: their mean is 4, over 1.2 medians."""
    known = [
        Estimate(mean, math.nan, math.nan, 5, paired=True, error=spread / math.sqrt(5)) for mean, spread in ((4, 1), (4, 2), (4, 9))
    ]
    beside = spreads(known)
    assert beside == [Spread(pytest.approx(MEDIANS * 2), 8)] * 3
    quiet, middle, loud = (judge(each, spread, tests=3).high - 4 for each, spread in zip(known, beside, strict=True))
    own, others = (stats.t.ppf(1 - 0.05 / 6, freedom) / math.sqrt(5) for freedom in (4, 8))
    assert quiet == pytest.approx(POOLED_WIDENING * others * 2.4)
    assert middle == pytest.approx(max(POOLED_WIDENING * others * 2.4, (OWN_SHARE * own + (1 - OWN_SHARE) * others) * 2 * 2 / 2.4))
    assert loud == pytest.approx(WIDENING * own * 9)
    known_twice = [dataclasses.replace(each, error=error) for each, error in zip(known, (1.0, 1.0, 1.3), strict=True)]
    half = judge(known_twice[2], spreads(known_twice)[2], tests=3).high - 4  # noisier than typical, and less than 1.6 times as wide
    assert half == pytest.approx((OWN_SHARE * own + (1 - OWN_SHARE) * others) * math.sqrt(5) * 1.3 * 1.3 / 1.1)
    assert spreads(known[:1]) == [Spread()]
    assert judge(known[0], tests=3).high - 4 == pytest.approx(own * WIDENING)
    assert spreads([*known[:2], difference(keyed(1.0), keyed(2.0))])[2].freedom == 8  # of one seed nothing is known


@pytest.mark.parametrize("tests", [1, 2, 5])
def test_the_rule_is_the_one_that_was_simulated(tests: int) -> None:
    apart = np.random.default_rng(tests).exponential(size=(1, tests, 4)) * np.array([1, 1, 2, 3, 0.5])[:tests, None]
    found = [difference(keyed(*group), keyed(0.0, 1e-9, 0.0, 1e-9)) for group in apart[0]]
    judged = [judge(each, spread, tests=tests) for each, spread in zip(found, spreads(found), strict=True)]
    assert [each.high - each.mean for each in judged] == pytest.approx(pages.typical_spread_rule(apart, 0.05 / tests)[0].tolist())


def test_unpaired_is_welch_with_the_freedom_of_the_smaller_group() -> None:
    ours, theirs = [1.0, 1.5, 1.1], [2.0, 2.9, 2.2, 2.4]
    found = difference(keyed(*ours), keyed(*theirs, first=2))  # one key in common
    welch = stats.ttest_ind(ours, theirs, equal_var=False)
    half = WIDENING * 4.302653 * found.mean / welch.statistic
    assert (found.low, found.high) == pytest.approx((found.mean - half, found.mean + half))
    assert found.p_value == pytest.approx(2 * stats.t.sf(abs(welch.statistic) / WIDENING, 2)) and found.p_value > welch.pvalue
    assert (found.mean, found.seeds, found.paired) == (pytest.approx(-1.175), 3, False)


def test_nothing_below_the_resolution_is_significant() -> None:
    ours, theirs = keyed(1.000011, 1.000012, 1.0000115), keyed(1.0, 1.0, 1.0)
    assert difference(ours, theirs).is_significant
    fine = difference(ours, theirs)
    found = judge(fine, doubt=Doubt(resolution=2e-5))
    assert (found.low, found.high) == pytest.approx((fine.low - 2e-5, fine.high + 2e-5))
    assert found.p_value == 1 and not found.is_significant


def test_what_a_grid_hides_moves_and_widens_the_interval() -> None:
    lower, higher = keyed(1.0, 1.1, 0.9, 1.05), keyed(2.0, 2.11, 1.9, 2.06)
    plain = difference(lower, higher)
    assert plain.is_significant
    moved = judge(plain, doubt=Doubt(shift=0.5))
    assert (moved.low, moved.high) == pytest.approx((plain.low - 0.5, plain.mean))  # the mean itself is not ruled out
    assert moved.is_moved and moved.centre == pytest.approx(plain.mean - 0.5) and not plain.is_moved
    doubtful = judge(plain, doubt=Doubt(error=0.5))
    half = math.hypot(plain.high - plain.mean, 1.959964 * 0.5)
    assert (doubtful.low, doubtful.high) == pytest.approx((plain.mean - half, plain.mean + half))
    below, above = judge(plain, doubt=Doubt(open_below=True)), judge(plain, doubt=Doubt(open_above=True))
    assert (below.low, below.high, below.p_value) == (-math.inf, plain.high, plain.p_value)  # even lower: the verdict stands
    assert above.low < 0 < above.high and above.p_value == 1
    assert not judge(plain, doubt=Doubt(shift=-1.5)).is_significant  # on the other side of zero
    assert not judge(dataclasses.replace(plain, mean=0.0), doubt=Doubt(shift=-1.5)).is_significant
    assert judge(plain, doubt=Doubt(error=math.inf)).high == math.inf


@given(GROUPS, GROUPS, st.tuples(st.floats(-1, 1), st.floats(0, 1)), st.booleans())
def test_exchanged_groups_have_the_opposite_difference(
    ours: dict[Replicate, float], theirs: dict[Replicate, float], hidden: tuple[float, float], is_open: bool
) -> None:
    shift, error = hidden
    found = judge(difference(ours, theirs), doubt=Doubt(shift, error, open_below=is_open))
    back = judge(difference(theirs, ours), doubt=Doubt(-shift, error, open_above=is_open))
    assert (found.mean, found.low, found.high, found.p_value) == pytest.approx(
        (-back.mean, -back.high, -back.low, back.p_value), nan_ok=True
    )


@given(GROUPS, GROUPS, st.randoms())
def test_order_and_names_of_seeds_do_not_matter(
    ours: dict[Replicate, float], theirs: dict[Replicate, float], random: object
) -> None:
    keys = sorted({*ours, *theirs})
    others = [(seed + 50, data) for seed, data in keys]
    random.shuffle(others)  # type: ignore[attr-defined]
    renamed = dict(zip(keys, others, strict=True))
    moved = [dict(sorted((renamed[key], loss) for key, loss in group.items())) for group in (ours, theirs)]
    assert repr(difference(*moved)) == repr(difference(ours, theirs))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_ranks_as_all_divisions_into_two_groups_have_them(ours: list[int], theirs: list[int]) -> None:
    """4 stands for what did not train."""

    values = [math.inf if value == 4 else float(value) for value in (*ours, *theirs)]
    ranks, count = stats.rankdata(values), len(ours)
    sums = np.array([ranks[list(each)].sum() for each in itertools.combinations(range(len(values)), count)])
    away = abs(sums - count * ranks.mean())
    assert rank_sum(values[:count], values[count:]) == pytest.approx(np.mean(away >= away[0] - 1e-9))
