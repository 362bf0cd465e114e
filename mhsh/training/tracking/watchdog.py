"""Ends a process that hangs and prints the stacks of its threads. A collective hangs when another
process does not take part in it.
"""

from __future__ import annotations

import contextlib
import faulthandler
from collections.abc import Iterator

_STANDARD_ERROR = 2  # the file descriptor: sys.stderr may have been replaced


class Watchdog:
    """Inside `watching`, the process ends with status 1 and all stacks on standard error if
    `seconds` pass without a `heartbeat`.
    """

    def __init__(self, seconds: int) -> None:
        """`seconds` = 0: never."""
        self._seconds = seconds
        self._watches = False

    def heartbeat(self) -> None:
        """Says that some work is done: the time starts again."""
        if self._watches:
            faulthandler.dump_traceback_later(self._seconds, exit=True, file=_STANDARD_ERROR)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watches the code inside."""
        self._watches = self._seconds > 0
        self.heartbeat()
        try:
            yield
        finally:
            self._watches = False
            faulthandler.cancel_dump_traceback_later()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Does not watch the code inside. The time starts again after it."""
        faulthandler.cancel_dump_traceback_later()
        yield
        self.heartbeat()
