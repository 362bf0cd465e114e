"""The rules of outcome against hand-computed cases."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mhsh.storage.outcome import DIVERGED, LEFT, NO_METRICS, NOT_KNOWN, ON_PLATEAU, plateau_outcome, smoothed_final


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([], None),
        ([7.0], 7.0),
        ([9.0] * 9 + [1.0], 1.0),  # 10 rows: the last one
        ([9.0] * 9 + [1.0, 3.0], 2.0),  # 11 rows: ceil(1.1) = 2
    ],
)
def test_smoothed_final_by_hand(losses: list[float], expected: float | None) -> None:
    assert smoothed_final(np.array(losses)) == expected


def test_smoothed_final_leaves_skipped_steps_out_and_is_not_finite_if_half_of_it_is_not() -> None:
    value = smoothed_final(np.array([2.0] * 19 + [math.nan]))
    assert value is not None
    assert math.isnan(value)
    assert smoothed_final(np.array([2.0] * 94 + [math.nan] + [1.0] * 5)) == pytest.approx((4 * 2 + 5) / 9)
    assert smoothed_final(np.array([math.nan] + [2.0] * 19)) == 2.0


@pytest.mark.parametrize(
    ("train", "validation", "entropy", "expected"),
    [
        (2.95, 2.89, 3.0, LEFT),  # validation is the less noisy of the two
        (2.89, 2.95, 3.0, ON_PLATEAU),
        (2.89, None, 3.0, LEFT),
        (3.0 - 0.1, None, 3.0, ON_PLATEAU),
        (2.5, 2.5, None, NOT_KNOWN),
        (None, 2.5, 3.0, LEFT),
        (math.nan, 2.5, 3.0, DIVERGED),
        (2.5, math.nan, 3.0, DIVERGED),
        (2.5, math.inf, None, DIVERGED),
        (None, None, 3.0, NO_METRICS),
    ],
)
def test_plateau_rule_by_hand(train: float | None, validation: float | None, entropy: float | None, expected: str) -> None:
    assert plateau_outcome(train, validation, entropy) == expected
