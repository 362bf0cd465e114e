"""jax's coordination service in a process of its own, beside process 0 of a run.

jax runs the service inside process 0. When that one dies, the clients in all the others abort at
once, with a stack and status 134, and cannot be told not to (jax 0.10 to 0.12: a callback of
Python's gets an argument that it cannot take). Here the service outlives process 0 by
`LINGER_SECONDS`, in which `peers` ends the others as it should. The one inside process 0 has an
address that nobody is told.

Of jax's private names mhsh uses two, both here: jax has no public way to start the service alone,
or to find the processes of a cluster without joining them.
"""

from __future__ import annotations

import atexit
import importlib
import os
import signal
import subprocess
import sys
import time
from typing import Any, NamedTuple

LINGER_SECONDS = 3
PRIVATE = (("jax._src.clusters", "ClusterEnv"), ("jaxlib._jax", "get_distributed_runtime_service"))
_LAST_ANSWERS_SECONDS = 1
_UNUSED_ADDRESS = "127.0.0.1:0"
# jax would abort all, with a stack, when one has been stopped for 100 seconds. Who is lost, `peers`
# finds out, and who hangs, the watchdog.
_SILENT_SECONDS = 24 * 3600
_ENDING_SECONDS = 300  # as in jax.distributed.initialize


class Place(NamedTuple):
    """The number of this process in its run, as jax.distributed.initialize takes it."""

    coordinator: str
    count: int
    process: int
    devices: Any = None


def connect(coordinator: str | None, count: int | None, process: int | None, timeout: int) -> Place:
    """Joins the processes of a run by jax.distributed.initialize, with the service in a process of
    its own. If all three are None, jax finds them itself. Returns what it found. Raises ValueError,
    RuntimeError or OSError where they cannot be found or reached, or the service cannot start.
    """
    import jax

    devices = None
    if coordinator is None:
        detect = _private_object(0).auto_detect_unset_distributed_params
        coordinator = os.environ.get("JAX_COORDINATOR_ADDRESS")
        coordinator, count, process, devices = detect(coordinator, count, process, None, None, timeout)
    if coordinator is None or count is None or process is None:
        raise ValueError("jax finds none")
    place = Place(coordinator, count, process, None if "JAX_LOCAL_DEVICE_IDS" in os.environ else devices)  # jax reads them
    if process == 0:
        _start_service(coordinator, count)
    jax.distributed.initialize(
        *place,
        # Inside a Slurm job jax would assign devices by task, though a coordinator is given.
        cluster_detection_method="deactivate",
        initialization_timeout=timeout,
        heartbeat_timeout_seconds=_SILENT_SECONDS,
        shutdown_timeout_seconds=_ENDING_SECONDS,
        coordinator_bind_address=_UNUSED_ADDRESS,
    )
    return place


def _start_service(coordinator: str, count: int) -> None:
    address = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS") or f"[::]:{coordinator.rpartition(':')[2]}"
    # A session of its own: a Ctrl-C is for the run. -P: the files beside this one are no modules.
    service = subprocess.Popen(
        [sys.executable, "-P", __file__, address, str(count)],
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},  # what it would log, its clients say
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert service.stdout is not None
    if not service.stdout.readline():
        raise RuntimeError(f"the coordination service did not start at {address}")
    atexit.register(_leave, service)


def _leave(service: subprocess.Popen[bytes]) -> None:
    """Ends the service at the end of process 0, which has then heard that all have come to the end.
    The others may be about to hear it, and would abort without an answer.
    """
    import jax

    jax.distributed.shutdown()
    service.communicate(b"end")


def _private_object(index: int) -> Any:
    """A private name of jax. Raises RuntimeError where this jax has none of this name."""
    module, name = PRIVATE[index]
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise RuntimeError(f"this jax has no {module}.{name}; install one that mhsh was tested with, jax>=0.10.1,<0.13") from error


def main(address: str, count: str) -> None:
    """Serves until the process at the other end of standard input says `end`, or has gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # they are for process 0, which takes leave first
        signal.signal(number, signal.SIG_IGN)
    service = _private_object(1)(address, int(count), heartbeat_timeout=_SILENT_SECONDS, shutdown_timeout=_ENDING_SECONDS)
    try:
        os.write(sys.stdout.fileno(), b"ready\n")
    except BrokenPipeError:  # process 0 has waited for long enough
        return
    time.sleep(_LAST_ANSWERS_SECONDS if sys.stdin.buffer.read() == b"end" else LINGER_SECONDS)
    del service


if __name__ == "__main__":
    main(*sys.argv[1:])
