"""Where the wall time of a run goes: how much of it trains, and what the rest is spent on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

# What run.json's `wall_seconds` has. `waiting` is for data: while the host waits, the device may
# still be at the step before. `repeated` are steps whose results were lost when a process died.
KINDS = ("training", "preparing", "compiling", "restoring", "saving", "evaluating", "waiting", "repeated")

Item = TypeVar("Item")


class WallTime:
    """Seconds by kind. At each moment one kind is running, at first `preparing`."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(KINDS, 0.0)
        self._kind, self._since = "preparing", time.monotonic()

    def add(self, before: Mapping[str, float]) -> None:
        """Adds seconds of an earlier process."""
        for kind in KINDS:
            self._seconds[kind] += before.get(kind, 0.0)

    @contextlib.contextmanager
    def spent(self, kind: str) -> Iterator[None]:
        """What runs inside the context is of this kind, except for contexts inside it."""
        before = self._switch(kind)
        try:
            yield
        finally:
            self._switch(before)

    def waiting(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items; the time until each of them is there is waited."""
        iterator = iter(items)
        while True:
            with self.spent("waiting"):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item

    def seconds(self) -> dict[str, float]:
        """Up to now."""
        self._switch(self._kind)
        return {kind: round(seconds, 3) for kind, seconds in self._seconds.items()}

    def _switch(self, kind: str) -> str:
        now, before = time.monotonic(), self._kind
        self._seconds[before] += now - self._since
        self._kind, self._since = kind, now
        return before


def format_wall_time(seconds: Mapping[str, float]) -> str:
    """93 % of 4 min training; compiling 3 %, ..., the largest first."""
    total = sum(seconds.values()) or 1.0
    others = sorted((kind for kind in seconds if kind != "training"), key=lambda kind: -seconds[kind])
    named = [f"{kind} {seconds[kind] / total:.0%}" for kind in others if seconds[kind] >= 0.005 * total]
    return f"{seconds['training'] / total:.0%} of the wall time was training" + (f"; {', '.join(named)}" if named else "")
