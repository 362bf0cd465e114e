"""Measures what the rows of a run cost as it gets longer: a flush into a bucket, and a resume.

  python -m benchmarks.rows flush [--rounds=15]      seconds, requests and bytes of 10 rows more
  python -m benchmarks.rows resume [--rows=1000000]  CPU-seconds and memory of finding
                                                     nothing to cut, then of reading a curve

The bucket is the emulator of the tests on this machine. Prints one JSON object for each length.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mhsh.storage.bucket import check_bucket
from mhsh.storage.run_folder import RunFolder
from tests.buckets import bucket_variables, emulator
from tests.faulty_bucket import FaultyBucket

LENGTHS = (1_000, 10_000, 100_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["flush", "resume"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measured = flushes(Path(folder), options.rounds) if options.what == "flush" else [resume(Path(folder), options.rows)]
        for each in measured:
            print(json.dumps(each), flush=True)


def row(step: int) -> dict[str, Any]:
    """A row as training logs it."""
    spent = {"tokens": 8192 * step, "flops": 123456789012 * step, "seconds": 0.0312 * step}
    rates = {"tokens_per_second": 262144.123, "flops_per_second": 3.95e12, "grad_norm": 1.2345678, "learning_rate": 0.00123}
    return {"step": step, "split": "train", **spent, "loss": 3.21987654, **rates, "batch": f"{step:016x}"}


def flushes(folder: Path, rounds: int) -> Iterator[dict[str, Any]]:
    """Medians for each length, whose rounds alternate."""
    with emulator(folder / "log", "runs") as address, FaultyBucket(address).serving() as bucket:
        os.environ.update(bucket_variables(bucket.address))
        check_bucket("gs://runs")
        runs = {length: RunFolder(f"gs://runs/{length}") for length in LENGTHS}
        for length, run in runs.items():
            run.append_metrics([row(step) for step in range(length)])
            run.append_metrics([row(length)])
        taken: dict[int, list[float]] = {length: [] for length in LENGTHS}
        requests, sizes = {}, {}
        for number in range(rounds):
            for length, run in runs.items():
                begin, start = len(bucket.requests), time.perf_counter()
                run.append_metrics([row(length + 10 * number + each) for each in range(10)])
                taken[length].append(time.perf_counter() - start)
                requests[length], sizes[length] = len(bucket.requests) - begin, sum(bucket.sent[begin:])
    for length in LENGTHS:
        median = statistics.median(taken[length])
        yield {"rows": length, "seconds": round(median, 4), "requests": requests[length], "bytes_sent": sizes[length]}


def resume(folder: Path, rows: int) -> dict[str, Any]:
    run = RunFolder(folder)
    for begin in range(0, rows, 10_000):
        run.append_metrics([row(step) for step in range(begin, begin + 10_000)])
    begin, cut = largest_mb(), cpu_seconds(lambda: run.cut_metrics(rows, rows, False))
    more = largest_mb() - begin
    read = cpu_seconds(lambda: run.read_metrics().series("train", "step", "loss"))
    return {"rows": rows, "cut_cpu_seconds": cut, "cut_more_mb": more, "read_cpu_seconds": read, "largest_mb": largest_mb()}


def largest_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def cpu_seconds(act: Callable[[], object]) -> float:
    start = time.process_time()
    act()
    return round(time.process_time() - start, 2)


if __name__ == "__main__":
    main()
