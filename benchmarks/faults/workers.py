"""Three workers of one sweep in an emulated bucket, which die, freeze and come late at random.

    python -m benchmarks.faults.workers FOLDER [--runs=20] [--seed=0] [--stopped=60] [--together=1]

Twelve small cells are trained by one worker on a disk, of which two must equal the runs of `mhsh
train` to the digit: the first, and the last one of its process. Then, in every run, three workers
train the same cells in a bucket; the first of them is two processes of jax. At random times one is
killed, one is stopped for so many seconds, and one comes late. A worker that ends with another
status than 0 is started again after a moment, as a launcher does. In the end every cell must have
been trained to its end by one worker, with the rows and losses that it has on the disk. What two
processes have trained is up to their rounding, and so is what was trained with other cells: with
--together=4 the other two workers train up to four in one program.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.faults.table import CONFIG, ROOT, TIMINGS, use_cache, write_text
from tests.buckets import bucket_variables, emulator
from tests.clusters import free_port

BUCKET, SWEEP = "runs", "gs://runs/sweep"
AXES = ("--axes", "lr=1e-3,2e-3,4e-3", "seed=0,1,2,3")
PROCESSES = (2, 1, 1)  # of each worker
TOLERANCE = 1e-5  # of losses, where two processes have trained, or several cells together
STEPS = ("--config.train.num_steps=60", "--config.train.checkpoint_interval=10", "--config.train.log_interval=1")


def mhsh(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "mhsh", *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


class LaunchedWorker:
    """A worker that is started again until it ends with status 0."""

    def __init__(self, number: int, folder: Path, environment: dict[str, str], together: int) -> None:
        self.log, self._environment = folder / f"worker-{number}.log", environment
        self._count = PROCESSES[number]
        alone = self._count > 1  # several processes train a cell at a time
        self._command = [sys.executable, "-m", "mhsh", "work", SWEEP, *([] if alone else [f"--together={together}"])]
        self.statuses: list[int] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self._thread = threading.Thread(target=self._keep_alive)

    def start(self) -> None:
        self._thread.start()

    def _keep_alive(self) -> None:
        while self.statuses[-1:] != [0] and len(self.statuses) < 20:
            place = [f"--coordinator=127.0.0.1:{free_port()}", f"--num-processes={self._count}"]
            with open(self.log, "ab") as log:
                self.processes = [
                    subprocess.Popen(
                        self._command + ([*place, f"--process-id={index}"] if self._count > 1 else []),
                        cwd=ROOT,
                        env=self._environment,
                        stdout=log,
                        stderr=log,
                    )
                    for index in range(self._count)
                ]
                status = max(process.wait() % 256 for process in self.processes)
            self.statuses.append(status)
            time.sleep(1)

    def signal(self, number: signal.Signals, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    def stop_for(self, seconds: float) -> None:
        """Freezes all of its processes."""
        frozen = list(self.processes)
        self.signal(signal.SIGSTOP, frozen)
        time.sleep(seconds)
        self.signal(signal.SIGCONT, frozen)

    def kill_one(self, chance: random.Random) -> None:
        self.signal(signal.SIGKILL, [chance.choice(self.processes)])

    def join(self) -> None:
        self._thread.join()

    def read_log(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


def set_up(work: Path) -> list[str]:
    """The flags of the sweep; and the single runs of its cells."""
    use_cache(work)
    os.environ.update(PYTHONUNBUFFERED="1", JAX_NUM_CPU_DEVICES="1")
    flags = [*CONFIG, *STEPS, f"--config.data.source=text:{write_text(work)}", *AXES]
    mhsh("sweep", *flags, f"--workdir={work / 'single'}")
    names = cells(work / "single")
    for name in (names[0], names[-1]):
        rate, seed = re.fullmatch(r"learning_rate-(.*)_seed-(.*)", name).groups()  # pyrefly: ignore
        changes = [f"--config.optimizer.learning_rate={rate}", f"--config.train.seed={seed}", f"--config.data.seed={seed}"]
        mhsh("train", *flags[: -len(AXES)], *changes, f"--workdir={work / name}")
        ours, alone = (rows((folder / name / "metrics.jsonl").read_text()) for folder in (work / "single" / "runs", work))
        assert ours == alone, f"{name} is not the run of mhsh train"
    return flags


def cells(sweep: Path) -> list[str]:
    return [cell["name"] for cell in json.loads((sweep / "plan.json").read_text())["cells"]]


@contextlib.contextmanager
def launch_workers(work: Path, flags: Sequence[str], together: int = 1) -> Iterator[tuple[list[LaunchedWorker], str]]:
    """Plans a sweep in a new bucket. Yields its workers, of which none has started, and the address
    of the bucket.
    """
    work.mkdir(parents=True)
    with emulator(work / "emulator.log", BUCKET) as address:
        environment = os.environ | bucket_variables(address)
        plan = [sys.executable, "-m", "mhsh", "sweep", *flags, f"--workdir={SWEEP}", "--parallel=0"]
        subprocess.run(plan, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
        yield [LaunchedWorker(number, work, environment, together) for number in range(len(PROCESSES))], address


def rows(text: str) -> list[dict[str, Any]]:
    parsed = [json.loads(line) for line in text.splitlines()]
    return [{key: value for key, value in row.items() if key not in TIMINGS} for row in parsed]


def faults(single: Path, address: str, workers: Sequence[LaunchedWorker]) -> tuple[list[str], int]:
    """The problems of the cells in the bucket, a line each; and how many cells equal their single
    run in every digit.
    """
    found, equal = [], 0
    said = "".join(worker.read_log() for worker in workers)
    for name in cells(single):
        with urllib.request.urlopen(f"{address}/{BUCKET}/sweep/runs/{name}/metrics.jsonl", timeout=30) as answer:
            ours = rows(answer.read().decode())
        with urllib.request.urlopen(f"{address}/{BUCKET}/sweep/runs/{name}/run.json", timeout=30) as answer:
            status = json.loads(answer.read())["status"]
        wanted = rows((single / "runs" / name / "metrics.jsonl").read_text())
        places = [[(row["step"], row["split"], row.get("batch")) for row in each] for each in (ours, wanted)]
        ends = said.count(f"\n{name}: finished (")
        equal += ours == wanted
        if status != "finished" or places[0] != places[1]:
            found.append(f"{name}: {status}, {len(ours)} rows of {len(wanted)}")
        elif any(
            abs(row["loss"] - other["loss"]) > TOLERANCE * abs(other["loss"]) for row, other in zip(ours, wanted, strict=True)
        ):
            found.append(f"{name}: another curve")
        elif ends > 1:
            found.append(f"{name}: {ends} workers have trained it to its end")
    return found, equal


def one_run(work: Path, single: Path, flags: Sequence[str], chance: random.Random, stopped: float, together: int = 1) -> list[str]:
    """Trains the sweep once, with deaths; what is wrong with it, a line each."""
    begun = time.monotonic()
    with launch_workers(work, flags, together) as (workers, address):
        order = chance.sample(workers, len(workers))
        killed, frozen, late = order
        for worker in (killed, frozen):
            worker.start()
        time.sleep(chance.uniform(10, 60))
        killed.kill_one(chance)
        time.sleep(chance.uniform(0, 20))
        threading.Thread(target=frozen.stop_for, args=(stopped,)).start()
        time.sleep(chance.uniform(0, 20))
        late.start()
        for worker in workers:
            worker.join()
        found, equal = faults(single, address, workers)
    statuses = [worker.statuses for worker in workers]
    took = f"{time.monotonic() - begun:.0f} s"
    print(f"{work.name}: {len(found)} faults, {equal} cells equal to the digit, statuses {statuses}, {took}", flush=True)
    return found + [f"a worker ended with {each}" for each in statuses if each[-1:] != [0]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stopped", type=float, default=60.0)
    parser.add_argument("--together", type=int, default=1)
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    work = options.folder.resolve()
    flags, found = set_up(work), []
    for number in range(options.runs):
        chance = random.Random(f"{options.seed}/{number}")
        found += one_run(work / str(number), work / "single", flags, chance, options.stopped, options.together)
    print("\n".join(found) or "every cell of every run as its single run")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
