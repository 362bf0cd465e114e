"""Tests of how losses are put into words."""

from __future__ import annotations

import math

from mhsh.report.render.format import format_loss, format_loss_difference


def test_loss() -> None:
    assert [format_loss(value) for value in (None, 2.60349, math.nan)] == ["not recorded", "2.603", "not finite"]
    assert [format_loss_difference(value) for value in (0.0, 0.02, 0.00004)] == ["0.000", "0.020", "4e-05"]
