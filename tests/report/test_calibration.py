"""Simulated comparisons with known truth: how often the intervals cover it, and how often a
difference that is not there is called significant.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mhsh.report.estimate import difference, holm

COMPARISONS = 2000
Draw = Callable[[np.random.Generator, int], np.ndarray]
NOISES: dict[str, Draw] = {
    "normal": lambda rng, count: rng.standard_normal(count),
    "heavy tails": lambda rng, count: rng.standard_t(3, count),
}
TRUTH = 0.7


def runs(rng: np.random.Generator, noise: str, seeds: tuple[int, int], spread: float, shared: float) -> tuple[dict, dict]:
    """Final losses of two groups by seed, the second with `spread` times the deviation, its mean
    higher by TRUTH; `shared`: the correlation of runs of one seed (equal seeds only).
    """
    draw = NOISES[noise]
    ours, theirs = draw(rng, seeds[0]), draw(rng, seeds[1])
    if shared:
        common = draw(rng, seeds[0])
        ours, theirs = ((1 - shared) ** 0.5 * each + shared**0.5 * common for each in (ours, theirs))
    first = 0 if shared else 100  # else the seeds are others
    return dict(enumerate(ours)), {first + seed: TRUTH + spread * value for seed, value in enumerate(theirs)}


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(
    ("seeds", "spread", "shared"),
    [
        *(((count, count), 1.0, 0.8) for count in (2, 3, 5)),
        *(((count, count), 3.0, 0.5) for count in (2, 3, 5)),
        *(((few, many), 0.25, 0.0) for few, many in ((2, 5), (2, 3), (3, 5))),
        *(((count, count), 4.0, 0.0) for count in (2, 3, 5)),
    ],
)
def test_intervals_cover_the_truth(noise: str, seeds: tuple[int, int], spread: float, shared: float) -> None:
    rng = np.random.default_rng(0)
    found = [difference(theirs, ours) for ours, theirs in (runs(rng, noise, seeds, spread, shared) for _ in range(COMPARISONS))]
    covered = np.mean([each.low <= TRUTH <= each.high for each in found])
    assert covered >= 0.93
    wrong_way = np.mean([each.is_significant and each.mean < 0 for each in found])
    assert wrong_way <= 0.05


@pytest.mark.parametrize("noise", NOISES)
def test_among_five_equal_groups_a_difference_is_rarely_seen(noise: str) -> None:
    """The share of comparisons in which any of four groups is called lower or higher."""
    rng = np.random.default_rng(1)
    seen = 0
    for _ in range(COMPARISONS):
        groups = [dict(enumerate(NOISES[noise](rng, 3))) for _ in range(5)]
        adjusted = holm([difference(group, groups[0]) for group in groups[1:]])
        seen += any(each is not None and each.is_significant for each in adjusted)
    assert seen / COMPARISONS <= 0.05
