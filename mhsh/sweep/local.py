"""The workers of a sweep on this machine: processes that share its cores and accelerator."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mhsh.cluster.signals import StopSignals
from mhsh.storage.bucket import is_remote
from mhsh.storage.files import write_atomically
from mhsh.sweep.folder import SweepFolder

_POLL_SECONDS = 0.1
_MOST_STARTS = 100  # of workers, those that were killed anew among them
_DEVICE_MEMORY = 0.9  # of an accelerator's memory, shared by the workers


def run_workers(folder: SweepFolder, count: int, flags: Sequence[str], look: Callable[[], None]) -> tuple[int | None, list[str]]:
    """Runs `count` times `mhsh work` with these flags to its end, and calls `look` again and again
    meanwhile. One that is killed, as where memory runs out, starts again. SIGINT and SIGTERM are
    passed on once, and the workers save their state.

    Returns:
      the number of the signal that stopped them, or None; and a line for each worker that ended by
      an error of its own, or was killed.
    """
    workers: list[subprocess.Popen[bytes]] = []
    signalled: set[int] = set()

    def pass_on(number: int) -> None:
        for worker in workers:
            if worker.pid not in signalled and worker.poll() is None:
                signalled.add(worker.pid)
                worker.send_signal(number)

    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(StopSignals(pass_on))
        stack.callback(_terminate, workers)
        logs = [stack.enter_context(_log(folder, slot)) for slot in range(count)]
        for slot in range(count if signals.signal is None else 0):
            workers.append(_start(folder, slot, count, flags, logs[slot]))
        starts = len(workers)
        while any(worker.poll() is None for worker in workers):
            if signals.signal is not None:
                pass_on(signals.signal)  # to one that was being started when the signal came
            time.sleep(_POLL_SECONDS)
            look()
            for slot, worker in enumerate(workers):
                if (worker.poll() or 0) < 0 and signals.signal is None and starts < _MOST_STARTS:
                    print(f"  {_describe_end(worker.returncode, logs[slot])}; started again", flush=True)
                    workers[slot], starts = _start(folder, slot, count, flags, logs[slot]), starts + 1
        ended = zip(workers, logs, strict=False)
        lines = [
            _describe_end(worker.returncode, log) for worker, log in ended if worker.returncode not in (0, os.EX_TEMPFAIL, 130)
        ]
    return signals.signal, lines if signals.signal is None else []


def _start(folder: SweepFolder, slot: int, count: int, flags: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    # Unbuffered, so that logs can be followed and hold the last lines of a killed process.
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    if count > 1:
        # By default the first process takes most of an accelerator's memory.
        environment.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{_DEVICE_MEMORY / count:.3f}")
    with open(log, "ab") as output:
        worker = subprocess.Popen(
            [sys.executable, "-m", "mhsh", "work", str(folder.path), *flags],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            process_group=0,  # Ctrl-C at the terminal reaches only the sweep, which passes it on once
        )
    if count > 1 and hasattr(os, "sched_setaffinity"):
        # Threads that it starts later have its cores.
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(worker.pid, _share_of_cores(slot, count))
    return worker


@contextlib.contextmanager
def _log(folder: SweepFolder, slot: int) -> Iterator[Path]:
    """The file that a worker's output goes to. In a bucket it appears when the worker has ended."""
    name = f"{socket.gethostname()}-{slot}.log"
    if not is_remote(folder.path):
        yield Path(folder.path) / "logs" / name
        return
    with tempfile.TemporaryDirectory() as here:
        yield Path(here) / name
        write_atomically(folder.path / "logs" / name, (Path(here) / name).read_bytes())


def _describe_end(status: int, log: Path) -> str:
    how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f"a worker ended {how}: {lines[-1] if lines else 'it said nothing'}"


def _terminate(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    """Terminates the processes that still run."""
    for worker in workers:
        if worker.poll() is None:
            worker.terminate()
    for worker in workers:
        worker.wait()


def _share_of_cores(slot: int, count: int) -> set[int]:
    """Every count-th core, or a shared core where there are fewer cores than slots."""
    cores = sorted(os.sched_getaffinity(0))
    return set(cores[slot::count]) or {cores[slot % len(cores)]}
