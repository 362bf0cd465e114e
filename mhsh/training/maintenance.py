"""Google Cloud's notice that this machine is about to be taken away (maintenance, preemption),
heard as a SIGTERM is.
"""

from __future__ import annotations

import os
import signal
import threading
import urllib.request
from types import TracebackType

import jax

from mhsh.training.signals import Interruption

# Where google-auth and the cloud's own tools look for another metadata server.
HOST_VARIABLE = "GCE_METADATA_HOST"
POLL_SECONDS = 5.0  # the notice comes a minute or more ahead; a spot machine has 30 seconds
_TIMEOUT_SECONDS = 2.0
# The path below /computeMetadata/v1/instance/ and what it says while nothing is announced.
_QUIET = {"maintenance-event": "NONE", "preempted": "FALSE"}


class MaintenanceWatch:
    """While entered, asks the metadata server every POLL_SECONDS and requests the interruption once
    something is announced.

    Only on TPUs, or where the environment names a metadata server; elsewhere there is nothing to
    ask.
    """

    def __init__(self, interruption: Interruption) -> None:
        self._interruption = interruption
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> MaintenanceWatch:
        if HOST_VARIABLE in os.environ or jax.default_backend() == "tpu":
            self._thread = threading.Thread(target=self._watch, name="maintenance notice", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._ended.is_set():
            if announced():
                self._interruption.request(signal.SIGTERM)
                return
            self._ended.wait(POLL_SECONDS)


def announced() -> bool:
    """Whether the metadata server announces maintenance or preemption; no server, no
    announcement.
    """
    return any(_ask(path) not in (None, quiet) for path, quiet in _QUIET.items())


def _ask(path: str) -> str | None:
    host = os.environ.get(HOST_VARIABLE, "metadata.google.internal")
    url = f"http://{host}/computeMetadata/v1/instance/{path}"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
            return answer.read(100).decode("ascii", errors="replace").strip()
    except OSError:  # a server that is away for a moment announces nothing; it is asked again
        return None
