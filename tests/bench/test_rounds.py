"""Turns: the order, what is counted, and how many repetitions a turn has; on a clock that moves
only when somebody works.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from mhsh.bench.rounds import MOST_REPETITIONS, Plan, cpu_seconds, take_turns, turns


class Clock:
    """Seconds that pass by work alone."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclasses.dataclass
class Worker:
    """Takes `seconds` a repetition, `first` more for the very first call, and writes down each
    call.
    """

    name: str
    clock: Clock
    log: list[tuple[str, int]]
    seconds: float
    first: float = 0.0

    @property
    def run(self) -> Callable[[int], None]:
        return self._run

    def _run(self, repetitions: int) -> None:
        self.clock.now += repetitions * self.seconds + self.first
        self.first = 0.0
        self.log.append((self.name, repetitions))


@dataclasses.dataclass
class Rested:
    """A worker whose first repetition after somebody else's takes longer."""

    name: str
    run: Callable[[int], None]


def test_the_order_is_a_b_a_b():
    assert turns(["a", "b"], 2) == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]


def test_everybody_takes_turns_and_the_first_repetition_of_each_is_not_counted():
    clock, log = Clock(), []
    workers = [Worker("a", clock, log, 2.0, first=100.0), Worker("b", clock, log, 3.0, first=50.0)]
    found = take_turns(workers, Plan(rounds=2, repetitions=4, seconds=0.0, each=False), clock=clock, cpu_clock=clock)
    assert log == [("a", 1), ("a", 4), ("b", 1), ("b", 4)] * 2
    assert found["a"].turns == [[2.0], [2.0]] and found["b"].turns == [[3.0], [3.0]]
    assert found["a"].cpu == [2.0, 2.0] and found["a"].repetitions == 4


def test_what_a_pause_costs_is_not_counted():
    """After the others' turns the first repetition takes ten seconds more."""
    clock, log = Clock(), []
    a, b = Worker("a", clock, log, 2.0), Worker("b", clock, log, 3.0)

    def resting(worker: Worker, other: Worker) -> Callable[[int], None]:
        run = worker.run

        def after_a_pause(repetitions: int) -> None:
            worker.first = 10.0 if log and log[-1][0] == other.name else 0.0
            run(repetitions)

        return after_a_pause

    rested = [Rested("a", resting(a, b)), Rested("b", resting(b, a))]
    found = take_turns(rested, Plan(rounds=2, repetitions=2, seconds=0.0, each=False), clock=clock, cpu_clock=clock)
    assert found["a"].turns == [[2.0], [2.0]] and found["b"].turns == [[3.0], [3.0]]
    assert found["a"].cpu == [2.0, 2.0] and found["b"].cpu == [3.0, 3.0]


def test_repetitions_that_are_timed_each():
    clock, log = Clock(), []
    found = take_turns(
        [Worker("a", clock, log, 2.0)], Plan(rounds=1, repetitions=3, seconds=0.0, each=True), clock=clock, cpu_clock=clock
    )
    assert log == [("a", 1)] * 4 and found["a"].turns == [[2.0, 2.0, 2.0]] and found["a"].cpu == [2.0]


@pytest.mark.parametrize(("seconds", "repetitions"), [(0.25, 4), (0.4, 2), (5.0, 1), (0.0, MOST_REPETITIONS)])
def test_as_many_repetitions_as_take_the_time_of_a_turn(seconds, repetitions):
    """The first run, which compiles, says nothing of that."""
    clock, log = Clock(), []
    worker = Worker("a", clock, log, seconds, first=100.0)
    found = take_turns([worker], Plan(rounds=1, repetitions=None, seconds=1.0, each=False), clock=clock, cpu_clock=clock)
    assert found["a"].repetitions == repetitions
    assert log == [("a", 1)] * 3 + [("a", repetitions)]


def test_cpu_seconds_pass_while_somebody_computes():
    before = cpu_seconds()
    assert sum(n * n for n in range(300_000)) > 0
    assert cpu_seconds() > before
