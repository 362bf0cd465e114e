"""Ctrl-C and SIGTERM as a request to stop after the step in flight; a second one ends the process
at once.
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """While entered, `signal` tells which of SIGNALS has come (None: none). The main thread must
    enter it.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        self._previous = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def request(self, number: int) -> None:
        """As if that signal had come; from any thread."""
        self.signal = number

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.request(number)
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)  # the next one is not asked for patience
