"""The JSON file of a bench (its fields, how it is written, the intervals in it) and its table in a
terminal. Imports no jax.

All times are in seconds. What a kind of bench does not measure is null.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Column, Table

from mhsh.storage.files import write_new
from mhsh.text import quantity, timing

WIDTH = 100  # columns of the table, unless the terminal has more

CONFIDENCE = 0.95


class Interval(Struct, frozen=True):
    """A median, and an interval that holds the true median with probability `confidence`."""

    median: float
    low: float
    high: float
    confidence: float  # at least CONFIDENCE, or that of the whole range of too few values

    def scale(self, factor: float) -> Interval:
        """The interval times a factor above 0."""
        return Interval(factor * self.median, factor * self.low, factor * self.high, self.confidence)


def median_interval(values: Sequence[float]) -> Interval:
    """The median of independent values, with its distribution-free interval.

    Of n sorted values, the k-th smallest and the k-th largest enclose the true median with
    probability 1 - 2 P(Binomial(n, 1/2) < k), for any distribution (David and Nagaraja 2003, Order
    Statistics, section 7.1). k is the largest for which this is at least CONFIDENCE, and 1 where
    there is none: five values give 93.75 %, six 96.9 %.
    """
    ordered, n = sorted(values), len(values)
    k = max([k for k in range(1, (n + 1) // 2 + 1) if coverage(n, k) >= CONFIDENCE], default=1)
    return Interval(statistics.median(ordered), ordered[k - 1], ordered[n - k], coverage(n, k))


def coverage(n: int, k: int) -> float:
    """Probability that the k-th smallest and k-th largest of n values enclose the true median."""
    below = sum(math.comb(n, j) for j in range(k))
    return max(0.0, 1 - 2 * below / 2**n)


def ratios(values: Sequence[float], baseline: Sequence[float]) -> list[float]:
    """value / baseline of each round, so that what slows down a whole round cancels."""
    return [value / other for value, other in zip(values, baseline, strict=True)]


class CandidateResult(Struct, kw_only=True):
    """One candidate in one setting."""

    name: str  # config, against, or a peer: torch-eager
    label: str  # for readers
    baseline: str | None  # the candidate that its ratios are to; null for the first
    config: str  # whose shape and batch it has: config or against
    implementation: str  # mhsh, or the peer
    dtype: str | None = None  # of its matrix products
    devices: int
    remat_policy: str | None = None  # of mhsh: what `auto` became; no meaning in inference and decode
    parameters: int | None = None
    omega: int | None = None  # how many of them are Admin's, which peers do not have
    flops: float | None = None  # of one repetition: matrix products by formula, without recomputation
    memory: dict[str, int] | None = None  # bytes a device; mhsh: arguments, temporaries, peak by XLA; CUDA peers: peak by torch
    work: int  # units of one repetition
    repetitions: int = 0  # in a turn
    turns: list[list[float]] = []  # a list a round: time of each repetition, or (train) their mean alone
    cpu: list[float] = []  # CPU seconds of a repetition, a number a round: all threads, and children that have ended
    seconds: Interval  # of a repetition, over the medians of the turns
    rate: float | None = None  # units a second, at the median
    time_ratio: Interval | None  # time a unit over the baseline's in the same round; above 1 is slower
    cpu_ratio: Interval | None = None  # the same of CPU seconds
    flops_per_second: float | None = None  # of one device
    share_of_matmul: float | None = None  # that over the ceiling
    share_of_peak: float | None = None  # that over peak_flops

    @property
    def memory_bytes(self) -> int | None:
        """The bytes that must fit in a device's memory at once; None where they are not known."""
        if not self.memory:
            return None
        # On a CPU, XLA's peak leaves out the temporaries.
        return max(self.memory.get("peak", 0), self.memory.get("arguments", 0) + self.memory.get("temporaries", 0))


class SettingResults(Struct):
    """All candidates in one setting, in the order of their turns."""

    setting: dict[str, Any]  # batch and length (train, inference), or what else the kind varies
    candidates: list[CandidateResult]


class CeilingResult(Struct):
    """The most that one device can do: a big matrix product (matmul)."""

    work: int  # FLOPs of one repetition
    turns: list[list[float]]
    rate: float  # FLOP/s, in the best turn
    dtype: str
    size: int  # rows and columns of the factors


class BenchResults(Struct, kw_only=True):
    """A whole file."""

    format: int = 1
    kind: str  # train, inference, compile, input or decode
    unit: str = ""  # of work: token (train, inference, input), program (compile), target token (decode)
    # Versions, git_revision, devices and processes as in a run.json; cores that the process may
    # use; processor; torch: null, or versions, threads and device of the peers; xla_preallocates;
    # omp_wait_policy and glibc_tunables, where they are set.
    environment: dict[str, Any]
    settings: dict[str, Any] = {}  # the options of the bench
    configs: dict[str, dict[str, Any]]  # config and against, as config.json has them
    ceilings: dict[str, CeilingResult] = {}  # by name; none where the kind measures none
    peak_flops: float | None = None  # FLOP/s of a device by its data sheet (bf16); null for other dtypes and devices
    cells: list[SettingResults]  # one for each setting


def write(results: BenchResults, out: str) -> None:
    """Writes the results into a new file. Raises UserError where it exists."""
    write_new(out, json.dumps(msgspec.to_builtins(results), indent=1) + "\n")


def show(results: BenchResults) -> None:
    """Prints what was measured: the candidates, a row for each setting and candidate, and what the
    columns mean.
    """
    console = Console(width=max(WIDTH, Console().width))
    settings = [cell.setting for cell in results.cells]
    varied = [key for key in settings[0] if len({str(setting[key]) for setting in settings}) > 1]
    if "setting" in varied:  # its name says the rest
        varied = ["setting"]
    rows = [
        {key.upper(): str(cell.setting[key]) for key in varied} | {"": candidate.name} | _texts(candidate, results.unit)
        for cell in results.cells
        for candidate in cell.candidates
    ]
    titles = [title for title in rows[0] if any(row[title] for row in rows)]
    columns = [Column(title, min_width=len(title), no_wrap=not title) for title in titles]
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(row[title] or "-" for title in titles))
    fixed = [f"{key.replace('_', ' ')} {value}" for key, value in settings[0].items() if key not in varied]
    for paragraph in (_head(results, fixed), *map(_candidate, results.cells[0].candidates), "", table, "", _foot(results)):
        console.print(paragraph, highlight=False, markup=False)


def _head(results: BenchResults, fixed: list[str]) -> str:
    environment = results.environment
    device, torch = environment["devices"], environment["torch"] or {"versions": {}}
    versions = {"jax": environment["versions"]["jax"]} | torch["versions"]
    return (
        f"mhsh bench {results.kind}{': ' if fixed else ''}{', '.join(fixed)}; {device['count']} x {device['kind']}, "
        f"{environment['cores']} cores; {', '.join(f'{name} {version}' for name, version in versions.items())}"
    )


def _candidate(result: CandidateResult) -> str:
    parameters = "" if result.parameters is None else f", {result.parameters:,} parameters"
    return f"{result.name}: {result.label}{parameters}" + (f" ({result.omega:,} of them omega)" if result.omega else "")


def _texts(result: CandidateResult, unit: str) -> dict[str, str]:
    """The text of each column by its title; a column without any text is left out."""
    ratio, cpu, matmul, peak = result.time_ratio, result.cpu_ratio, result.share_of_matmul, result.share_of_peak
    return {
        "TIME": timing(result.seconds.median),
        "INTERVAL": f"{timing(result.seconds.low)} to {timing(result.seconds.high)}",
        f"{unit.upper()}S/S": quantity(result.rate, "").strip(),
        "RATIO": f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})" if ratio else "",
        "CPU": f"{cpu.median:.2f}" if cpu else "",
        "MATMUL": f"{matmul:.1%}" if matmul else "",
        "PEAK": f"{peak:.1%}" if peak else "",
        "MEMORY": quantity(result.memory_bytes, "B"),
    }


def _foot(results: BenchResults) -> str:
    first = results.cells[0].candidates[0]
    return (
        f"Time: the median of {len(first.turns)} alternating turns, with its distribution-free interval "
        f"({first.seconds.confidence:.1%}, as all intervals here). Ratio: time per {results.unit} over that of the baseline in "
        "the same round; above 1 is slower. CPU: the same of CPU seconds. Matmul: FLOP/s over those of a big matrix product. "
        "Peak: over those of the data sheet."
    )
