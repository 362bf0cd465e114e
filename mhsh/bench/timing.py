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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

from mhsh.bench.results import BenchResults, CandidateResult, SettingResults, median_interval, ratios
from mhsh.config.schema import Config, to_dict
from mhsh.models.costs import PEAK_FLOPS
from mhsh.training.environment import environment

# Repetitions of one turn where they follow from the time that a turn is to take.
MOST_REPETITIONS = 10_000
# Names of the two configs, as on the command line. The others are compared with the first.
CONFIG, AGAINST = "config", "against"

Clock = Callable[[], float]  # seconds
Note = Callable[[str], None]  # gets lines on the progress


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """Work that can be repeated, and what is known of it beside its time."""

    name: str  # config, against, or a peer: torch-eager
    label: str  # for readers
    run: Callable[[int], None]  # so many repetitions; returns when the results are ready
    work: int  # of one repetition: tokens, or programs (compile)
    baseline: str | None  # the candidate that its time is divided by
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # further fields of its CandidateResult
    check: Callable[[], None] = lambda: None  # raises UserError where the results are not finite


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The number and the length of the timed turns of every candidate."""

    rounds: int
    repetitions: int | None = 1  # of the work in one turn; None: as many as take `seconds`
    seconds: float = 0.0
    singly: bool = True  # every repetition waits for its results and is timed alone (a latency); else the turn as a whole


@dataclasses.dataclass
class Times:
    """Seconds of one repetition of one candidate; an element a turn, in the order of the rounds."""

    repetitions: int  # in a turn
    turns: list[list[float]]  # one number for each repetition, or their mean alone: see Schedule.singly
    cpu: list[float]  # mean of a turn's repetitions: CPU time of the process, its threads and its ended children


def bench(
    kind: str,
    unit: str,
    configs: Mapping[str, Config],
    cells: Iterable[tuple[Mapping[str, int | str], Sequence[Candidate]]],
    schedule: Schedule,
    note: Note,
    **options: Any,
) -> BenchResults:
    """Times the candidates of every setting in turns, one setting after the other.

    Args:
      kind, unit, configs: as the fields of BenchResults.
      cells: the settings with their candidates; a generator makes those of a setting when its turn
        comes.
      options: what its `settings` say besides the schedule.

    Raises UserError where what a candidate computes is not finite.
    """
    is_bfloat16 = all(config.model.compute_dtype == "bfloat16" for config in configs.values())
    peak = PEAK_FLOPS.get(jax.devices()[0].device_kind) if is_bfloat16 else None
    results = []
    for setting, candidates in cells:
        times = take_turns(candidates, schedule, note)
        for candidate in candidates:
            candidate.check()
        results.append(SettingResults(dict(setting), candidate_results(candidates, times, peak)))
    return BenchResults(
        kind=kind,
        unit=unit,
        environment=environment() | _surroundings(),
        settings={"rounds": schedule.rounds, "repetitions": schedule.repetitions, "seconds": schedule.seconds} | options,
        configs={name: to_dict(config) for name, config in configs.items()},
        peak_flops=peak,
        cells=results,
    )


def take_turns(
    candidates: Sequence[Candidate],
    schedule: Schedule,
    note: Note = lambda _: None,
    clock: Clock = time.perf_counter,
    cpu_clock: Clock | None = None,
) -> dict[str, Times]:
    """The times of all candidates by name."""
    times = {candidate.name: Times(schedule.repetitions or 0, [], []) for candidate in candidates}
    for candidate in candidates if schedule.repetitions is None else ():
        note(f"trying {candidate.name}")
        times[candidate.name].repetitions = _repetitions(candidate, schedule.seconds, clock)
    for number in range(1, schedule.rounds + 1):
        note(f"round {number} of {schedule.rounds}")
        for candidate in candidates:
            taken = times[candidate.name]
            seconds, cpu = _turn(candidate, taken.repetitions, schedule.singly, clock, cpu_clock or cpu_seconds)
            taken.turns.append(seconds)
            taken.cpu.append(cpu)
    return times


def cpu_seconds() -> float:
    """CPU time of this process with all its threads, and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _repetitions(candidate: Candidate, seconds: float, clock: Clock) -> int:
    """The number of runs that take that long. The first run, which may compile, is not timed."""
    candidate.run(1)
    begin = clock()
    candidate.run(1)
    elapsed = max(clock() - begin, 1e-9)
    return min(MOST_REPETITIONS, max(1, round(seconds / elapsed)))


def _turn(candidate: Candidate, repetitions: int, singly: bool, clock: Clock, cpu_clock: Clock) -> tuple[list[float], float]:
    # On virtual machines, memory that was free for seconds has gone back to the host: a step of 4.0
    # s took 5.6 after 4 s of rest.
    candidate.run(1)
    cpu_begin, elapsed = cpu_clock(), []
    for count in [1] * repetitions if singly else [repetitions]:
        begin = clock()
        candidate.run(count)
        elapsed.append((clock() - begin) / count)
    return elapsed, (cpu_clock() - cpu_begin) / repetitions


def candidate_results(
    candidates: Sequence[Candidate], times: Mapping[str, Times], peak: float | None = None
) -> list[CandidateResult]:
    """Medians, rates and ratios to the baselines, in the order of the candidates. `peak` is the
    FLOP/s of one device by its data sheet.
    """
    by_name = {candidate.name: candidate for candidate in candidates}
    return [_result(candidate, by_name.get(candidate.baseline or ""), times, peak) for candidate in candidates]


def _result(candidate: Candidate, baseline: Candidate | None, times: Mapping[str, Times], peak: float | None) -> CandidateResult:
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
        theirs = times[baseline.name]
        their_medians = [statistics.median(turn) for turn in theirs.turns]
        share = baseline.work / candidate.work
        result.time_ratio = median_interval(ratios(medians, their_medians)).scale(share)
        # The system may count CPU time in ticks: a turn shorter than one has none.
        if all(theirs.cpu):
            result.cpu_ratio = median_interval(ratios(own.cpu, theirs.cpu)).scale(share)
    if result.flops:
        result.flops_per_second = result.flops / seconds.median / result.devices
        result.share_of_peak = result.flops_per_second / peak if peak else None
    return result


def _surroundings() -> dict[str, Any]:
    """The circumstances that may decide a time; BenchResults describes the fields."""
    return {
        "cores": cores(),
        "processor": platform.processor() or platform.machine(),
        "torch": None,
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "glibc_tunables": os.environ.get("GLIBC_TUNABLES"),
        "xla_preallocates": os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "true") != "false",
    }


def cores() -> int:
    """The number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
