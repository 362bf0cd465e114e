"""mhsh work: trains the cells of a sweep, beside any number of other workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated

from cyclopts import Parameter

from mhsh.cli.early_stop import before_end, report_stop
from mhsh.cli.parser import Count
from mhsh.cli.selection import CellSelection
from mhsh.cli.train import ALONE, Processes
from mhsh.config.entries import named_entries
from mhsh.errors import UserError
from mhsh.sweep.folder import FAILED, CellState, SweepFolder

EXAMPLES = ("mhsh work runs/heads", "mhsh work gs://BUCKET/heads --distributed")


def run(sweep: Annotated[str, Parameter(name="SWEEP")], /, *, together: Count = 1, processes: Processes = ALONE) -> int:
    """Trains the cells of a sweep that no other worker trains, until all have ended.

    Start as many as you like, anywhere: each takes a cell, trains it, and takes the next one. A
    cell whose worker died is taken by another. The exit status is 2 where a cell has failed, 75
    after SIGTERM and 130 after Ctrl-C: the state is saved. Several processes train each cell
    together.

    Args:
      sweep: the folder that mhsh sweep has planned, on a disk or in a bucket
      together: train up to so many cells in one program, which differ in seeds and rates alone; on
        one device

    Raises:
      UserError: there is no sweep, another version of mhsh has planned it, or no cell can be
        trained here.
    """
    folder = SweepFolder(sweep)
    processes.check()
    for cell in folder.read_plan().cells:
        for registry, name in named_entries(cell.config):
            registry[name]  # a user's entry that is not known here is no fault of the cell
    import jax

    with processes.join():
        if together > 1 and jax.device_count() > 1:
            raise UserError(
                f"--together={together} is for a worker of one device, and this one has {jax.device_count()}; leave it out, or "
                "start a worker a device, as with CUDA_VISIBLE_DEVICES=0"
            )
        from mhsh.sweep.work import Crew, Worker

        crew = Crew()
        if jax.process_index():
            return crew.follow()
        worker = Worker(folder, CellSelection(folder), crew.train, together)
        before_end(worker.note_stop)
        stopped_by = worker.work()
        status = report_stop(stopped_by) if stopped_by is not None else say_ended(folder, worker.ended)
        crew.dismiss(status)
    return status


def say_ended(folder: SweepFolder, ended: Mapping[str, CellState]) -> int:
    """Says what has become of the cells. Returns the exit status."""
    kinds = Counter(state.kind for state in ended.values())
    print(f"All cells have ended: {', '.join(f'{count} {kind}' for kind, count in kinds.items())}")
    if kinds[FAILED]:
        name, state = next((name, state) for name, state in ended.items() if state.kind == FAILED)
        print(f"{name}: {state.reason}\nmhsh sweep --workdir={folder.arguments()} --retry tries failed cells again")
        return 2
    print(f"next: mhsh compare {folder.arguments()}")
    return 0
