"""Times and quantities in words of three digits, with the prefix that suits them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """In the unit that leaves three digits: 1.23 s, 45.6 ms, 789 us."""
    for size, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= size:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds * 1e9)} ns"


def quantity(number: float | int | None, unit: str) -> str:
    """Three digits and a decimal prefix: 12.3 GFLOP/s; nothing for nothing."""
    if not number:
        return ""
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{_digits(number / size)} {prefix}{unit}"
    return f"{_digits(float(number))} {unit}"


def _digits(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"
