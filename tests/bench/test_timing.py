"""Tests of turns, on a clock that moves only by work, and of the results made of them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence

import jax
import pytest

from mhsh.bench.results import BenchResults, Interval
from mhsh.bench.timing import MOST_REPETITIONS, Candidate, Schedule, Times, bench, candidate_results, cpu_seconds, take_turns
from mhsh.models.costs import PEAK_FLOPS
from tests.conftest import MakeConfig


class Clock:
    """Seconds that pass only by work."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Worker:
    """Takes `seconds` a repetition and `first` more for the first call; logs each call."""

    def __init__(self, name: str, clock: Clock, log: list[tuple[str, int]], seconds: float, first: float = 0.0) -> None:
        self.name, self.clock, self.log, self.seconds, self.first = name, clock, log, seconds, first

    def run(self, repetitions: int) -> None:
        self.clock.now += repetitions * self.seconds + self.first
        self.first = 0.0
        self.log.append((self.name, repetitions))


def timed(workers: Sequence[Worker], clock: Clock, schedule: Schedule) -> dict[str, Times]:
    candidates = [Candidate(name=worker.name, label="", run=worker.run, work=1, baseline=None) for worker in workers]
    return take_turns(candidates, schedule, clock=clock, cpu_clock=clock)


def test_the_first_repetition_of_a_turn_is_not_counted():
    clock, log = Clock(), []
    workers = [Worker("a", clock, log, 2.0, first=100.0), Worker("b", clock, log, 3.0, first=50.0)]
    found = timed(workers, clock, Schedule(rounds=2, repetitions=4, singly=False))
    assert log == [("a", 1), ("a", 4), ("b", 1), ("b", 4)] * 2
    assert found["a"].turns == [[2.0], [2.0]] and found["b"].turns == [[3.0], [3.0]]
    assert found["a"].cpu == [2.0, 2.0] and found["a"].repetitions == 4


def test_repetitions_that_are_timed_singly():
    clock, log = Clock(), []
    found = timed([Worker("a", clock, log, 2.0)], clock, Schedule(rounds=1, repetitions=3))
    assert log == [("a", 1)] * 4 and found["a"].turns == [[2.0, 2.0, 2.0]] and found["a"].cpu == [2.0]


@pytest.mark.parametrize(("seconds", "repetitions"), [(0.25, 4), (0.4, 2), (5.0, 1), (0.0, MOST_REPETITIONS)])
def test_as_many_repetitions_as_take_the_time_of_a_turn(seconds, repetitions):
    """The first run, which compiles, is not counted."""
    clock, log = Clock(), []
    worker = Worker("a", clock, log, seconds, first=100.0)
    found = timed([worker], clock, Schedule(rounds=1, repetitions=None, seconds=1.0, singly=False))
    assert found["a"].repetitions == repetitions
    assert log == [("a", 1)] * 3 + [("a", repetitions)]


def test_cpu_seconds_pass_during_work():
    before = cpu_seconds()
    assert sum(n * n for n in range(300_000)) > 0
    assert cpu_seconds() > before


def candidate(name: str, work: int, baseline: str | None, **facts: object) -> Candidate:
    facts = {"config": "config", "implementation": "mhsh", **facts}
    return Candidate(name=name, label=f"{name} label", run=lambda _: None, work=work, baseline=baseline, facts=facts)


def two_candidates() -> tuple[list[Candidate], dict[str, Times]]:
    """`against` does half of the work in 1.5, 3 and 0.5 times the time."""
    candidates = [
        candidate("config", 100, None, flops=400, parameters=1234, omega=234, devices=1),
        candidate("against", 50, "config", flops=200, parameters=1000, omega=0, devices=2),
    ]
    times = {
        "config": Times(1, [[2.0, 4.0, 3.0], [2.0], [4.0]], [6.0, 6.0, 6.0]),
        "against": Times(1, [[4.5], [6.0], [2.0]], [12.0, 3.0, 6.0]),
    }
    return candidates, times


def made(make_config: MakeConfig, settings: Sequence[Mapping[str, int]] = ({},), **changes: object) -> BenchResults:
    """Training results of candidates that sleep, in each of the settings, for tables."""
    configs = {"config": make_config("bert", "2l8h", **changes)}
    candidates, times = two_candidates()
    asleep = [dataclasses.replace(candidate, run=lambda count: time.sleep(1e-4 * count)) for candidate in candidates]
    cells = [(setting, asleep) for setting in settings]
    results = bench("train", "token", configs, cells, Schedule(2), lambda _: None)
    for cell in results.cells:
        cell.candidates = candidate_results(candidates, times, results.peak_flops)
    return results


def test_results_by_hand():
    first, second = candidate_results(*two_candidates())
    assert first.seconds == Interval(3.0, 2.0, 4.0, 0.75)  # turns' medians: 3, 2, 4
    assert first.rate == 100 / 3 and first.time_ratio is None
    assert first.flops_per_second == 400 / 3
    # rounds: 4.5 / 3, 6 / 2, 2 / 4, each twice as much for a unit of work
    assert second.time_ratio == Interval(3.0, 1.0, 6.0, 0.75)
    assert second.cpu_ratio is not None and second.cpu_ratio.median == 2.0
    assert second.flops_per_second == 200 / 4.5 / 2  # of one of its devices


def test_results_say_where_they_were_measured(make_config):
    results = made(make_config)
    assert results.environment["devices"]["count"] == jax.device_count() and results.environment["cores"] >= 1
    assert results.configs["config"]["model"]["num_heads"] == 8


@pytest.mark.parametrize(("dtype", "share"), [("bfloat16", 400 / 3 / 250), ("float32", None)])
def test_share_of_a_public_peak_only_where_it_is_one_of_that_dtype(make_config, monkeypatch, dtype, share):
    monkeypatch.setitem(PEAK_FLOPS, jax.devices()[0].device_kind, 250.0)
    results = made(make_config, **{"model.compute_dtype": dtype})
    assert results.cells[0].candidates[0].share_of_peak == share
