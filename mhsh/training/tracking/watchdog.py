"""Ends a process that hangs, with status 75 and the stacks of its threads, so that the same command
goes on from the last checkpoint. A collective hangs when another process does not take part in it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import threading
import time
from collections.abc import Iterator

_STANDARD_ERROR = 2  # the file descriptor: sys.stderr may have been replaced
TIMES_LONGEST, LEAST_SECONDS = 20, 300.0
# After the limit, a thread that keeps Python from running is ended by a timer of C, with status 1.
_GRACE_SECONDS = 30


class Watchdog:
    """Inside `watching`, the process ends if no `heartbeat` comes within the limit."""

    def __init__(self, seconds: int) -> None:
        """The limit in seconds; 0: TIMES_LONGEST the longest time between two heartbeats so far,
        and at least LEAST_SECONDS.
        """
        self._fixed = float(seconds)
        self._longest: float | None = None  # None: there were no two heartbeats yet
        self._last: float | None = None  # None: not watching, or paused
        self._ended = threading.Event()

    def heartbeat(self) -> None:
        """Says that some work is done: the time starts again."""
        now = time.monotonic()
        if self._last is not None:
            self._longest = max(self._longest or 0.0, now - self._last)
            self._start()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watches the code inside."""
        self._start()
        thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()
            self._stop()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Does not watch the code inside. The time starts again after it."""
        watched = self._last is not None
        self._stop()
        yield
        if watched:
            self._start()

    def limit(self) -> float | None:
        """Seconds; None: not known yet."""
        if self._fixed:
            return self._fixed
        return None if self._longest is None else max(LEAST_SECONDS, TIMES_LONGEST * self._longest)

    def _start(self) -> None:
        self._last = time.monotonic()

    def _stop(self) -> None:
        self._last = None
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        while not self._ended.wait(min(1.0, (self.limit() or LEAST_SECONDS) / 10)):
            last, limit = self._last, self.limit()
            if last is None or limit is None:
                faulthandler.cancel_dump_traceback_later()
                continue
            # Here and not at every step: setting the timer starts a thread.
            faulthandler.dump_traceback_later(limit + _GRACE_SECONDS, exit=True, file=_STANDARD_ERROR)
            if time.monotonic() - last > limit:
                said = f"nothing was done for {limit:.0f} s: this process hangs; run the same command again (its stacks follow)"
                os.write(_STANDARD_ERROR, f"mhsh: {said}\n".encode())
                faulthandler.dump_traceback(_STANDARD_ERROR)
                os._exit(os.EX_TEMPFAIL)
