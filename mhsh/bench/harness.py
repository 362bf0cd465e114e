"""Timing candidates in turns, A B A B, so that what slows down the machine affects all alike.

A turn begins with a repetition that is not counted, so that what the others left in caches and
memory is not charged to the candidate.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax

from mhsh.bench.intervals import median_interval, ratios
from mhsh.bench.results import BenchResults, CandidateResult, CeilingResult, SettingResults
from mhsh.config.schema import Config, to_dict
from mhsh.models.costs import PEAK_FLOPS
from mhsh.training.environment import environment

# Repetitions of one turn where they are found from the time that a turn is to take.
MOST_REPETITIONS = 10_000

Clock = Callable[[], float]  # seconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """Work that can be repeated, and what is known of it beside its time."""

    name: str  # config, against, or a peer: torch-eager
    label: str  # for readers
    run: Callable[[int], None]  # so many repetitions; returns when the results are there
    work: int  # of one repetition: tokens, or programs (compile)
    baseline: str | None  # the candidate that its time is divided by
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # further fields of its CandidateResult
    check: Callable[[], None] = lambda: None  # raises UserError where the results are not finite


@runtime_checkable
class Runner(Protocol):
    """What takes a turn: a Candidate or a Ceiling."""

    @property
    def name(self) -> str:
        """The key of its times."""
        ...

    @property
    def run(self) -> Callable[[int], None]:
        """Does its work so many times, and returns when all results are there."""
        ...


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How often and how long everyone is timed."""

    rounds: int
    repetitions: int | None  # of the work in one turn; None: as many as take `seconds`
    seconds: float
    each: bool  # whether every repetition waits for its results and is timed alone (a latency); else the turn as a whole


@dataclasses.dataclass
class Times:
    """Seconds of one repetition of one candidate; an element a turn, in the order of the rounds."""

    repetitions: int  # in a turn
    turns: list[list[float]]  # one number for each repetition, or their mean alone: see Schedule.each
    cpu: list[float]  # mean of a turn's repetitions: CPU time of the process, its threads and its ended children


class Measured(NamedTuple):
    """One setting, and the times of its candidates by name."""

    setting: Mapping[str, int | str]
    candidates: Sequence[Candidate]
    times: Mapping[str, Times]


def turns(names: Sequence[str], rounds: int) -> list[tuple[int, str]]:
    """(round, name) in the order of time."""
    return [(number, name) for number in range(1, rounds + 1) for name in names]


def take_turns(
    runners: Sequence[Runner],
    schedule: Schedule,
    note: Callable[[str], None] = lambda _: None,
    clock: Clock = time.perf_counter,
    cpu_clock: Clock | None = None,
) -> dict[str, Times]:
    """The times of all runners by name. `note` gets a line on the progress."""
    by_name = {runner.name: runner for runner in runners}
    times = {name: Times(schedule.repetitions or 0, [], []) for name in by_name}
    for name, runner in by_name.items() if schedule.repetitions is None else ():
        note(f"trying {name}")
        times[name].repetitions = _repetitions(runner, schedule.seconds, clock)
    for number, name in turns(list(by_name), schedule.rounds):
        if name == runners[0].name:
            note(f"round {number} of {schedule.rounds}")
        seconds, cpu = _turn(by_name[name], times[name].repetitions, schedule.each, clock, cpu_clock or cpu_seconds)
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


def bench_results(
    kind: str,
    unit: str,
    settings: Mapping[str, Any],
    configs: Mapping[str, Config],
    measured: Sequence[Measured],
    ceilings: Mapping[str, CeilingResult],
    torch: Mapping[str, Any] | None,
) -> BenchResults:
    """What was measured, as the file has it; `mhsh.bench.results` describes the fields."""
    dtypes = {config.model.compute_dtype for config in configs.values()}
    surroundings = {
        "cores": cores(),
        "processor": platform.processor() or platform.machine(),
        "torch": torch,
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "glibc_tunables": os.environ.get("GLIBC_TUNABLES"),
        "xla_preallocates": os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "true") != "false",
    }
    peak = PEAK_FLOPS.get(jax.devices()[0].device_kind) if dtypes == {"bfloat16"} else None
    cells = []
    for setting, candidates, times in measured:
        by_name = {candidate.name: candidate for candidate in candidates}
        results = [_candidate_result(each, by_name.get(each.baseline or ""), times) for each in candidates]
        for result in results:
            _set_shares(result, ceilings, peak)
        cells.append(SettingResults(dict(setting), results))
    return BenchResults(
        kind=kind,
        unit=unit,
        environment=environment() | surroundings,
        settings=dict(settings),
        configs={name: to_dict(config) for name, config in configs.items()},
        ceilings=dict(ceilings),
        peak_flops=peak,
        cells=cells,
    )


def cores() -> int:
    """How many CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _candidate_result(candidate: Candidate, baseline: Candidate | None, times: Mapping[str, Times]) -> CandidateResult:
    own = times[candidate.name]
    medians = [statistics.median(turn) for turn in own.turns]
    seconds = median_interval(medians)
    result = CandidateResult(
        name=candidate.name,
        label=candidate.label,
        baseline=candidate.baseline,
        work=candidate.work,
        repetitions=own.repetitions,
        turns=own.turns,
        cpu=own.cpu,
        seconds=seconds,
        rate=candidate.work / seconds.median,
        time_ratio=None,
        **candidate.facts,
    )
    if baseline is not None:
        other = times[baseline.name]
        other_medians = [statistics.median(turn) for turn in other.turns]
        share = baseline.work / candidate.work
        result.time_ratio = median_interval(ratios(medians, other_medians)).scaled(share)
        # The system may count CPU time in ticks: a turn shorter than one has none.
        if all(other.cpu):
            result.cpu_ratio = median_interval(ratios(own.cpu, other.cpu)).scaled(share)
        result.best_ratio = share * min(medians) / min(other_medians)
    return result


def _set_shares(result: CandidateResult, ceilings: Mapping[str, CeilingResult], peak: float | None) -> None:
    """Sets the rates on one device, and their shares of what a device can do."""
    seconds = result.seconds.median
    if result.flops:
        result.flops_per_second = result.flops / seconds / result.devices
        result.share_of_matmul = result.flops_per_second / ceilings["matmul"].rate if "matmul" in ceilings else None
        result.share_of_peak = result.flops_per_second / peak if peak else None
    if result.bytes_accessed:
        result.bytes_per_second = result.bytes_accessed / seconds
        result.share_of_copy = result.bytes_per_second / ceilings["copy"].rate if "copy" in ceilings else None
