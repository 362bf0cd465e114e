"""The cells of a sweep as processes: one after another or several at once, stopped together, each
one's end written down.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from mhsh.errors import UserError
from mhsh.run_folder import RunFolder
from mhsh.sweep.folder import CellState, PlannedCell, SweepFolder
from mhsh.training.compile_cache import private_cache
from mhsh.training.signals import StopSignals

_PAUSE = 0.1  # seconds between two looks at the processes
_DEVICE_MEMORY = 0.9  # of an accelerator's, shared out among the cells at once

Tell = Callable[[PlannedCell, CellState, float], None]


@dataclasses.dataclass(frozen=True)
class _Running:
    cell: PlannedCell
    process: subprocess.Popen[bytes]
    place: int  # of `parallel`
    began: float
    errors_before: int  # bytes of earlier processes in its error file


def run_cells(
    folder: SweepFolder, cells: Sequence[PlannedCell], parallel: int, begun: Callable[[PlannedCell], None], ended: Tell
) -> int | None:
    """Trains the cells, `parallel` at a time, each in a process of its own (`mhsh train` on its run
    folder).

    With several at once each has its share of this process's cores and of the accelerator's memory.
    SIGINT and SIGTERM go on to the processes once, which save their state; no other cell is begun
    then. A cell that another sweep is running is left to it.

    Args:
      begun: called with each cell as its process starts.
      ended: called with each cell as its process ends, what became of it, and its seconds.

    Returns:
      the number of the signal that came, or None.
    """
    waiting = collections.deque(cells)
    running: list[_Running] = []
    places = list(range(parallel))
    environment = _environment(folder, parallel)
    with StopSignals() as interruption, _none_left(running):
        told = False
        while running or (waiting and interruption.signal is None):
            if interruption.signal is not None and not told:
                told = True
                _signal_all(running, interruption.signal)
            while waiting and places and interruption.signal is None:
                started = _start(folder, waiting.popleft(), places[0], parallel, environment, ended)
                if started is not None:
                    places.pop(0)
                    running.append(started)
                    begun(started.cell)
            time.sleep(_PAUSE)
            for each in [each for each in running if each.process.poll() is not None]:
                running.remove(each)
                places.append(each.place)
                ended(each.cell, _note_end(folder, each), time.monotonic() - each.began)
    return interruption.signal


def _start(
    folder: SweepFolder, cell: PlannedCell, place: int, parallel: int, environment: Mapping[str, str], ended: Tell
) -> _Running | None:
    """The cell's process; None where another sweep has it, or its run folder cannot be made (which
    is then how it ended).
    """
    files = folder.begin(cell.name)
    if files is None:
        ended(cell, folder.state(cell.name), 0.0)
        return None
    output, errors = files
    with output, errors:
        try:
            run_folder = RunFolder.open_for_training(folder.run_folder(cell.name).path, cell.config)
        except UserError as error:
            folder.finish(cell.name, 2, str(error), 0.0)
            errors.close()
            ended(cell, folder.state(cell.name), 0.0)
            return None
        # A group of its own: a Ctrl-C at the terminal reaches the sweep alone, which hands it on
        # once.
        with _on_cores(_share_of_cores(place, parallel)):
            process = subprocess.Popen(
                [sys.executable, "-m", "mhsh.cli.main", "train", f"--workdir={run_folder.path}"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=dict(environment),
                process_group=0,
            )
        return _Running(cell, process, place, time.monotonic(), errors.tell())


def _note_end(folder: SweepFolder, each: _Running) -> CellState:
    status = each.process.returncode
    reason = folder.last_error_line(each.cell.name, each.errors_before)
    if status < 0:
        reason = f"ended by {signal.Signals(-status).name}" + (f" after: {reason}" if reason else "")
    folder.finish(each.cell.name, status if status >= 0 else 128 - status, reason, time.monotonic() - each.began)
    return folder.state(each.cell.name)


def _signal_all(running: Sequence[_Running], number: int) -> None:
    for each in running:
        if each.process.poll() is None:
            each.process.send_signal(number)


@contextlib.contextmanager
def _none_left(running: list[_Running]) -> Iterator[None]:
    """Whatever ends this, no process goes on behind the sweep's back."""
    try:
        yield
    finally:
        _signal_all(running, signal.SIGTERM)
        for each in running:
            each.process.wait()


def _environment(folder: SweepFolder, parallel: int) -> dict[str, str]:
    """What the processes find: cells of one shape share what XLA compiles, unless the user has a
    cache for all of jax.
    """
    # Unbuffered: a log can be followed, and a killed process's last lines are in it.
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    if not environment.get("JAX_COMPILATION_CACHE_DIR"):
        environment["JAX_COMPILATION_CACHE_DIR"] = str(private_cache(folder.path))
    if parallel > 1:
        # By default the first process would take most of an accelerator's memory.
        environment.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{_DEVICE_MEMORY / parallel:.3f}")
    return environment


def _share_of_cores(place: int, parallel: int) -> set[int]:
    """Every parallel-th core; where there are fewer cores than places, one that several share.
    Empty: this system cannot tell.
    """
    if parallel == 1 or not hasattr(os, "sched_getaffinity"):
        return set()
    cores = sorted(os.sched_getaffinity(0))
    return set(cores[place::parallel]) or {cores[place % len(cores)]}


@contextlib.contextmanager
def _on_cores(cores: set[int]) -> Iterator[None]:
    """What is started meanwhile runs on these cores alone; an empty set changes nothing."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
