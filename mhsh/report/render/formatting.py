"""How numbers and settings that come from files are put into words: short, and never invented."""

from __future__ import annotations

import json
import math
from typing import Any

from mhsh.report.estimate import Estimate
from mhsh.report.render.sanitize import printable

NOT_RECORDED = "not recorded"


def loss(value: float | None) -> str:
    """A loss in nats per token, three decimals."""
    if value is None:
        return NOT_RECORDED
    return f"{value:.3f}" if math.isfinite(value) else "not finite"


def loss_difference(value: float) -> str:
    """A difference of two losses; a small one keeps a digit rather than reading as 0.000."""
    return f"{value:.3f}" if abs(value) >= 0.0005 or value == 0 else f"{value:.1g}"


def interval(of: Estimate) -> str:
    """`0.120 to 0.340`, of losses."""
    return f"{loss_difference(of.low)} to {loss_difference(of.high)}"


def percent(share: float) -> str:
    """0.0123 as `1.2 %`; a small share keeps a digit rather than reading as 0.0 %."""
    return f"{100 * share:.1f} %" if abs(share) >= 0.0005 or share == 0 else f"{100 * share:.1g} %"


def count(value: int | float | None) -> str:
    """A count in full up to 99,999, then with a metric suffix: 512,000 is `512k`, 2.1e15 is
    `2.10P`.
    """
    if value is None or not math.isfinite(value):
        return NOT_RECORDED
    if abs(value) < 1e5:
        return f"{value:,.0f}"
    # Four digits may round up to the next suffix: 999,960 is 1.00M, not 1000k.
    for power, suffix in ((3, "k"), (6, "M"), (9, "G"), (12, "T"), (15, "P"), (18, "E"), (21, "Z"), (24, "Y")):
        scaled = value / 10**power
        if abs(scaled) < 999.5 or power == 24:
            return f"{_three_digits(scaled)}{suffix}"
    raise AssertionError("the last suffix takes every number")


def _three_digits(value: float) -> str:
    text = f"{value:.3g}"
    if "e" in text:
        return text
    # Of the rounded value: 0.9996 has the digits of 1.00.
    decimals = max(0, 2 - math.floor(math.log10(abs(float(text)))))
    return f"{value:.{decimals}f}"


def duration(seconds: int | float | None) -> str:
    """Seconds as `48.2 s`, `3 min 05 s` or `2 h 07 min`."""
    if seconds is None or not math.isfinite(seconds):
        return NOT_RECORDED
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def recorded(value: Any) -> str:
    """Any value out of a JSON file on one line; None is `not recorded`."""
    if value is None:
        return NOT_RECORDED
    if isinstance(value, str):
        return printable(value) or '""'
    return printable(json.dumps(value, sort_keys=True, ensure_ascii=False))


def listing(words: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
