"""Tests of a probe's pictures: formulas where they are meant, and ticks where the points are."""

from __future__ import annotations

import re
from typing import Any

from mhsh.report.probe_plots import picture

DEPTHS = (6, 12, 24)


def scheme(name: str, theory: str, growth: float | None) -> dict[str, Any]:
    points = [{"sublayers": 2 * depth, "mean": 1e-6 * depth, "low": -1.0, "high": 2e-6 * depth} for depth in DEPTHS]
    return {"scheme": name, "theory": theory, "growth": None if growth is None else {"exponent": growth}, "points": points}


def words(document: dict[str, Any]) -> list[str]:
    """matplotlib draws letters as shapes, and names each text in a comment."""
    return re.findall("<!-- (.*?) -->", picture(document, "svg").decode())


def test_amplification_has_mathematics_and_a_tick_at_every_depth() -> None:
    schemes = [scheme("admin_closed_log", "O(log n)", 0.25), scheme("deepnorm", "O(1)", None)]
    shown = words({"kind": "amplification", "schemes": schemes})
    assert {str(2 * depth) for depth in DEPTHS} <= set(shown)
    assert r"Admin, closed form $O(\log n)$: $n^{0.25}$, theory $O(\log n)$" in shown
    assert "DeepNorm: theory $O(1)$" in shown


def test_names_of_runs_are_no_formulas() -> None:
    models = [{"name": name, "result": {"means": [1e-6, None, 3e-6]}} for name in ("_a", r"$\frac$")]
    shown = words({"kind": "amplification", "models": models})
    assert {"_a", r"$\frac$", "2", "4"} <= set(shown)


def test_one_draw_has_no_interval() -> None:
    several = scheme("keel", "O(1/n)", -1.0)
    one = several | {"points": [point | {"low": None, "high": None} for point in several["points"]]}
    bands = ["PolyCollection" in picture({"kind": "amplification", "schemes": [each]}, "svg").decode() for each in (several, one)]
    assert bands == [True, False]
