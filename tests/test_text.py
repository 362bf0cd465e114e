"""Numbers as text, and text made safe to show."""

from __future__ import annotations

import pytest

from mhsh.text import count, duration, quantity, sanitize, timing


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "not recorded"),
        (0, "0"),
        (99_999, "99,999"),
        (512_000, "512k"),
        (999_960, "1.00M"),
        (30_720_000, "30.7M"),
        (99_960_000, "100M"),
        (2.1e15, "2.10P"),
    ],
)
def test_count(value: float | None, expected: str) -> None:
    assert count(value) == expected


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
    assert duration(seconds) == expected


def test_timing_and_quantity():
    assert [timing(seconds) for seconds in (123.4, 1.234, 0.0456, 7.89e-4, 5e-9)] == [
        "123 s",
        "1.23 s",
        "45.6 ms",
        "789 us",
        "5.00 ns",
    ]
    assert [quantity(number, "B") for number in (None, 0, 12, 1.5e4, 2.684e8, 9.64e9, 7.5e14)] == [
        "",
        "",
        "12.0 B",
        "15.0 kB",
        "268 MB",
        "9.64 GB",
        "750 TB",
    ]


def test_sanitize_disarms_terminals_and_direction_overrides() -> None:
    assert sanitize("a\x1b[2J\u202eb\udc80\nc") == "a\ufffd[2J\ufffdb\ufffd c"
