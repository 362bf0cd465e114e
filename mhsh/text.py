"""Numbers as text, in three digits; and text from files, made safe to show."""

from __future__ import annotations

import math

NOT_RECORDED = "not recorded"
_SUFFIXES = ((3, "k"), (6, "M"), (9, "G"), (12, "T"), (15, "P"), (18, "E"), (21, "Z"), (24, "Y"))


def duration(seconds: int | float | None) -> str:
    """How long something ran: `48.2 s`, `3 min 05 s` or `2 h 07 min`."""
    if seconds is None or not math.isfinite(seconds):
        return NOT_RECORDED
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def timing(seconds: int | float) -> str:
    """A measured time in the unit that leaves three digits: `1.23 s`, `45.6 ms` or `789 us`."""
    for size, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= size:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds * 1e9)} ns"


def count(value: int | float | None) -> str:
    """A count, in full up to 99,999, then with a metric suffix: 512,000 is `512k`, 2.1e15 is
    `2.10P`.
    """
    if value is None or not math.isfinite(value):
        return NOT_RECORDED
    if abs(value) < 1e5:
        return f"{value:,.0f}"
    # Four digits may round up to the next suffix: 999,960 is 1.00M, not 1000k.
    for power, suffix in _SUFFIXES:
        scaled = value / 10**power
        if abs(scaled) < 999.5 or power == 24:
            return f"{_digits(scaled)}{suffix}"
    raise AssertionError("the last suffix takes every number")


def quantity(number: int | float | None, unit: str) -> str:
    """Three digits and a decimal prefix: `12.3 GFLOP/s`. Empty for None and 0."""
    if not number:
        return ""
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{_digits(number / size)} {prefix}{unit}"
    return f"{_digits(float(number))} {unit}"


def _digits(number: float) -> str:
    """Three digits, of the rounded number: 99.96 is 100."""
    return f"{number:.{0 if abs(number) >= 99.95 else 1 if abs(number) >= 9.995 else 2}f}"


def sanitize(text: str) -> str:
    """`text` on one line. U+FFFD replaces control characters (escape sequences), direction
    overrides and undecodable bytes.
    """
    return "".join(character if character.isprintable() else "\ufffd" for character in " ".join(text.split()))
