"""Requests to stop: Ctrl-C, SIGTERM, and Google Cloud's notice that this machine will be taken
away. The run stops after the current step; a second signal ends the process at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import urllib.request
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

import jax

SIGNALS = (signal.SIGINT, signal.SIGTERM)

# The environment variable that names another metadata server, as in google-auth.
HOST_VARIABLE = "GCE_METADATA_HOST"
POLL_SECONDS = 5.0  # the notice comes a minute or more ahead; 30 seconds ahead on a spot machine
_TIMEOUT_SECONDS = 2.0
# Paths below /computeMetadata/v1/instance/, and what each says while nothing is announced.
_QUIET = {"maintenance-event": "NONE", "preempted": "FALSE"}


class StopSignals:
    """A context in which SIGNALS are caught. `signal` is the one that came (None: none); any thread
    may set it. Python lets the main thread alone catch signals: in another one nothing is caught.
    `heard` is called with the signal at once, before a second one can end the process.
    """

    def __init__(self, heard: Callable[[int], None] = lambda number: None) -> None:
        self.signal: int | None = None
        self._heard = heard
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        for following in SIGNALS:
            signal.signal(following, signal.SIG_IGN)
        self.signal = number
        self._heard(number)
        for following in SIGNALS:
            signal.signal(following, signal.SIG_DFL)  # the next one ends the process


@contextlib.contextmanager
def maintenance_watch(stop: StopSignals) -> Iterator[None]:
    """Inside the `with`, a thread asks the metadata server every POLL_SECONDS. It sets
    `stop.signal` to SIGTERM when maintenance or preemption is announced.

    It asks only on TPUs, or if the environment names a metadata server.
    """
    if HOST_VARIABLE not in os.environ and jax.default_backend() != "tpu":
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        while not is_leave_announced():
            if ended.wait(POLL_SECONDS):
                return
        stop.signal = signal.SIGTERM

    thread = threading.Thread(target=watch, name="maintenance notice", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def is_leave_announced() -> bool:
    """Whether the metadata server announces maintenance or preemption. False without a server."""
    return any(_ask(path) not in (None, quiet) for path, quiet in _QUIET.items())


def _ask(path: str) -> str | None:
    host = os.environ.get(HOST_VARIABLE, "metadata.google.internal")
    url = f"http://{host}/computeMetadata/v1/instance/{path}"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
            return answer.read(100).decode("ascii", errors="replace").strip()
    except OSError:  # unreachable for a moment: it is asked again
        return None
