"""A worker of a sweep: it claims a cell, trains it, and takes the next one, until all have ended.

A claim is the lock of the cell's run folder: of the file system on a disk, and in a bucket an
object that its holder refreshes. Where a worker dies its claim is free, there at once and here
after DEAD_SECONDS, and another worker goes on with the cell from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence

from mhsh import __version__
from mhsh.cluster.signals import StopSignals
from mhsh.config.schema import Config
from mhsh.errors import Unavailable, UserError
from mhsh.storage.bucket import is_remote
from mhsh.storage.bucket_lock import Watch
from mhsh.storage.guarded import LostRun
from mhsh.storage.holder import InUse, holder
from mhsh.storage.run_folder import RunFolder
from mhsh.sweep.axes import Cell, parents
from mhsh.sweep.folder import ENDED, FAILED, CellState, Plan, SweepFolder

TRIES = 3  # at a cell whose worker dies each time at the same place; and of a worker that finishes none
_SECONDS_BETWEEN_LOOKS = {False: 1.0, True: 10.0}  # on a disk; in a bucket, where each look is billed

Train = Callable[[Config, RunFolder, str, StopSignals], int | None]  # as mhsh.training.loop.train_held
Needed = Callable[[Plan, Collection[str]], Sequence[str]]  # of a plan and the cells that have ended, those to be trained


class Worker:
    """Trains the cells of a sweep, one after the other. Any number of workers share the folder."""

    def __init__(self, folder: SweepFolder, needed: Needed, train: Train) -> None:
        """`needed` may name more cells when others have ended."""
        self._folder, self._needed, self._train = folder, needed, train
        self._watch = Watch()
        self._tries = self._trained = 0
        self.ended: dict[str, CellState] = {}

    def work(self) -> int | None:
        """Returns when all cells that are needed have ended, or the number of the signal that
        stopped this worker.

        Raises:
          UserError: another version of mhsh planned the sweep, or no cell can be trained here.
          Unavailable: the bucket does not answer, or another worker has taken this one's cell.
        """
        said: list[str] = []
        while True:
            plan = self._folder.read_plan()
            if plan.writer != __version__:
                raise UserError(
                    f"{self._folder.path} was planned by mhsh {plan.writer}, and this is mhsh {__version__}: install that one, or "
                    f"plan with this one by mhsh sweep --workdir={self._folder.path} --parallel=0"
                )
            left = [cell for cell in self._cells(plan) if cell.name not in self.ended]
            if not left:
                return None
            for cell in left:
                tried, stopped_by = self._try(plan, cell)
                if stopped_by is not None:
                    return stopped_by
                if tried:
                    said = []
                    break
            else:
                names = [cell.name for cell in left if cell.name not in self.ended]
                if names and names != said:
                    said = names
                    print(f"{len(names)} cells are left, and others have them: {self._say_holder(names[0])}", flush=True)
                    print("waiting until they have ended, or one of them is free", flush=True)
                time.sleep(_SECONDS_BETWEEN_LOOKS[is_remote(self._folder.path)] if names else 0)

    def _cells(self, plan: Plan) -> list[Cell]:
        cells = {cell.name: cell for cell in plan.cells}
        return [cells[name] for name in self._needed(plan, self.ended)]

    def _say_holder(self, name: str) -> str:
        return f"{name}: {holder(self._folder.run_folder(name).path)}"

    def _try(self, plan: Plan, cell: Cell) -> tuple[bool, int | None]:
        """Whether this worker had the cell, and the number of the signal that stopped it."""
        parent = parents(plan.cells).get(cell.name)
        if self._has_ended(cell.name) or (parent is not None and not self._has_ended(parent.name)):
            return False, None
        with contextlib.ExitStack() as claim:
            try:
                run = RunFolder.made(self._folder.run_folder(cell.name).path)
                note = claim.enter_context(run.held(self._watch))
            except InUse:
                return False, None
            if self._has_ended(cell.name):  # in the moment before
                return False, None
            stop = StopSignals()
            with self._recorded(cell, stop):
                begun = self._folder.begin(cell.name)
                if begun > TRIES:
                    raise UserError(f"{TRIES} workers have died of it at the same place; look at their logs")
                config = self._folder.run_config(cell, parent)
                if parent is not None and not config.train.start_from and not run.has_begun():
                    print(f"{cell.name} trains all its steps: {parent.name} has no checkpoint from before its decay any more")
                run.begin(config)
                stopped_by = self._train(config, run, note, stop)
                stop.signal = stop.signal if stop.signal is not None else stopped_by
        return True, stop.signal

    @contextlib.contextmanager
    def _recorded(self, cell: Cell, stop: StopSignals) -> Iterator[None]:
        """Notes how the try ends that is made inside the `with`. An error of the cell is no end of
        the worker.
        """
        begun, reason = time.monotonic(), ""
        print(f"{cell.name} ...", flush=True)
        try:
            yield
        except LostRun as error:
            raise Unavailable(str(error)) from error
        except Unavailable:
            raise
        except UserError as error:
            reason = str(error)
        except Exception as error:
            traceback.print_exc()
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        self._folder.finish(cell.name, 2 if reason else 128 + stop.signal if stop.signal else 0, reason)
        state = self._folder.outcome(cell.name)
        print(f"{cell.name}: {state.kind}{state.reason and ', '}{state.reason} ({time.monotonic() - begun:.0f} s)", flush=True)
        self._tries, self._trained = self._tries + 1, self._trained + (state.kind != FAILED)
        if self._tries == TRIES and not self._trained:
            raise UserError(f"the first {TRIES} cells have failed here, the last one of: {reason}; look at this machine")

    def _has_ended(self, name: str) -> bool:
        if name not in self.ended:
            state = self._folder.outcome(name)
            if state.kind in ENDED:
                self.ended[name] = state
        return name in self.ended
