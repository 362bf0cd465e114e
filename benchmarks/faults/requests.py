"""Runs in a bucket whose requests fail, each of them in seven ways.

    python -m benchmarks.faults.requests FOLDER [--faults=503,reset] [--spacing=8] [--runs=8]

A tiny run is trained through a proxy in front of an emulator of Google Cloud Storage, from its
first request to its last; so is one that goes on from its first checkpoint, as after a kill. Every
SPACING-th of its requests fails; the next run begins one request later, so that in SPACING runs
each has failed. Two faults fail one request a run: the first of each kind, a method and a name
without numbers. A run must end as the unbroken one: the same rows, and the same checkpoints to the
bit. A save may be left out where the storage does not answer, and the run says so. Or it ends with
status 75 (2 where the login is refused) and one line; then the same command must end as the
unbroken run, and another run tries the requests after that one.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import json
import os
import queue
import random
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.faults.table import CONFIG, ROOT, TIMINGS, Ended, one_line, use_cache, write_text
from tests.faulty_bucket import FaultyBucket
from tests.forks import Fork

FAULTS = (502, 503, 429, 401, "reset", "silent", "cut")
ALONE = (401, "silent")  # one a run: the first ends it, the other takes half a minute
PARTS = ("started", "resumed")
STEPS, INTERVAL, LIMIT = 4, 2, 400.0  # LIMIT: seconds of one command
TOO_LONG = -9  # the status of a command that was killed after them
SHORT = [
    *(flag for flag in CONFIG if "interval" not in flag and "num_steps" not in flag),
    f"--config.train.num_steps={STEPS}",
    f"--config.train.checkpoint_interval={INTERVAL}",
    "--config.train.log_interval=1",
    "--config.train.eval_interval=0",
    "--config.optimizer.warmup_steps=1",
]


class Fault(NamedTuple):
    part: str
    kind: int | str
    first: int  # the number of the first request that fails
    spacing: int  # that of the next is by so much larger


class ProxiedBucket:
    """A bucket of its own, with the proxy in front of it."""

    def __init__(self, work: Path, number: int) -> None:
        self.work = work / f"bucket-{number}"
        self.port, self.trials = 18700 + os.getpid() % 900 + number * 1000, 0
        self.direct = f"http://127.0.0.1:{self.port}"

    @contextlib.contextmanager
    def serving(self, text: Path) -> Iterator[ProxiedBucket]:
        self.work.mkdir()
        self.text = text
        command = [sys.executable, "-m", "tests.bucket_server", str(self.port), "runs"]
        with open(self.work / "emulator.log", "wb") as log:
            emulator = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            for _ in range(600):
                with contextlib.suppress(OSError):
                    self.get("storage/v1/b")
                    break
                time.sleep(0.1)
            self.proxy = FaultyBucket(self.direct)
            with self.proxy.serving():
                yield self
        finally:
            emulator.terminate()
            emulator.wait()

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"{self.direct}/{path}", timeout=60) as answer:
            return answer.read()

    def objects(self, run: str) -> dict[str, bytes]:
        """All of a run, by the name in its folder."""
        listing = json.loads(self.get(f"storage/v1/b/runs/o?prefix={run}/&maxResults=9999"))
        names = [item["name"] for item in listing.get("items", ())]
        return {name.removeprefix(f"{run}/"): self.get(f"runs/{urllib.parse.quote(name)}") for name in names}

    def put(self, run: str, objects: dict[str, bytes]) -> None:
        for name, content in objects.items():
            where = f"{self.direct}/upload/storage/v1/b/runs/o?uploadType=media&name={urllib.parse.quote(f'{run}/{name}', safe='')}"
            with urllib.request.urlopen(urllib.request.Request(where, data=content, method="POST"), timeout=60):
                pass

    def train(self, run: str) -> Ended:
        self.trials += 1
        arguments = ["train", *SHORT, f"--config.data.source=text:{self.text}", f"--workdir=gs://runs/{run}"]
        address = self.proxy.address
        process = Fork(arguments, os.environ | {"STORAGE_EMULATOR_HOST": address, "TENSORSTORE_GCS_HTTP_URL": address})
        try:
            out, err = process.communicate(LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        return Ended(process.wait(), err, out)

    def train_with(self, run: str, fault: Fault | None = None) -> tuple[Ended, list[str]]:
        """Trains, and returns how it ended and the requests that failed (without a fault: all)."""
        begin, failed = len(self.proxy.requests), list[str]()

        def decide(number: int, method: str, path: str) -> int | str | None:
            at = number - begin
            if fault is None or (at >= fault.first and (at - fault.first) % fault.spacing == 0):
                failed.append(f"{at} {kind_of(method, path)}")
                return fault and fault.kind
            return None

        self.proxy.decide = decide
        ended = self.train(run)
        self.proxy.decide = lambda number, method, path: None
        return ended, failed


def kind_of(method: str, path: str) -> str:
    """A request without what differs from run to run."""
    path = urllib.parse.unquote(urllib.parse.unquote(path))
    name = re.search(r"here/run(?:-\d+)?(/[^?&]*)?", path)
    file = re.sub(r"[0-9a-f]{32}", "ID", (name[1] or "/") if name else "bucket").strip("/") or "folder"
    file = re.sub(r"checkpoints/\d+", "checkpoints/N", re.sub(r"(events)\..*", r"\1", file))
    file = re.sub(r"(d|part|rows|metrics)[-./][-\d.]+", r"\1/N", file)
    return f"{method} {'list ' if re.search('/o[?](?!.*uploadType)', path) and method == 'GET' else ''}{file}"


def first_by_kind(requests: Sequence[str]) -> list[int]:
    """The numbers of the first requests of each kind, from lines of a number and a kind."""
    first = dict[str, int]()
    for line in requests:
        number, kind = line.split(" ", 1)
        first.setdefault(kind, int(number))
    return list(first.values())


def result(objects: dict[str, bytes]) -> list[Any]:
    """The rows without times, the checkpoints, and the checksum of every array in them."""
    names = sorted(name for name in objects if name.endswith(".jsonl"))
    lines = b"".join(objects[name] for name in names).splitlines()
    rows = sorted(({key: value for key, value in json.loads(line).items() if key not in TIMINGS} for line in lines), key=str)
    steps = sorted(name for name in objects if name.endswith("/commit_success.txt") and name.count("/") == 2)
    sums = [json.loads(objects[name]) for name in sorted(objects) if re.fullmatch(r"checkpoints/\d+/manifest/metadata", name)]
    return [*rows, steps, *sums]


def drop_checkpoint(objects: dict[str, bytes], step: int) -> dict[str, bytes]:
    """The objects of a run without those of its checkpoint of a step."""
    return {name: content for name, content in objects.items() if not name.startswith(f"checkpoints/{step}/")}


def killed_run(objects: dict[str, bytes]) -> dict[str, bytes]:
    """The objects that a kill after the first checkpoint leaves; rows may be newer than it."""
    record = json.loads(objects["run.json"]) | {"checkpoint": INTERVAL, "status": "running"}
    return drop_checkpoint(objects, STEPS) | {"run.json": json.dumps(record).encode()}


def problem_of(bucket: ProxiedBucket, fault: Fault, state: dict[str, bytes], whole: dict[str, bytes]) -> tuple[list[str], str, str]:
    """(the requests that failed, how the run ended, what is wrong: empty for nothing)."""
    run, wrong = f"here/run-{bucket.trials}", []
    bucket.put(run, state)
    ended, failed = bucket.train_with(run, fault)
    if ended.status not in ((0, 75, 2) if fault.kind == 401 else (0, 75)):
        wrong.append("hangs" if ended.status == TOO_LONG else f"ends with {ended.status}: {ended.error.strip()[-600:]}")
    elif "Traceback" in ended.error or (ended.status and not is_told_once(ended.error)):
        wrong.append(f"not one line: {ended.error.strip()[-600:]}")
    if ended.status:
        again, _ = bucket.train_with(run)
        if again.status:
            wrong.append(f"the same command then ends with {again.status}: {again.error.strip()[-600:]}")
    # A save that an outage has made the run leave out is said; the next has all.
    saved = [whole, drop_checkpoint(whole, INTERVAL)][: 1 + ("no checkpoint, as" in ended.output)]
    if result(bucket.objects(run)) not in map(result, saved):
        wrong.append("another result")
    return failed, str(ended.status), "; ".join(wrong)


def is_told_once(error: str) -> bool:
    """Whether the end is told in one line, after what is said of an outage that is borne."""
    lines = [line for line in error.splitlines() if "trying again for" not in line and "answers again" not in line]
    return one_line("\n".join(lines))


class FaultTable:
    """A table of what became of each fault, which is printed as soon as it is known."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
        self.bad: list[str] = []

    def add(self, fault: Fault, failed: list[str], status: str, wrong: str) -> None:
        row = self.counts[str(fault.kind), fault.part]
        row["runs"] += 1
        row["borne"] += len(failed) - (status != "0")
        row[f"then {status}"] += status != "0"
        row["WRONG"] += bool(wrong)
        last = failed[-1] if failed else "none"
        line = f"{fault.kind} {fault.part}, from {fault.first} by {fault.spacing}: {len(failed)}, the last {last}: {status} {wrong}"
        print(f"{'FAILS' if wrong else 'ok   '} {line}", flush=True)
        self.bad += [line] if wrong else []

    def show(self) -> None:
        print("| fault | run | requests that failed | of them borne | ended with 75 or 2, then went on | wrong |")
        for (kind, part), row in sorted(self.counts.items()):
            ends = {name.removeprefix("then "): n for name, n in row.items() if name.startswith("then ") and n}
            told = ", ".join(f"{n} by {status}" for status, n in ends.items()) or "0"
            print(f"| {kind} | {part} | {row['borne'] + sum(ends.values())} | {row['borne']} | {told} | {row['WRONG']} |")


def experiment(work: Path, faults: Sequence[int | str], spacing: int, runs: int, seed: int, workers: int) -> list[str]:
    """Prints a line a run, and the table; returns the runs with a problem."""
    work.mkdir(parents=True)
    use_cache(work)
    os.environ["NO_GCE_CHECK"] = "true"
    buckets = [ProxiedBucket(work, number) for number in range(workers)]
    text, free, table = write_text(work), queue.Queue[ProxiedBucket](), FaultTable()
    with contextlib.ExitStack() as stack:
        for bucket in buckets:
            free.put(stack.enter_context(bucket.serving(text)))
        states: dict[str, dict[str, bytes]] = {PARTS[0]: {}}

        def train_unbroken(run: str, part: str) -> list[str]:
            buckets[0].put(run, states[part])
            ended, asked = buckets[0].train_with(run)
            assert ended.status == 0, ended.error
            return asked

        train_unbroken("here/run", PARTS[0])  # compiles the programs of all others
        requests = {PARTS[0]: train_unbroken("here/run-0", PARTS[0])}
        whole = buckets[0].objects("here/run-0")
        states[PARTS[1]] = killed_run(whole)
        requests[PARTS[1]] = train_unbroken("here/run-1", PARTS[1])
        kinds = {part: first_by_kind(asked) for part, asked in requests.items()}
        print(", ".join(f"{part}: {len(requests[part])} requests of {len(kinds[part])} kinds" for part in PARTS), flush=True)

        def try_fault(fault: Fault) -> None:
            bucket = free.get()
            status = "75"
            while status != "0" and fault.first < 2 * len(requests[fault.part]):
                failed, status, wrong = problem_of(bucket, fault, states[fault.part], whole)
                table.add(fault, failed, status, wrong)
                if not failed or fault.kind in ALONE:
                    break
                fault = fault._replace(first=int(failed[-1].split()[0]) + spacing)
            free.put(bucket)

        generator = random.Random(seed)
        drawn = []
        for kind in faults:
            for part in PARTS:
                if kind in ALONE:
                    drawn += [Fault(part, kind, first, 10**9) for first in kinds[part]]
                else:
                    drawn += [Fault(part, kind, first, spacing) for first in generator.sample(range(spacing), min(runs, spacing))]
        generator.shuffle(drawn)  # the rows known so far are a sample of all
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            for _ in pool.map(try_fault, drawn):
                pass
    table.show()
    return table.bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--faults", default=",".join(map(str, FAULTS)), help="some of them (default: all)")
    parser.add_argument("--spacing", type=int, default=8, help="every so-many-th request of a run fails (default: 8)")
    parser.add_argument(
        "--runs",
        type=int,
        default=8,
        help="of each fault (default: 8; with 8 by 8, each request fails; those that fail alone: one of each kind)",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    faults = [int(kind) if kind.isdecimal() else kind for kind in options.faults.split(",")]
    return 1 if experiment(options.folder.absolute(), faults, options.spacing, options.runs, options.seed, options.workers) else 0


if __name__ == "__main__":
    sys.exit(main())
