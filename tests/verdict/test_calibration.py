"""Simulated comparisons with known truth: how often the intervals cover it, and how often a
difference that is not there is called one. `python -m benchmarks.verdicts.coverage` has the tables.
"""

from __future__ import annotations

import pytest

from benchmarks.verdicts.coverage import NOISES, coverage, tuning, wrong_verdicts


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("noise", NOISES)
def test_intervals_cover_the_truth(noise: str, paired: bool, seeds: int) -> None:
    """Wherever there is one: groups in which a run did not train have none."""
    covered, trained = coverage(noise, seeds, paired, 2500 if noise == "60 % stuck" else 1000)[2:]
    assert covered >= 0.93 or trained < 0.01


@pytest.mark.parametrize(
    ("noise", "seeds"),
    [
        pytest.param("normal", 5, marks=pytest.mark.slow),  # by default: noises with longer tails
        *(("t3", 3), ("skewed", 5), ("60 % stuck", 3), ("60 % stuck", 7), ("10 % failing", 5)),
    ],
)
def test_among_ten_equal_groups_a_difference_is_rarely_seen(noise: str, seeds: int) -> None:
    assert wrong_verdicts(noise, seeds, True, 2000 if noise == "normal" else 1000)[1] <= 0.05


@pytest.mark.parametrize("seeds", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_a_quiet_baseline_beside_skewed_groups_makes_no_verdict(seeds: int) -> None:
    before, wrong = wrong_verdicts("skewed", seeds, True, 1000, quiet=True)
    assert wrong <= 0.05 < before


@pytest.mark.parametrize("deviation", [0.03, 0.01])
@pytest.mark.parametrize("design", [(5, 2, 3), (5, 2, 5), (7, 3, 5)])
@pytest.mark.parametrize("uneven", [1.0, 4.0])
def test_shapes_with_equal_best_losses_are_rarely_told_apart(deviation: float, design: tuple[int, int, int], uneven: float) -> None:
    _, wrong_before, covers, wrong, *_ = tuning(deviation, 0.5, design, uneven, count=200)
    assert covers >= 0.93
    assert wrong <= 0.05 < wrong_before


def test_refining_narrows_the_interval() -> None:
    coarse, fine = (tuning(0.01, 0.5, (5, 2, 5), refine=refine, count=150) for refine in (False, True))
    assert fine[2] >= 0.93 and fine[3] <= 0.05
    assert fine[5] < 0.95 * coarse[5] < 0.025  # 0.058 where what the grid hides was added to the interval
