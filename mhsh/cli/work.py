"""mhsh work: trains the cells of a sweep, beside any number of other workers."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from mhsh.cli.early_stop import before_end, report_stop
from mhsh.cli.parser import Count
from mhsh.cli.selection import CellSelection
from mhsh.cli.train import ALONE, Processes
from mhsh.config.entries import named_entries
from mhsh.config.recorded import from_record, to_record
from mhsh.errors import Unavailable, UserError
from mhsh.storage.run_folder import RunFolder
from mhsh.sweep.folder import FAILED, CellState, SweepFolder

if TYPE_CHECKING:
    from mhsh.cluster.signals import StopSignals
    from mhsh.training.loop import HeldRun

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
        crew = Crew()
        if jax.process_index():
            return crew.follow()
        from mhsh.sweep.work import Worker

        worker = Worker(folder, CellSelection(folder), crew.train, together)
        before_end(worker.note_stop)
        stopped_by = worker.work()
        status = report_stop(stopped_by) if stopped_by is not None else say_ended(folder, worker.ended)
        crew.dismiss(status)
    return status


class Crew:
    """The processes of a worker, often one. The first says which cell all of them train."""

    def __init__(self) -> None:
        self._cells, self._failures = itertools.count(), itertools.count()

    def train(self, runs: Sequence[HeldRun], stop: StopSignals) -> Iterator[tuple[HeldRun, Exception | None]]:
        """Trains cells together, of which several processes have one; process 0 calls it, and holds
        their run folders. Yields each when it has ended, and its error.
        """
        self._tell({"run": str(runs[0].folder.path), "config": to_record(runs[0].config)})
        return self._train(runs, stop)

    def dismiss(self, status: int) -> None:
        """Ends all processes with this exit status; process 0 calls it."""
        self._tell({"status": status})

    def _tell(self, what: dict[str, Any]) -> None:
        import jax

        from mhsh.cluster.agreement import broadcast_message

        if jax.process_count() > 1:
            broadcast_message(f"cell/{next(self._cells)}", json.dumps(what))

    def follow(self) -> int:
        """Trains what process 0 says, in the other processes. Returns the exit status."""
        from mhsh.cluster.agreement import broadcast_message
        from mhsh.cluster.signals import StopSignals
        from mhsh.training.loop import HeldRun

        while "status" not in (cell := json.loads(broadcast_message(f"cell/{next(self._cells)}"))):
            held = HeldRun(from_record(cell["config"], "process 0"), RunFolder(cell["run"]), "")
            for _, error in self._train([held], StopSignals()):
                if error is not None:  # process 0 has it too, and notes it
                    print(f"mhsh: {error}", file=sys.stderr)
        return cell["status"]

    def _train(self, runs: Sequence[HeldRun], stop: StopSignals) -> Iterator[tuple[HeldRun, Exception | None]]:
        from mhsh.cluster.agreement import agree_on_signal, is_same_everywhere
        from mhsh.training.loop import train_together

        with contextlib.closing(train_together(runs, stop)) as training:
            for held, ended in training:
                if isinstance(ended, Exception):
                    try:
                        is_same_everywhere(f"failed/{next(self._failures)}", "")
                    except UserError as error:
                        raise Unavailable(f"the processes of this worker did not fail together ({error}): {ended}") from ended
                    yield held, ended
                else:
                    stop.signal = agree_on_signal(stop.signal)
                    yield held, None
        gc.collect()  # the next cells need the memory of the device


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
