"""Storage that does not answer: every failing request of a process counts towards one deadline,
from the first failure after the last answer. Until then requests are tried again; then the process
ends with status 75, so that the same command goes on.
"""

from __future__ import annotations

import contextlib
import contextvars
import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from mhsh.errors import Unavailable

T = TypeVar("T")

LOGIN = "log in with gcloud auth application-default login, or ask for access"
_REPORT_AFTER = 10.0  # seconds; a shorter outage is nobody's business
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 20.0  # seconds between two tries; each is twice as long as the one before
_ONE_TRY_SECONDS = 15.0  # of a request that nobody waits for
# What a disk, or a network that a disk is behind, may recover from.
_DISK_ERRORS = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT}
_NETWORK_ERRORS = {errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH}
TRANSIENT = frozenset(_DISK_ERRORS | _NETWORK_ERRORS)


class _Outage:
    patience = 600.0  # seconds
    since: float | None = None  # the first failure after the last answer; None: the storage answers
    ended = 0.0  # of the last one that lasted for longer than _REPORT_AFTER
    is_reported = False


_outage, _lock = _Outage(), threading.Lock()
_waits: contextvars.ContextVar[bool] = contextvars.ContextVar("waits", default=True)


def set_patience(minutes: float) -> None:
    """Lets an outage end the process after so many minutes (train.storage_minutes)."""
    _outage.patience = 60 * minutes


@contextlib.contextmanager
def one_try() -> Iterator[None]:
    """Inside the `with` a request of this thread that fails is not tried again: it raises
    Unavailable at once. What it says of the deadline is `is_over`.
    """
    token = _waits.set(False)
    try:
        yield
    finally:
        _waits.reset(token)


def note_answer() -> None:
    """Notes that the storage has answered: an outage is over."""
    if _outage.since is None:
        return
    with _lock:
        now = time.monotonic()
        lasted = now - (_outage.since or now)
        if _outage.is_reported:
            _say(f"the storage answers again, after {lasted:.0f} s")
        if lasted > _REPORT_AFTER:
            _outage.ended = now
        _outage.since, _outage.is_reported = None, False


class Request:
    """A request, from its first try on. `where` is what it is about, for people."""

    def __init__(self, where: object) -> None:
        self._where, self._begun, self._tries = where, time.monotonic(), 0
        self.seconds = None if _waits.get() else _ONE_TRY_SECONDS  # that a try may take; None: the client's own bound

    def note_failure(self, error: BaseException) -> float:
        """Notes that a try has failed in a way that may pass. Returns the seconds until the next
        try. Raises Unavailable where the deadline is over, or nothing is tried again here.
        """
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        with _lock:
            now = time.monotonic()
            _outage.since = _outage.since or now
            lasted = now - min(_outage.since, self._begun)
            if lasted > _REPORT_AFTER and not _outage.is_reported and _waits.get():
                _outage.is_reported = True
                _say(f"{self._where} does not answer ({reason}); trying again for {_outage.patience / 60:g} minutes")
        if lasted >= _outage.patience or not _waits.get():
            raise Unavailable(
                f"{self._where} has not answered for {lasted:.0f} s ({reason}); nothing is lost: run the same command again"
            ) from error
        self._tries += 1
        return min(_FIRST_PAUSE * 2 ** (self._tries - 1), _LONGEST_PAUSE, max(0.1, _outage.patience - lasted))


def is_failing() -> bool:
    """Whether the last request has failed."""
    return _outage.since is not None


def seconds_of_answers() -> float:
    """The seconds since the last outage, if there was one; short ones do not count."""
    return time.monotonic() - _outage.ended


def is_over() -> bool:
    """Whether the outage, if there is one, has lasted for too long."""
    return _outage.since is not None and time.monotonic() - _outage.since >= _outage.patience


def retry(ask: Callable[[], T], where: object) -> T:
    """Calls `ask`, a question to a local file system, until it answers. Returns the answer.
    Raises the OSError of the file system where that is an answer, and Unavailable as
    `Request.note_failure` does.
    """
    request = Request(where)
    while True:
        try:
            answer = ask()
        except OSError as error:
            if error.errno not in TRANSIENT:
                raise
            time.sleep(request.note_failure(error))
        else:
            note_answer()
            return answer


def again_if_stale(read: Callable[[], T]) -> T:
    """Reads a file once more where another machine of a network file system has replaced it since
    it was opened, as it does with run.json at each save.
    """
    try:
        return read()
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        return read()


def _say(line: str) -> None:
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"mhsh: {line}\n".encode())
