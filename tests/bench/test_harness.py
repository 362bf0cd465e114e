"""Tests of turns, on a clock that moves only by work, and of the results made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax
import pytest

from mhsh.bench.harness import MOST_REPETITIONS, Candidate, Measured, Schedule, Times, bench_results, cpu_seconds, take_turns, turns
from mhsh.bench.intervals import Interval
from mhsh.bench.results import BenchResults, CeilingResult
from mhsh.models.costs import PEAK_FLOPS
from tests.conftest import MakeConfig


class Clock:
    """Seconds that pass only by work."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclasses.dataclass
class Worker:
    """Takes `seconds` a repetition and `first` more for the first call; logs each call."""

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
    """A worker whose first repetition after that of another worker takes longer."""

    name: str
    run: Callable[[int], None]


def test_the_order_is_a_b_a_b():
    assert turns(["a", "b"], 2) == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]


def test_the_first_repetition_of_a_turn_is_not_counted():
    clock, log = Clock(), []
    workers = [Worker("a", clock, log, 2.0, first=100.0), Worker("b", clock, log, 3.0, first=50.0)]
    found = take_turns(workers, Schedule(rounds=2, repetitions=4, seconds=0.0, each=False), clock=clock, cpu_clock=clock)
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
    found = take_turns(rested, Schedule(rounds=2, repetitions=2, seconds=0.0, each=False), clock=clock, cpu_clock=clock)
    assert found["a"].turns == [[2.0], [2.0]] and found["b"].turns == [[3.0], [3.0]]
    assert found["a"].cpu == [2.0, 2.0] and found["b"].cpu == [3.0, 3.0]


def test_repetitions_that_are_timed_each():
    clock, log = Clock(), []
    found = take_turns(
        [Worker("a", clock, log, 2.0)], Schedule(rounds=1, repetitions=3, seconds=0.0, each=True), clock=clock, cpu_clock=clock
    )
    assert log == [("a", 1)] * 4 and found["a"].turns == [[2.0, 2.0, 2.0]] and found["a"].cpu == [2.0]


@pytest.mark.parametrize(("seconds", "repetitions"), [(0.25, 4), (0.4, 2), (5.0, 1), (0.0, MOST_REPETITIONS)])
def test_as_many_repetitions_as_take_the_time_of_a_turn(seconds, repetitions):
    """The first run, which compiles, is not counted."""
    clock, log = Clock(), []
    worker = Worker("a", clock, log, seconds, first=100.0)
    found = take_turns([worker], Schedule(rounds=1, repetitions=None, seconds=1.0, each=False), clock=clock, cpu_clock=clock)
    assert found["a"].repetitions == repetitions
    assert log == [("a", 1)] * 3 + [("a", repetitions)]


def test_cpu_seconds_pass_during_work():
    before = cpu_seconds()
    assert sum(n * n for n in range(300_000)) > 0
    assert cpu_seconds() > before


CEILINGS = {
    "matmul": CeilingResult(dtype="float32", size=1024, unit="FLOP", work=8, turns=[[1.0]], rate=1000.0),
    "copy": CeilingResult(bytes=64, unit="byte", work=128, turns=[[1.0]], rate=500.0),
}


def candidate(name: str, work: int, baseline: str | None, **facts: object) -> Candidate:
    facts = {"config": "config", "implementation": "mhsh", **facts}
    return Candidate(name=name, label=f"{name} label", run=lambda _: None, work=work, baseline=baseline, facts=facts)


def two_candidates() -> tuple[list[Candidate], dict[str, Times]]:
    """`against` does half of the work in 1.5, 3 and 0.5 times the time."""
    candidates = [
        candidate("config", 100, None, flops=400, bytes_accessed=50, parameters=1234, omega=234, devices=1),
        candidate("against", 50, "config", flops=200, bytes_accessed=None, parameters=1000, omega=0, devices=2),
    ]
    times = {
        "config": Times(1, [[2.0, 4.0, 3.0], [2.0], [4.0]], [6.0, 6.0, 6.0]),
        "against": Times(1, [[4.5], [6.0], [2.0]], [12.0, 3.0, 6.0]),
    }
    return candidates, times


def made(make_config: MakeConfig, settings: Sequence[Mapping[str, int]] = ({},), **changes: object) -> BenchResults:
    """Training results of the two candidates in each of the settings."""
    measured = [Measured(setting, *two_candidates()) for setting in settings]
    configs = {"config": make_config("bert", "2l8h", **changes)}
    return bench_results("train", "token", {"rounds": 3}, configs, measured, CEILINGS, None)


def test_results_by_hand(make_config):
    first, second = made(make_config).cells[0].candidates
    assert first.seconds == Interval(3.0, 2.0, 4.0, 0.75)  # turns' medians: 3, 2, 4
    assert first.rate == 100 / 3 and first.time_ratio is None
    assert first.flops_per_second == 400 / 3 and first.share_of_matmul == 400 / 3 / 1000
    assert first.bytes_per_second == 50 / 3 and first.share_of_copy == 50 / 3 / 500
    # rounds: 4.5 / 3, 6 / 2, 2 / 4, each twice as much for a unit of work
    assert second.time_ratio == Interval(3.0, 1.0, 6.0, 0.75)
    assert second.cpu_ratio is not None and second.cpu_ratio.median == 2.0 and second.best_ratio == 2.0
    assert second.flops_per_second == 200 / 4.5 / 2  # of one of its devices
    assert second.bytes_per_second is None and second.share_of_copy is None


def test_results_say_where_they_were_measured(make_config):
    results = made(make_config)
    assert results.environment["devices"]["count"] == jax.device_count() and results.environment["cores"] >= 1
    assert results.configs["config"]["model"]["num_heads"] == 8


@pytest.mark.parametrize(("dtype", "share"), [("bfloat16", 400 / 3 / 250), ("float32", None)])
def test_share_of_a_public_peak_only_where_it_is_one_of_that_dtype(make_config, monkeypatch, dtype, share):
    monkeypatch.setitem(PEAK_FLOPS, jax.devices()[0].device_kind, 250.0)
    results = made(make_config, **{"model.compute_dtype": dtype})
    assert results.cells[0].candidates[0].share_of_peak == share
