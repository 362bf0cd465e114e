"""Tests of how names and numbers are put into words."""

from __future__ import annotations

import math

import pytest

from mhsh.report.render import formatting


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "not recorded"),
        (0, "0"),
        (99_999, "99,999"),
        (512_000, "512k"),
        (999_960, "1.00M"),
        (30_720_000, "30.7M"),
        (2.1e15, "2.10P"),
    ],
)
def test_count(value: float | None, expected: str) -> None:
    assert formatting.count(value) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (None, "not recorded"),
        (48.24, "48.2 s"),
        (59.96, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.7, "1 h 00 min"),
        (7620, "2 h 07 min"),
    ],
)
def test_duration(seconds: float | None, expected: str) -> None:
    assert formatting.duration(seconds) == expected


def test_loss() -> None:
    assert [formatting.loss(value) for value in (None, 2.60349, math.nan)] == ["not recorded", "2.603", "not finite"]
    assert [formatting.loss_difference(value) for value in (0.0, 0.02, 0.00004)] == ["0.000", "0.020", "4e-05"]
