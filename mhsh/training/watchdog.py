"""Ends a process that hangs, with the stacks of its threads: what another process's silence does to
a collective.
"""

from __future__ import annotations

import contextlib
import faulthandler
from collections.abc import Iterator

_STANDARD_ERROR = 2  # the file descriptor, whatever stands in for sys.stderr


class Watchdog:
    """While entered, the process ends with status 1 and all stacks on standard error once `seconds`
    pass without `alive`.
    """

    def __init__(self, seconds: int) -> None:
        """0: never."""
        self._seconds = seconds
        self._watches = False

    def alive(self) -> None:
        """Something has been finished: the time begins anew."""
        if self._watches:
            faulthandler.dump_traceback_later(self._seconds, exit=True, file=_STANDARD_ERROR)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watches what runs inside."""
        self._watches = self._seconds > 0
        self.alive()
        try:
            yield
        finally:
            self._watches = False
            faulthandler.cancel_dump_traceback_later()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Does not watch what runs inside; the time begins anew after it."""
        faulthandler.cancel_dump_traceback_later()
        yield
        self.alive()
