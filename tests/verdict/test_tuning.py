"""Tests of the best rate and of what its grid hides, on parabolas whose lowest point is known."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from mhsh.errors import UserError
from mhsh.sweep.axes import DEPTH
from mhsh.verdict.estimate import Replicate
from mhsh.verdict.groups import Choice, Optimum
from mhsh.verdict.tuning import field_of, find_optimum, rates_to_add, values_to_add

RATES = (0.0005, 0.001, 0.002, 0.004, 0.008)


def parabola(rate: float, optimum: float = 0.0025, rise: float = 0.1) -> float:
    return 2 + rise * math.log2(rate / optimum) ** 2


def grid(rates: tuple[float, ...] = RATES, noise: float = 0.0, seeds: int = 2) -> dict[float, dict[Replicate, float]]:
    """Losses at the rates; each seed adds 0.1 at all of them, and noise of its own."""
    rng = np.random.default_rng(0)
    return {rate: {(seed, seed): parabola(rate) + 0.1 * seed + noise * rng.normal() for seed in range(seeds)} for rate in rates}


def optimum(losses: dict[float, dict[Replicate, float]], reporting: tuple[float, ...] = ()) -> Optimum:
    found = find_optimum(losses, reporting)
    assert found is not None
    return found


@pytest.mark.parametrize("rates", [RATES, (*RATES, 0.00141, 0.00283), RATES[1:4]])
def test_without_noise_the_parabola_is_found(rates: tuple[float, ...]) -> None:
    found = optimum(grid(rates))
    best = min(rates, key=parabola)
    assert (found.rate, found.loss, found.at_edge) == (best, pytest.approx(parabola(best) + 0.05), False)
    assert found.hidden_gain == pytest.approx(parabola(best) - 2, abs=1e-4)
    assert found.hidden_error == pytest.approx(0, abs=1e-5)  # all fits agree


def test_three_points_by_hand() -> None:
    losses = grid((0.001, 0.002, 0.004), noise=0.03)
    found = optimum(losses)
    table = np.array([list(losses[rate].values()) for rate in sorted(losses)])
    rise, slope, _ = np.polyfit([-1, 0, 1], table.mean(axis=1), 2)
    at = -slope / (2 * rise)
    assert found.hidden_gain == pytest.approx(slope**2 / (4 * rise), rel=0.01)
    # Half of the variance of the differences of two seeds is that of one run.
    variance = np.var(table[:, 1] - table[:, 0], ddof=1) / 2
    error = math.sqrt(variance / 2 * (at**2 / 2 + 1.5 * at**4))
    assert found.hidden_error == pytest.approx(error, rel=0.02)


def test_a_steeper_side_may_hide_more_than_one_parabola_says() -> None:
    octaves = np.arange(-3, 4) - 0.4
    losses = {2.0**place: {(0, 0): loss} for place, loss in enumerate(octaves**2 * np.where(octaves > 0, 0.2, 0.05), -3)}
    found = optimum(losses, (0.1, 0.1001, 0.0999))
    assert found.rate == 1.0
    truth = losses[1.0][0, 0]  # 0 is the lowest
    assert abs(truth - found.hidden_gain) < 1.96 * found.hidden_error < 0.1


def test_what_seeds_add_and_units_of_the_rate_do_not_matter() -> None:
    found = optimum(grid(noise=0.03))
    moved = optimum(
        {10 * rate: {key: loss + 3 * key[0] for key, loss in row.items()} for rate, row in reversed(grid(noise=0.03).items())}
    )
    expected = (10 * found.rate, found.hidden_gain, found.hidden_error)
    assert (moved.rate, moved.hidden_gain, moved.hidden_error) == pytest.approx(expected)


@pytest.mark.parametrize("rates", [RATES[2:], RATES[:3], RATES[2:3], RATES[1:3]])
def test_at_an_edge_there_is_no_bound(rates: tuple[float, ...]) -> None:
    found = optimum(grid(rates))
    assert (found.rate, found.at_edge, found.hidden_error) == (0.002, True, math.inf)
    assert found.hidden_gain == 0  # of which no error is known


def test_rates_further_than_an_octave_apart_have_no_bound() -> None:
    found = optimum(losses := grid((0.0005, 0.002, 0.008)))
    assert (found.rate, found.at_edge, found.hidden_error, found.hidden_gain) == (0.002, False, math.inf, 0.0)
    assert rates_to_add(losses, found, 1.0) == (0.001, 0.004)


def test_a_rate_at_which_a_seed_did_not_train_is_not_the_best() -> None:
    losses = grid(noise=0.001)
    losses[0.002][1, 1] = math.nan
    del losses[0.008][0, 0]
    found = optimum(losses)
    assert (found.rate, found.at_edge) == (0.004, False)
    # Three rates below the gap are left, and the parabola goes on into it.
    losses = grid(noise=0.001)
    losses[0.004][0, 0] = math.inf
    found = optimum(losses)
    assert (found.rate, found.at_edge) == (0.002, False)
    assert found.hidden_gain + 1.96 * found.hidden_error < 0.05
    assert find_optimum({0.1: {(0, 0): math.nan}}) is None
    assert find_optimum({}) is None


def test_one_choosing_seed_takes_the_noise_of_the_reporting_ones() -> None:
    losses = grid(seeds=1)
    assert optimum(losses).hidden_error == math.inf
    quiet, loud = optimum(losses, (2.0, 2.01, 1.99)), optimum(losses, (2.0, 2.1, 1.9))
    assert quiet.hidden_gain == loud.hidden_gain
    assert loud.hidden_error == pytest.approx(10 * quiet.hidden_error, rel=1e-3)


def test_refining_halves_the_gaps_around_the_best_until_little_is_hidden() -> None:
    losses = grid(noise=0.03)
    found = optimum(losses)
    half = 1.959964 * found.hidden_error
    assert rates_to_add(losses, found, 2.01 * half) == ()
    assert rates_to_add(losses, found, 1.99 * half) == (0.00141, 0.00283)
    finer = grid((*RATES, 0.00141, 0.00283))
    assert optimum(finer).rate == 0.00283 and optimum(finer).hidden_gain < 0.004
    assert rates_to_add(finer, dataclasses.replace(optimum(finer), hidden_error=1.0), 0.001) == ()  # half an octave apart
    assert rates_to_add(losses, dataclasses.replace(found, rate=0.008, hidden_error=math.inf), 1.0) == (0.00566, 0.016)
    assert rates_to_add(losses, dataclasses.replace(found, rate=0.0005, hidden_error=math.inf), 1.0) == (0.00025, 0.000707)


def test_zero_is_a_value_without_a_logarithm() -> None:
    """As of a weight decay: it may be the best, and no octave leads to it."""

    def row(loss: float) -> dict[Replicate, float]:
        return {(0, 0): loss, (1, 1): loss + 0.1 + 0.01 * loss**2}

    losses = {0.0: row(2.0), 0.1: row(1.9), 0.2: row(2.1)}
    found = optimum(losses)
    assert (found.rate, found.at_edge, found.hidden_error) == (0.1, False, math.inf)
    assert rates_to_add(losses, found, 1.0) == (0.05, 0.141)
    found = optimum(losses | {0.0: row(1.8)})
    assert (found.rate, found.at_edge, found.hidden_error) == (0.0, False, math.inf)
    assert rates_to_add(losses, found, 1.0) == ()
    positive = {0.1: row(2.1), 0.2: row(1.9), 0.4: row(2.1)}
    assert optimum(positive | {0.0: row(2.2)}) == optimum(positive)
    assert math.isfinite(optimum(positive).hidden_error)


def test_whole_numbers_are_refined_by_whole_numbers() -> None:
    losses = {value: {(0, 0): loss, (1, 1): loss} for value, loss in ((10.0, 2.1), (20.0, 2.0), (40.0, 2.1))}
    found = dataclasses.replace(optimum(losses), hidden_error=math.inf)
    added = values_to_add(1.0, [Choice("optimizer.warmup_steps", "validation loss", losses, found, 6, (), (10.0, 20.0, 40.0))])
    assert added == [14, 28] and all(isinstance(value, int) for value in added)


def test_a_field_has_the_names_that_an_axis_has() -> None:
    for name in ("lr", "learning_rate", "optimizer.learning_rate"):
        assert field_of(name) == "optimizer.learning_rate"
    assert field_of("weight_decay") == "optimizer.weight_decay"
    assert field_of("depth") == DEPTH and field_of("heads_per_layer") == "model.heads_per_layer"
    with pytest.raises(UserError, match="--over=seed"):
        field_of("seed")
