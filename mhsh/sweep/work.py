"""A worker of a sweep: it claims a cell, or several that are trained together, trains them, and
takes the next, until all have ended.

A claim is the lock of the cell's run folder: of the file system on a disk, and in a bucket an
object that its holder refreshes. Where a worker dies its claim is free, there at once and here
after DEAD_SECONDS, and another worker goes on with the cell from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import itertools
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax

from mhsh import __version__
from mhsh.cluster.agreement import agree_on_signal, broadcast_message, is_same_everywhere
from mhsh.cluster.signals import StopSignals
from mhsh.config.entries import REGISTRIES, check_recorded, files_of
from mhsh.config.recorded import from_record, to_record
from mhsh.config.schema import Config
from mhsh.errors import FullDisk, Unavailable, UserError
from mhsh.storage.bucket import LostRun, is_remote
from mhsh.storage.holder import InUse, Watch, describe_holder
from mhsh.storage.outage import one_try
from mhsh.storage.run_folder import RunFolder
from mhsh.sweep.axes import Cell, parents
from mhsh.sweep.folder import ENDED, FAILED, CellState, Plan, SweepFolder
from mhsh.training.loop import HeldRun, check_own_entries, train_together
from mhsh.training.step import shared_program

TRIES = 3  # at a cell whose worker dies each time at the same place; and of a worker that finishes none
_SECONDS_BETWEEN_LOOKS = {False: 1.0, True: 10.0}  # on a disk; in a bucket, where each look is billed

# As mhsh.training.loop.train_together: yields each run when it has ended, with its error, or None.
Train = Callable[[Sequence[HeldRun], StopSignals], Iterable[tuple[HeldRun, Exception | None]]]
SelectCells = Callable[[Plan, Collection[str]], Sequence[str]]  # of a plan and the cells that have ended, those to be trained


class _Claim(NamedTuple):
    """A cell that this worker has."""

    cell: Cell
    parent: Cell | None
    run: RunFolder
    note: str  # what holding it says


class Worker:
    """Trains the cells of a sweep. Any number of workers share the folder."""

    def __init__(self, folder: SweepFolder, select: SelectCells, train: Train, together: int = 1) -> None:
        """`select` may name more cells when others have ended. Up to so many cells are trained
        `together`: those that share a program, and stand at the same step.
        """
        self._folder, self._select, self._train, self._together = folder, select, train, together
        self._watch = Watch()
        self._tries = self._trained = 0
        self._begun: list[str] = []  # cells whose try has begun and not ended
        self.ended: dict[str, CellState] = {}

    def work(self) -> int | None:
        """Returns when all cells that are needed have ended, or the number of the signal that
        stopped this worker.

        Raises UserError where another version of mhsh planned the sweep, a cell was trained with
        another file of the user's, no cell can be trained here, or the disk is full; Unavailable
        where the bucket does not answer, or another worker has taken this one's cell.
        """
        printed: list[str] = []
        self._check_files()
        while True:
            plan = self._folder.read_plan()
            if plan.writer != __version__:
                raise UserError(
                    f"{self._folder.path} was planned by mhsh {plan.writer}, and this is mhsh {__version__}: install that one, or "
                    f"plan with this one by mhsh sweep --workdir={self._folder.path} --parallel=0"
                )
            remaining = [cell for cell in self._cells(plan) if cell.name not in self.ended]
            if not remaining:
                counted, self.ended = len(self.ended), self._folder.without_retried(self.ended)
                if len(self.ended) == counted and self._folder.read_plan() is plan:  # else it has just grown
                    return None
                continue
            with contextlib.ExitStack() as locks:
                claims = self._claim_batch(plan, remaining, locks)
                stopped_by = self._try(claims)
            if stopped_by is not None:
                return stopped_by
            if claims:
                printed = []
            else:
                names = [cell.name for cell in remaining if cell.name not in self.ended]
                if names and names != printed:
                    printed = names
                    holder = describe_holder(self._folder.run_folder(names[0]).path)
                    print(f"{len(names)} cells are left, and others have them: {names[0]}: {holder}", flush=True)
                    print("waiting until they have ended, or one of them is free", flush=True)
                time.sleep(_SECONDS_BETWEEN_LOOKS[is_remote(self._folder.path)] if names else 0)

    def _check_files(self) -> None:
        """Raises UserError where a cell has a user's entry of another file than the one here: the
        others would not be comparable with it.
        """
        for cell in self._folder.read_plan().cells:
            run, differing = self._folder.run_folder(cell.name), ""
            if files_of(cell.config):
                with contextlib.suppress(UserError):  # of a damaged record: the cell says so
                    differing = check_recorded(cell.config, run.run_record(), run.path, REGISTRIES)
            if differing:
                raise UserError(f"{differing}; one file trains all cells of a sweep: put that one back, or plan another sweep")

    def note_stop(self, number: int) -> None:
        """Notes that a signal ends this process before its cells hear of it: they are none that it
        died of. A storage that does not answer is not waited for.
        """
        with one_try():
            for name in self._begun:
                self._folder.finish(name, 128 + number)

    def _cells(self, plan: Plan) -> list[Cell]:
        cells = {cell.name: cell for cell in plan.cells}
        return [cells[name] for name in self._select(plan, self.ended)]

    def _claim_batch(self, plan: Plan, cells: Sequence[Cell], locks: contextlib.ExitStack) -> list[_Claim]:
        """The first cell that nobody has, and those after it that can be trained with it."""
        claims: list[_Claim] = []

        @functools.cache
        def first_step() -> int | None:
            return claims[0].run.newest_checkpoint()

        for cell in cells:
            if len(claims) == self._together:
                break
            if not claims or self._shares_program(cell, claims[0].cell, first_step):
                claim = self._claim(plan, cell, locks)
                claims += [claim] if claim is not None else []
        return claims

    def _shares_program(self, cell: Cell, first: Cell, first_step: Callable[[], int | None]) -> bool:
        """Whether the cell would go on with the program of the first one, and from its step."""
        if shared_program(cell.config) != shared_program(first.config):
            return False
        return self._folder.run_folder(cell.name).newest_checkpoint() == first_step()

    def _claim(self, plan: Plan, cell: Cell, locks: contextlib.ExitStack) -> _Claim | None:
        """The cell, until the end of `locks`; None where it is not to be had."""
        parent = parents(plan.cells).get(cell.name)
        if self._has_ended(cell.name) or (parent is not None and not self._has_ended(parent.name)):
            return None
        with contextlib.ExitStack() as claim:
            run = RunFolder.make(self._folder.run_folder(cell.name).path)
            try:
                note = claim.enter_context(run.hold(self._watch))
            except InUse:
                return None
            if self._has_ended(cell.name):  # in the moment before
                return None
            locks.push(claim.pop_all())
        return _Claim(cell, parent, run, note)

    def _try(self, claims: Sequence[_Claim]) -> int | None:
        """Trains the cells. Returns the number of the signal that stopped this worker."""
        stop, start = StopSignals(), time.monotonic()
        ready: dict[str, HeldRun] = {}
        for claim in claims:
            print(f"{claim.cell.name} ...", flush=True)
            try:
                ready[claim.cell.name] = HeldRun(self._begin(claim), claim.run, claim.note)
            except LostRun as error:
                raise Unavailable(str(error)) from error
            except Unavailable:
                raise
            except Exception as error:
                self._note_end(claim.cell.name, error, stop, start)
        try:
            for run, error in self._train(list(ready.values()), stop) if ready else ():
                self._note_end(run.folder.path.name, error, stop, start)
        except LostRun as error:
            raise Unavailable(str(error)) from error
        return stop.signal

    def _begin(self, claim: _Claim) -> Config:
        """Notes that a try begins. Returns the config that is trained."""
        cell, parent, run, _ = claim
        self._begun.append(cell.name)
        if self._folder.begin(cell.name) > TRIES:
            raise UserError(f"{TRIES} workers have died of it at the same place; look at their logs")
        config = self._folder.run_config(cell, parent)
        if parent is not None and not config.train.start_from and not run.has_begun():
            print(f"{cell.name} trains all its steps: {parent.name} has no checkpoint from before its decay any more")
        check_own_entries(config, run.path)
        run.begin(config)
        return config

    def _note_end(self, name: str, error: Exception | None, stop: StopSignals, start: float) -> None:
        """Notes how the try at a cell has ended. The worker goes on after an error of the cell, but
        not of a full disk.
        """
        self._begun.remove(name)
        if isinstance(error, FullDisk) or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
            with contextlib.suppress(OSError):  # the next cells would train and fail, too
                self._folder.finish(name, os.EX_TEMPFAIL, "the disk is full")
            raise error
        reason = "" if error is None else str(error)
        if error is not None and not isinstance(error, UserError):
            traceback.print_exception(error)
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        self._folder.finish(name, 2 if reason else 128 + stop.signal if stop.signal else 0, reason)
        state = self._folder.outcome(name)
        print(f"{name}: {state.kind}{state.reason and ', '}{state.reason} ({time.monotonic() - start:.0f} s)", flush=True)
        self._tries, self._trained = self._tries + 1, self._trained + (state.kind != FAILED)
        if self._tries == TRIES and not self._trained:
            raise UserError(f"the first {TRIES} cells have failed here, the last one of: {reason}; look at this machine")

    def _has_ended(self, name: str) -> bool:
        if name not in self.ended:
            state = self._folder.outcome(name)
            if state.kind in ENDED:
                self.ended[name] = state
        return name in self.ended


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
        if jax.process_count() > 1:
            broadcast_message(f"cell/{next(self._cells)}", json.dumps(what))

    def follow(self) -> int:
        """Trains what process 0 says, in the other processes. Returns the exit status."""
        while "status" not in (cell := json.loads(broadcast_message(f"cell/{next(self._cells)}"))):
            held = HeldRun(from_record(cell["config"], "process 0"), RunFolder(cell["run"]), "")
            for _, error in self._train([held], StopSignals()):
                if error is not None:  # process 0 has it too, and notes it
                    print(f"mhsh: {error}", file=sys.stderr)
        return cell["status"]

    def _train(self, runs: Sequence[HeldRun], stop: StopSignals) -> Iterator[tuple[HeldRun, Exception | None]]:
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
