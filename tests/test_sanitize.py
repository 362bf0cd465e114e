"""Text from files, disarmed."""

from __future__ import annotations

from mhsh.text import sanitize


def test_printable_disarms_terminals_and_direction_overrides() -> None:
    assert sanitize("a\x1b[2J\u202eb\udc80\nc") == "a\ufffd[2J\ufffdb\ufffd c"
