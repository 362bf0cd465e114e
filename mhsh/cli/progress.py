"""What becomes of the cells of a sweep while workers train them."""

from __future__ import annotations

import time

from mhsh import text
from mhsh.cli.selection import CellSelection
from mhsh.storage.bucket import is_remote
from mhsh.storage.run_record import FINISHED, RUNNING
from mhsh.sweep.folder import ENDED, CellState, SweepFolder

_SECONDS_BETWEEN_LOOKS = {False: 0.3, True: 10.0}  # on a disk; in a bucket


class Progress:
    """The states of the cells of a sweep, said when they change: which of how many it is, its
    result, and how long the others take by their FLOPs.
    """

    def __init__(self, folder: SweepFolder) -> None:
        self._folder, self._selection = folder, CellSelection(folder)
        self._seen: dict[str, str] = {}
        self._begun, self._next, self._flops = time.monotonic(), 0.0, 0.0
        self.ended: dict[str, CellState] = {}
        self._update(said=False)

    @property
    def needed_cells(self) -> list[str]:
        return self._selection(self._plan, self.ended)

    @property
    def undecided(self) -> list[str]:
        """The groups whose choosing cells have ended without a value."""
        return self._selection.undecided

    @property
    def cells_left(self) -> list[str]:
        return [name for name in self.needed_cells if name not in self.ended]

    def look(self, at_once: bool = False) -> None:
        """Says what is new, each look at all cells a while after the one before."""
        if at_once or time.monotonic() >= self._next:
            began = time.monotonic()
            self.ended = self._folder.without_retried(self.ended) if at_once else self.ended
            self._update(said=True)
            took = time.monotonic() - began
            self._next = began + max(_SECONDS_BETWEEN_LOOKS[is_remote(self._folder.path)], 10 * took)

    def _update(self, said: bool) -> None:
        self._plan = self._folder.read_plan()  # another command may have added to it
        self._costs = {cell.name: cell.cost["flops"] for cell in self._plan.cells}
        looked = -1
        while looked < len(self.ended):  # the end of those that choose makes others needed
            looked = len(self.ended)
            for name in self.cells_left:
                self._look_at(name, said)

    def _look_at(self, name: str, said: bool) -> None:
        state = self._folder.state(name)
        if state.kind in ENDED:
            self.ended[name] = state
            self._flops += self._costs[name] if said else 0.0
            if said:
                self._say_ended(name, state)
        elif state.kind == RUNNING and self._seen.get(name) != RUNNING and said:
            print(f"  {name} ...", flush=True)
        self._seen[name] = state.kind

    def _say_ended(self, name: str, state: CellState) -> None:
        words = state.kind
        if state.kind == FINISHED:
            _, losses = self._folder.run_folder(name).read_metrics().series("validation", "step", "loss")
            words += f", validation loss {text.format_loss(losses[-1])}" if len(losses) else ""
        left = sum(self._costs[other] for other in self.cells_left)
        took = text.duration(elapsed := time.monotonic() - self._begun)
        if left and self._flops:
            took += f"; about {text.duration(elapsed / self._flops * left)} left"
        reason = f", {state.reason}" if state.reason else ""
        print(f"  [{len(self.ended)}/{len(self.needed_cells)}] {name}: {words}{reason} ({took})", flush=True)
