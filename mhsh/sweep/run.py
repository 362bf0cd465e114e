"""Training the cells of a sweep, each in its own process, one or several at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from mhsh.cluster.signals import StopSignals
from mhsh.config.entries import files_of
from mhsh.errors import UserError
from mhsh.storage.run_folder import RunFolder
from mhsh.sweep.axes import Cell, parents
from mhsh.sweep.folder import CellState, SweepFolder

_POLL_SECONDS = 0.1
_DEVICE_MEMORY = 0.9  # of an accelerator's memory, shared by the cells that run at once

Tell = Callable[[Cell, CellState, float], None]


@dataclasses.dataclass(frozen=True)
class _Running:
    cell: Cell
    process: subprocess.Popen[bytes]
    slot: int  # 0 ... parallel - 1
    began: float
    errors_before: int  # bytes that earlier processes wrote to its error file


def run_cells(folder: SweepFolder, cells: Sequence[Cell], parallel: int, begun: Callable[[Cell], None], ended: Tell) -> int | None:
    """Trains the cells, `parallel` at a time, each by `mhsh train` on its run folder.

    Cells that run at once share this process's cores and the accelerator's memory. SIGINT and
    SIGTERM are passed on once to the processes, which save their state; no further cell starts
    then. A cell that another sweep is running is skipped. A cell waits for the cell whose first
    steps it has.

    Args:
      begun: called with each cell when its process starts.
      ended: called with each cell, its state and its seconds when its process ends.

    Returns:
      the number of the signal that stopped the sweep, or None.
    """
    waiting, shorter = list(cells), parents(folder.read_plan().cells)
    running: list[_Running] = []
    slots = list(range(parallel))
    environment = _environment(parallel)
    signalled: set[str] = set()  # cells that were told

    def pass_on(number: int) -> None:
        told = [cell for cell in running if cell.cell.name not in signalled]
        signalled.update(cell.cell.name for cell in told)
        _signal_all(told, number)

    with StopSignals(pass_on) as signals, _terminating(running):
        while running or (waiting and signals.signal is None):
            if signals.signal is not None:
                pass_on(signals.signal)  # to a cell that was being started when the signal came
            while slots and signals.signal is None and (cell := _next(waiting, running, shorter)) is not None:
                waiting.remove(cell)
                started = _start(folder, cell, shorter.get(cell.name), slots[0], parallel, environment, ended)
                if started is not None:
                    slots.pop(0)
                    running.append(started)
                    begun(started.cell)
            time.sleep(_POLL_SECONDS)
            for done in [cell for cell in running if cell.process.poll() is not None]:
                running.remove(done)
                slots.append(done.slot)
                ended(done.cell, _note_end(folder, done), time.monotonic() - done.began)
    return signals.signal


def _next(waiting: Sequence[Cell], running: Sequence[_Running], shorter: Mapping[str, Cell]) -> Cell | None:
    """The first cell whose parent neither waits nor runs."""
    busy = {cell.name for cell in (*waiting, *(process.cell for process in running))}
    return next((cell for cell in waiting if cell.name not in shorter or shorter[cell.name].name not in busy), None)


def _start(
    folder: SweepFolder,
    cell: Cell,
    parent: Cell | None,
    slot: int,
    parallel: int,
    environment: Mapping[str, str],
    ended: Tell,
) -> _Running | None:
    """Starts the cell's process.

    None where another sweep runs it, or where its run folder cannot be made: then it has failed.
    """
    outputs = folder.begin(cell.name)
    if outputs is None:
        ended(cell, folder.state(cell.name), 0.0)
        return None
    output, errors = outputs
    with output, errors:
        try:
            config = folder.run_config(cell, parent)
            files = [f"--with={path}" for path in files_of(config)]
            run_folder = RunFolder.open_for_training(folder.run_folder(cell.name).path, config)
        except UserError as error:
            folder.finish(cell.name, 2, str(error), 0.0)
            errors.close()
            ended(cell, folder.state(cell.name), 0.0)
            return None
        if parent is not None and not config.train.start_from and not run_folder.has_begun():
            print(f"  {cell.name} trains all its steps: {parent.name} has no checkpoint from before its decay any more")
        # In a process group of its own: Ctrl-C at the terminal reaches only the sweep, which passes
        # it on once.
        process = subprocess.Popen(
            [sys.executable, "-m", "mhsh", "train", f"--workdir={run_folder.path}", *files],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=dict(environment),
            process_group=0,
        )
        if parallel > 1 and hasattr(os, "sched_setaffinity"):
            # Threads that it starts later have its cores.
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(process.pid, _share_of_cores(slot, parallel))
        return _Running(cell, process, slot, time.monotonic(), errors.tell())


def _note_end(folder: SweepFolder, done: _Running) -> CellState:
    status = done.process.returncode
    reason = folder.last_error_line(done.cell.name, done.errors_before)
    if status < 0:
        reason = f"ended by {signal.Signals(-status).name}" + (f" after: {reason}" if reason else "")
    folder.finish(done.cell.name, status if status >= 0 else 128 - status, reason, time.monotonic() - done.began)
    return folder.state(done.cell.name)


def _signal_all(running: Sequence[_Running], number: int) -> None:
    for cell in running:
        if cell.process.poll() is None:
            cell.process.send_signal(number)


@contextlib.contextmanager
def _terminating(running: list[_Running]) -> Iterator[None]:
    """Terminates the processes that still run at the end of the `with`, however it ends."""
    try:
        yield
    finally:
        _signal_all(running, signal.SIGTERM)
        for cell in running:
            cell.process.wait()


def _environment(parallel: int) -> dict[str, str]:
    """The processes' environment."""
    # Unbuffered, so that logs can be followed and hold the last lines of a killed process.
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    if parallel > 1:
        # By default the first process takes most of an accelerator's memory.
        environment.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{_DEVICE_MEMORY / parallel:.3f}")
    return environment


def _share_of_cores(slot: int, parallel: int) -> set[int]:
    """Every parallel-th core, or a shared core where there are fewer cores than slots."""
    cores = sorted(os.sched_getaffinity(0))
    return set(cores[slot::parallel]) or {cores[slot % len(cores)]}
