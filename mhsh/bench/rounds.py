"""Taking turns: every candidate is timed once a round, A B A B, so that whatever else the machine
does meets them all alike.

A turn begins with a repetition that is not counted: what others left behind is not the
candidate's, and a step in the midst of training is what is asked for.
"""

from __future__ import annotations

import dataclasses
import resource
import time
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

# Repetitions of one turn where they are found from the time that a turn is to take.
MOST_REPETITIONS = 10_000

Clock = Callable[[], float]  # seconds


@runtime_checkable
class Runner(Protocol):
    """What takes a turn."""

    @property
    def name(self) -> str:
        """By which its times are found again."""
        ...

    @property
    def run(self) -> Callable[[int], None]:
        """Does its work so many times, and returns when all results are there."""
        ...


@dataclasses.dataclass(frozen=True)
class Plan:
    """How often, and for how long, everyone is timed."""

    rounds: int
    repetitions: int | None  # of the work in one turn; None: as many as take `seconds`
    seconds: float
    each: bool  # whether every repetition waits for its results and is timed by itself (a latency); else the turn as a whole


@dataclasses.dataclass
class Times:
    """What one candidate took, in seconds of one repetition; a list a turn, in the order of the
    rounds.
    """

    repetitions: int  # in a turn
    turns: list[list[float]]  # one figure for each repetition, or one that is their mean: see Plan.each
    cpu: list[float]  # the mean of a turn's repetitions: CPU time of the process, its threads and its ended children


def turns(names: Sequence[str], rounds: int) -> list[tuple[int, str]]:
    """(round, name) in the order of time."""
    return [(number, name) for number in range(1, rounds + 1) for name in names]


def take_turns(
    runners: Sequence[Runner],
    plan: Plan,
    note: Callable[[str], None] = lambda _: None,
    clock: Clock = time.perf_counter,
    cpu_clock: Clock | None = None,
) -> dict[str, Times]:
    """The times of everyone by name. `note` is told what is going on."""
    by_name = {runner.name: runner for runner in runners}
    times = {name: Times(plan.repetitions or 0, [], []) for name in by_name}
    for name, runner in by_name.items() if plan.repetitions is None else ():
        note(f"trying {name}")
        times[name].repetitions = _repetitions(runner, plan.seconds, clock)
    for number, name in turns(list(by_name), plan.rounds):
        if name == runners[0].name:
            note(f"round {number} of {plan.rounds}")
        seconds, cpu = _turn(by_name[name], times[name].repetitions, plan.each, clock, cpu_clock or cpu_seconds)
        times[name].turns.append(seconds)
        times[name].cpu.append(cpu)
    return times


def cpu_seconds() -> float:
    """CPU time of this process with all its threads, and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _repetitions(runner: Runner, seconds: float, clock: Clock) -> int:
    """How many take so long. The first run, which may compile, is not timed."""
    runner.run(1)
    begin = clock()
    runner.run(1)
    taken = max(clock() - begin, 1e-9)
    return min(MOST_REPETITIONS, max(1, round(seconds / taken)))


def _turn(runner: Runner, repetitions: int, each: bool, clock: Clock, cpu_clock: Clock) -> tuple[list[float], float]:
    # On virtual machines, memory that was free for seconds has gone back to the host: a step of 4.0
    # s took 5.6 after 4 s of rest.
    runner.run(1)
    cpu_begin, taken = cpu_clock(), []
    for count in [1] * repetitions if each else [repetitions]:
        begin = clock()
        runner.run(count)
        taken.append((clock() - begin) / count)
    return taken, (cpu_clock() - cpu_begin) / repetitions
