"""Several real processes of one run on this machine, joined over a loopback coordinator."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Sequence

from tests.forks import Fork


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def place(count: int) -> list[list[str]]:
    """The arguments that join each of `count` processes to the others."""
    together = [f"--coordinator=127.0.0.1:{free_port()}", f"--num-processes={count}"]
    return [[*together, f"--process-id={index}"] for index in range(count)]


def start(count: int, arguments: Sequence[str], *, extra: dict[int, Sequence[str]] | None = None) -> list[Fork]:
    """Starts `count` processes with one CPU device each; `extra` arguments go to single
    processes.
    """
    return [Fork([*arguments, *joins, *(extra or {}).get(index, ())]) for index, joins in enumerate(place(count))]


def finish(processes: Sequence[subprocess.Popen[str] | Fork]) -> list[tuple[int, str, str]]:
    """(exit status, stdout, stderr) of each; those that are left after the time of a hung run are
    killed.
    """
    results = []
    for process in processes:
        try:
            out, err = process.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        results.append((process.returncode, out, err))
    return results
