"""The cost of saving: the same run with and without a checkpoint every so many steps, in turns.

  python benchmarks/checkpoint_cost.py [--pairs=5] [--steps=500] [--interval=100]
  [--config=quickstart:6l4h_post_ln]

Every turn is a whole `mhsh train` in a process of its own, timed from its first logged row to its
end. Both kinds save after the last step; the difference is that of the saves between. Prints one
JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--interval", type=int, default=100)
    parser.add_argument("--config", default="quickstart:6l4h_post_ln")
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {"saving": [], "not_saving": []}
    for pair in range(options.pairs):
        turns = list(seconds)
        for kind in turns if pair % 2 == 0 else turns[::-1]:
            seconds[kind].append(time_run(options, options.interval if kind == "saving" else 0))
    num_saves = (options.steps - 1) // options.interval
    costs = [
        (with_saves - without) / num_saves / (without * options.interval / options.steps)
        for with_saves, without in zip(seconds["saving"], seconds["not_saving"], strict=True)
    ]
    print(
        json.dumps(
            {
                "config": options.config,
                "steps": options.steps,
                "interval": options.interval,
                "seconds": seconds,
                "cost_of_each_pair": costs,
                "median_cost": statistics.median(costs),
                "milliseconds_a_save": 1000 * statistics.median(costs) * statistics.median(seconds["not_saving"]) * options.interval
                / options.steps,
            },
            indent=1,
        )
    )  # fmt: skip


def time_run(options: argparse.Namespace, interval: int) -> float:
    """Seconds from the first logged row of a run to its end."""
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder) / "run"
        command = [sys.executable, "-m", "mhsh", "train", f"--config={options.config}", f"--workdir={workdir}"]
        command += [f"--config.train.num_steps={options.steps}", f"--config.train.checkpoint_interval={interval}"]
        command += ["--config.train.eval_interval=0", "--config.train.eval_batches=1"]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
            while not (workdir / "metrics.jsonl").exists():
                if process.poll() is not None:
                    sys.exit(f"{' '.join(command)} ended with status {process.returncode} before its first row")
                time.sleep(0.005)
            begin = time.monotonic()
            status = process.wait()
            end = time.monotonic()
        if status:
            sys.exit(f"{' '.join(command)} ended with status {status}")
    return end - begin


if __name__ == "__main__":
    main()
