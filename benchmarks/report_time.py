"""Measures `mhsh compare` on many long runs, from the start of the process to the written files:
seconds, CPU-seconds and the largest memory.

  python benchmarks/report_time.py RUN... [--runs=20] [--rows=100000] [--rounds=5]

RUN... are folders of finished runs, such as runs/quickstart/*. Each is copied under further seeds
until there are as many as asked for, with as many training rows (every field as that run logged it,
and a loss that falls as 1/sqrt(step) with noise) and a validation row for a thousand of them.
Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ROWS_TO_A_VALIDATION = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = [write_run(Path(folder), options.models, number, options.rows) for number in range(options.runs)]
        size = sum((run / "metrics.jsonl").stat().st_size for run in runs)
        measured = [compared(runs, Path(folder) / "report.html") for _ in range(options.rounds)]
    medians = {name: statistics.median(each[name] for each in measured) for name in measured[0]}
    print(json.dumps({"runs": len(runs), "rows": options.rows, "bytes": size, **medians, "all": measured}))


def write_run(folder: Path, models: list[Path], number: int, rows: int) -> Path:
    """One run of `rows` training rows; every len(models) runs another seed."""
    model, seed = models[number % len(models)], number // len(models)
    run = folder / f"{model.name}-seed{seed}"
    run.mkdir()
    config = json.loads((model / "config.json").read_text())
    config["train"] |= {"seed": seed, "num_steps": rows}
    (run / "config.json").write_text(json.dumps(config))
    for path in (model / "run.json", *model.glob("vocab.txt")):
        shutil.copy(path, run)
    logged = [json.loads(line) for line in (model / "metrics.jsonl").read_text().splitlines()]
    last = {split: [row for row in logged if row["split"] == split][-1] for split in ("train", "validation")}
    noise = random.Random(number)
    with open(run / "metrics.jsonl", "w") as file:
        for step in range(1, rows + 1):
            splits = ("train", "validation") if step % ROWS_TO_A_VALIDATION == 0 else ("train",)
            file.writelines(json.dumps(row_at(step, last[split], noise)) + "\n" for split in splits)
    return run


def row_at(step: int, last: dict[str, Any], noise: random.Random) -> dict[str, Any]:
    """The row `last` moved to another step."""
    share = step / last["step"]
    axes = {"tokens": round(last["tokens"] * share), "flops": last["flops"] * share, "seconds": last["seconds"] * share}
    return last | axes | {"step": step, "loss": 2 + 5 / math.sqrt(step) + 0.05 * noise.random()}


def compared(runs: list[Path], out: Path) -> dict[str, float]:
    """The seconds and the memory of the whole command."""
    command = [str(Path(sys.executable).with_name("mhsh")), "compare", *map(str, runs), f"--out={out}"]
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0, status
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "cpu_seconds": used.ru_utime + used.ru_stime, "largest_mb": used.ru_maxrss / 1000}


if __name__ == "__main__":
    main()
