"""jax's coordination service in a process of its own, beside process 0 of a run.

jax runs the service inside process 0. When that one dies, the clients in all the others abort at
once, with a stack and status 134, and cannot be told not to (jax 0.10 to 0.12: a callback of
Python's gets an argument that it cannot take). Here the service outlives process 0 by
`LINGER_SECONDS`, in which `peers` ends the others as it should.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

LINGER_SECONDS = 3
_LAST_ANSWERS_SECONDS = 1


class _ServiceProcess:
    """Stands where jax holds its service."""

    def __init__(self, address: str, count: int, **options: Any) -> None:
        arguments = [address, str(count), json.dumps(options)]
        # A session of its own: a Ctrl-C is for the run. -P: the files beside this one are no
        # modules.
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, *arguments],
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},  # what it would log, its clients say
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError(f"the coordination service did not start at {address}")

    def shutdown(self) -> None:
        """Ends it, at the end of the run: process 0 has heard that all have come to the end. The
        others may be about to hear it, and would abort without an answer.
        """
        self._process.communicate(b"end")


@contextlib.contextmanager
def service_beside() -> Iterator[None]:
    """Inside the `with`, jax.distributed.initialize starts the service in a process of its own."""
    from jax._src import distributed

    library, name = distributed._jax, "get_distributed_runtime_service"
    inside = getattr(library, name)
    setattr(library, name, _ServiceProcess)
    try:
        yield
    finally:
        setattr(library, name, inside)


def main(address: str, count: str, options: str) -> None:
    """Serves until the process at the other end of standard input says `end`, or has gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they are for process 0, which takes leave first
        signal.signal(number, signal.SIG_IGN)
    from jaxlib import _jax

    service = _jax.get_distributed_runtime_service(address, int(count), **json.loads(options))
    print("ready", flush=True)
    time.sleep(_LAST_ANSWERS_SECONDS if sys.stdin.buffer.read() == b"end" else LINGER_SECONDS)
    del service


if __name__ == "__main__":
    main(*sys.argv[1:])
