"""Ctrl-C or SIGTERM at a random moment, in each command that is not `mhsh train`.

    python -m benchmarks.faults.signals FOLDER [--each=100] [--seed=0] [--only=COMMAND,...]

Each command is run twice without a signal; the second gives its time. Then it is run again and
again, each time into a new folder, and a signal is sent at a random moment of that time. It must
end with status 130 or 75 within two seconds, without a traceback, and leave neither a file that it
had begun nor a process. A sweep may take as long as the step of its cell. It and prepare are
finished by the same command. Status 0 is right only if the output is the whole one.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.faults.table import CONFIG, ROOT, use_cache, write_text

STATUS = {signal.SIGINT: 130, signal.SIGTERM: 75}
SECONDS_TO_END = 2.0
RESUMED = ("sweep", "prepare")  # the same command goes on with what is there
TRANSLATION = [
    "--config=translation:tiny",
    "--config.data.source=numbers:1500",
    "--config.data.validation_sentences=20",
    "--config.data.sequence_length=32",
    "--config.model.remat_policy=none",
    "--config.train.batch_size=8",
    "--config.train.num_steps=4",
    "--config.optimizer.warmup_steps=1",
]
SHORT = [
    "--config.train.num_steps=2",
    "--config.train.batch_size=8",
    "--config.data.sequence_length=32",
    "--config.optimizer.warmup_steps=1",
]


class Finished(NamedTuple):
    status: int
    error: str
    seconds: float  # from the signal, or from the start if there was none
    group: int


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mhsh", *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(*arguments: str, after: float | None = None, number: signal.Signals = signal.SIGINT) -> Finished:
    """Runs a command to its end; with `after`, it is sent a signal after so many seconds."""
    process, begun = start(*arguments), time.monotonic()
    if after is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(after)
        if process.returncode is None:
            begun = time.monotonic()
            # Ctrl-C reaches every process of the terminal, SIGTERM the one that it is sent to.
            (os.killpg if number is signal.SIGINT else os.kill)(process.pid, number)
    _, error = process.communicate()
    return Finished(process.returncode, error, time.monotonic() - begun, process.pid)


def set_up(work: Path) -> dict[str, list[str]]:
    """Small runs, and the command lines that use them; OUT is a path that is new for each."""
    text, exported = write_text(work), work / "exported"
    masked, pairs, tuned = work / "masked", work / "pairs", work / "tuned"
    source = f"--config.data.source=text:{text}"
    glue = work / "RTE"
    glue.mkdir()
    rows = [f"{k}\tThe number is {k}.\tIt is {k % 3}.\t{'entailment' if k < 3 else 'not_entailment'}\n" for k in range(16)]
    for name in ("train.tsv", "dev.tsv"):
        (glue / name).write_text("index\tsentence1\tsentence2\tlabel\n" + "".join(rows), encoding="utf-8")
    unlabelled = ["\t".join(row.split("\t")[:3]) + "\n" for row in ["index\tsentence1\tsentence2\t", *rows]]
    (glue / "test.tsv").write_text("".join(unlabelled), encoding="utf-8")
    lines = work / "lines.txt"
    lines.write_text("".join(f"{number}\n" for number in range(1, 60)), encoding="utf-8")
    for arguments in (
        ["train", *CONFIG, source, f"--workdir={masked}"],
        ["train", *TRANSLATION, f"--workdir={pairs}"],
        ["finetune", str(masked), "--config=glue:rte", f"--config.data.source=tsv:{work}", f"--workdir={tuned}", *SHORT],
        ["export", str(masked), f"--out={exported}"],
    ):
        done = finish(*arguments)
        assert done.status == 0, done.error
    return {
        "eval": ["eval", str(masked)],
        "predict": ["predict", f"{tuned}/seed-0", f"--input={glue}/test.tsv", "--output=OUT"],
        "translate": ["predict", str(pairs), f"--input={lines}", "--output=OUT"],
        "export": ["export", str(masked), "--out=OUT"],
        "import": ["import", str(exported), *CONFIG, "--out=OUT"],
        "prepare": ["prepare", *CONFIG, source, "--workers=2", "--per-shard=20", "--out=OUT"],
        "sweep": [
            "sweep",
            *CONFIG,
            source,
            "--config.train.num_steps=4",
            "--config.optimizer.warmup_steps=1",
            "--workdir=OUT",
            "--axes",
            "seed=0,1",
        ],
        "bench": ["bench", "train", *CONFIG, "--config.train.batch_size=2", "--rounds=2", "--seconds=0.2", "--out=OUT"],
        "compare": ["compare", str(masked), str(pairs), "--out=OUT/report.html"],
    }


def line_of(arguments: list[str], folder: Path) -> list[str]:
    """The command line with an output in `folder`."""
    return [argument.replace("OUT", str(folder / "out")) for argument in arguments]


def names(folder: Path) -> set[str]:
    """The files of a folder. TensorStore draws the names of its own."""
    return {re.sub("/d/[0-9a-f]{32}$", "/d/", str(path.relative_to(folder))) for path in folder.rglob("*") if path.is_file()}


def still_runs(group: int, seconds: float) -> bool:
    """Whether a process of a group outlives the command by so many seconds."""
    deadline = time.monotonic() + seconds
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.02)
        return True
    return False


def problem_of(line: list[str], folder: Path, whole: set[str], number: signal.Signals, moment: float) -> tuple[int, str]:
    """The status of one command that is told to stop after `moment` seconds, and what is wrong.

    `whole` is what the command writes into `folder` if it is not told to.
    """
    command = line[0]
    ended = finish(*line, after=moment, number=number)
    wrong = []
    if "Traceback" in ended.error:
        wrong.append(ended.error.strip()[-500:])
    if ended.status not in (0, STATUS[number]):
        wrong.append(f"ends with {ended.status}: {ended.error.strip()[-300:]}")
    if ended.status and ended.seconds > SECONDS_TO_END and command != "sweep":
        wrong.append(f"took {ended.seconds:.1f} s to end")
    if still_runs(ended.group, SECONDS_TO_END):
        wrong.append("left a process")
    beside = [path.name for path in folder.iterdir() if path.name != "out"]
    if beside:
        wrong.append(f"left {beside}")
    # A signal may come after the output was put in place. Those of RESUMED go on.
    if ended.status and command not in RESUMED and command != "compare" and names(folder) not in (set(), whole):
        wrong.append(f"left a part of the output: {sorted(names(folder))}")
    if ended.status and command in RESUMED:
        again = finish(*line)
        if again.status:
            wrong.append(f"the same command then ends with {again.status}: {again.error.strip()[-300:]}")
    begun = [path.name for path in folder.rglob("*") if path.name.endswith((".tmp", ".unfinished"))]
    if begun:
        wrong.append(f"left {begun}")
    shutil.rmtree(folder)
    return ended.status, "; ".join(wrong)


def experiment(work: Path, each: int, seed: int, only: list[str] | None) -> list[str]:
    """Prints a line a command; returns what was wrong."""
    work.mkdir(parents=True)
    lines, generator, bad = set_up(work), random.Random(seed), []
    for command, arguments in lines.items():
        if only and command not in only:
            continue
        for name in (f"{command}-compiles", command):  # the second finds what the first has compiled
            folder = work / name
            folder.mkdir()
            ended = finish(*line_of(arguments, folder))
            assert ended.status == 0, ended.error
        seconds, whole = ended.seconds, names(folder)
        moments = [(generator.uniform(0.05, seconds), generator.choice(list(STATUS))) for _ in range(each)]
        futures = []
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for trial, (moment, number) in enumerate(moments):
                folder = work / f"{command}-{trial}"
                folder.mkdir()
                futures.append(pool.submit(problem_of, line_of(arguments, folder), folder, whole, number, moment))
        results = [future.result() for future in futures]
        wrong = [f"{n.name} after {m:.2f} s: {what}" for (m, n), (_, what) in zip(moments, results, strict=True) if what]
        statuses = dict(sorted(collections.Counter(status for status, _ in results).items()))
        print(f"{command}: {each} signals within {seconds:.1f} s: {statuses}, {len(wrong)} with a problem", flush=True)
        for what in wrong:
            print(f"  {what}", flush=True)
        bad += [f"{command}: {what}" for what in wrong]
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--each", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=lambda names: names.split(","))
    options = parser.parse_args()
    use_cache(options.folder.absolute())
    return 1 if experiment(options.folder.absolute(), options.each, options.seed, options.only) else 0


if __name__ == "__main__":
    sys.exit(main())
