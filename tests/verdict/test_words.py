"""Tests of how losses are put into words."""

from __future__ import annotations

import math

from mhsh.verdict.words import format_distinct, format_loss, format_loss_difference, format_names


def test_loss() -> None:
    assert [format_loss(value) for value in (None, 2.60349, math.nan)] == ["not recorded", "2.603", "not finite"]
    assert [format_loss_difference(value) for value in (0.0, 0.02, 0.00004)] == ["0.000", "0.020", "4e-05"]


def test_values_are_short_where_that_keeps_them_apart() -> None:
    one, other = "8d09aff3f1beff85" * 4, "8d09aff3f1beff85" * 3 + "0" * 16
    assert format_distinct([one, None, 351944, True, 3.2877502355752775]) == [
        "8d09aff3",
        "not recorded",
        "351,944",
        "true",
        "3.28775",
    ]
    assert format_distinct([one, other]) == [one, other]
    assert format_distinct([0.1, 0.10000000001]) == ["0.1", "0.10000000001"]
    assert format_distinct([{"kind": "cpu", "count": 1}, [1, 2]]) == ["count 1, kind cpu", "[1, 2]"]


def test_many_names_are_counted() -> None:
    assert format_names(["a", "b", "c", "d"]) == "a, b, c and d"
    assert format_names(list("abcdef")) == "a, b, c and 3 others"
