"""Runs that are killed before any of their calls that change a file, or whose disk fails.

    python -m benchmarks.faults.table FOLDER [--kills] [--errors] [--questions] [--every=N]

The first run of a tiny config, from its first call to its second checkpoint, is observed through
shim.c (needs gcc). A kill leaves what the calls before it have done, so a copy of the run folder
before each call is what a kill there leaves: every copy that differs from the one before is resumed
by the same command. A disk that is full (every call from one on fails with ENOSPC) or broken (one
call fails with EIO) is tried at the first call of each kind on each file, and the same command then
goes on without the fault. So is a question (open for reading, stat, list) that fails once, of a
disk (EIO) or a network file system (ESTALE), in a run that goes on from its first checkpoint. Every
end is compared with the unbroken run, to the bit.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.forks import ROOT, Fork

TIMINGS = {"seconds", "tokens_per_second", "flops_per_second"}
STEPS = 12
CONFIG = [
    "--config=bert:2l8h",
    "--config.model.vocab_size=512",
    "--config.model.embed_dim=16",
    "--config.model.head_dim=2",
    "--config.model.mlp_dim=16",
    "--config.model.remat_policy=none",
    "--config.data.validation_fraction=0.2",
    f"--config.train.num_steps={STEPS}",
    "--config.train.checkpoint_interval=4",
    "--config.train.eval_interval=4",
    "--config.train.eval_batches=1",
]
QUESTIONS = ("read", "stat", "list")
GROWS = ("open", "write", "mkdir", "truncate")  # what needs room on a disk

# Every run compiles the same programs: a shared cache makes each three times as fast.
CACHE = {"JAX_PLATFORMS": "cpu", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}

Decide = Callable[[int, str, Path], int]  # number of the call, its name, its file -> an errno, or 0 to go on


class Ended(NamedTuple):
    """How a command ended, and what it said."""

    status: int
    error: str
    output: str = ""  # empty, too, where nobody reads it


def use_cache(work: Path) -> None:
    """For every process that this one starts."""
    os.environ.update(CACHE, JAX_COMPILATION_CACHE_DIR=str(work / "compiled"))


def build_shim(folder: Path) -> Path:
    shim = folder / "shim.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(shim), str(Path(__file__).with_name("shim.c")), "-ldl"], check=True)
    return shim


def train(folder: Path, text: Path, shim: Path | None = None, decide: Decide | None = None) -> Ended:
    """`mhsh train` in `folder`; with a shim, `decide` is asked before calls that change a file."""
    arguments = ["train", *CONFIG, f"--config.data.source=text:{text}", f"--workdir={folder}"]
    if shim is None or decide is None:
        process = Fork(arguments)
        _, error = process.communicate()
        return Ended(process.wait(), error)
    command = [sys.executable, "-m", "mhsh", *arguments]
    asked, ask = os.pipe()
    answered, answer = os.pipe()
    environment = os.environ | {"LD_PRELOAD": str(shim), "FAULT_ROOT": str(folder), "FAULT_PIPE": f"{ask},{answered}"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, pass_fds=(ask, answered)
    )
    os.close(ask)
    os.close(answered)

    def talk() -> None:
        with open(asked, encoding="utf-8") as questions:
            for number, line in enumerate(questions):
                name, _, path = line.rstrip("\n").partition(" ")
                code = decide(number, name, Path(path))
                os.write(answer, str(code).encode() if code else b"-")

    thread = threading.Thread(target=talk)
    thread.start()
    _, error = process.communicate()
    thread.join()
    os.close(answer)
    return Ended(process.returncode, error)


def write_text(folder: Path) -> Path:
    """A small text to train on."""
    text = folder / "text.txt"
    sentences = [f"The number {n} is followed by the number {n + 1}. It is preceded by {n - 1}." for n in range(900)]
    text.write_text("\n\n".join("\n".join(sentences[start : start + 9]) for start in range(0, 900, 9)) + "\n", encoding="utf-8")
    return text


def curve(folder: Path, last: int = STEPS) -> list[dict[str, Any]]:
    """The rows without times, and the checksum of every array at the end."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [{key: value for key, value in json.loads(line).items() if key not in TIMINGS} for line in lines]
    manifests = sorted((folder / "checkpoints").glob(f"{last}/manifest/metadata"))
    return [*rows, *(json.loads(path.read_text(encoding="utf-8")) for path in manifests)]


def kind_of(path: Path, root: Path) -> str:
    """A file's name without what differs from run to run."""
    name = re.sub(r"[0-9a-f]{32}", "ID", str(path.relative_to(root)) if path != root else ".")
    name = re.sub(r"checkpoints/\d+", "checkpoints/N", name)
    name = re.sub(r"orbax-checkpoint-tmp(-\d+)?", "tmp", name)
    return re.sub(r"(tfevents)\..*", r"\1", name)


def content(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0")
        digest.update(path.read_bytes() if path.is_file() else b"/")
    return digest.hexdigest()


def states_of_kills(work: Path, text: Path, shim: Path) -> list[tuple[str, Path]]:
    """(the call, a copy of the folder before it) for every call that found the folder changed."""
    folder, states, seen = work / "observed", [], set()

    def decide(number: int, name: str, path: Path) -> int:
        if folder.exists() and name not in QUESTIONS:
            digest = content(folder)
            if digest not in seen:
                seen.add(digest)
                copy = work / f"state-{number:04d}"
                shutil.copytree(folder, copy)
                states.append((f"{number} {name} {kind_of(path, folder)}", copy))
        return 0

    ended = train(folder, text, shim, decide)
    assert ended.status == 0, ended.error
    return states


def cut_back(run: Path, to: Path) -> None:
    """A copy of a finished run as a kill after its first checkpoint leaves it."""
    shutil.copytree(run, to, ignore=lambda folder, names: [name for name in names if name in ("8", "12")])
    record = json.loads((to / "run.json").read_text(encoding="utf-8")) | {"checkpoint": 4, "status": "running"}
    (to / "run.json").write_text(json.dumps(record), encoding="utf-8")


def points_of_errors(work: Path, text: Path, shim: Path, begun: Path | None = None) -> list[str]:
    """Each kind of call on each kind of file; of a run that goes on: each kind of question."""
    folder, found = work / ("asked" if begun else "listed"), collections.OrderedDict[str, None]()
    if begun:
        cut_back(begun, folder)

    def decide(number: int, name: str, path: Path) -> int:
        if (name in QUESTIONS) == bool(begun):
            found[f"{name} {kind_of(path, folder)}"] = None
        return 0

    ended = train(folder, text, shim, decide)
    assert ended.status == 0, ended.error
    return list(found)


def train_with_error(work: Path, text: Path, shim: Path, point: str, code: int) -> tuple[Ended, Path]:
    """Trains a run in which the call at `point` fails: by EIO once, by ENOSPC from then on. Returns
    its end and its folder.
    """
    folder = work / f"{errno.errorcode[code]}-{hashlib.sha256(point.encode()).hexdigest()[:12]}"
    if point.split()[0] in QUESTIONS:
        cut_back(work / "unbroken", folder)
    begun = False

    def decide(number: int, name: str, path: Path) -> int:
        nonlocal begun
        here = f"{name} {kind_of(path, folder)}" == point and not begun
        begun = begun or here
        return code if here or (begun and code == errno.ENOSPC and name in GROWS) else 0

    return train(folder, text, shim, decide), folder


def problem_of(folder: Path, text: Path, expected: Sequence[Any]) -> str:
    """The problem of the same command in the folder that a fault has left; empty: none."""
    again = train(folder, text)
    if again.status:
        return f"the same command ends with {again.status}: {again.error.strip()[-300:]}"
    if curve(folder) != expected:
        return "another curve"
    left = [path.name for path in folder.rglob("*") if path.name.endswith(".tmp") or "orbax-checkpoint-tmp" in path.name]
    return f"left behind: {left}" if left else ""


def one_line(error: str) -> bool:
    """Whether a user is told in one line."""
    return "Traceback" not in error and len([line for line in error.splitlines() if line.startswith("mhsh: ")]) == 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", action="store_true")
    parser.add_argument("--errors", action="store_true")
    parser.add_argument("--questions", action="store_true")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th fault (default: 1, all)")
    options = parser.parse_args()
    work = options.folder.absolute()
    work.mkdir(parents=True)
    use_cache(work)
    return 1 if report(work, options.kills, options.errors, options.questions, options.every) else 0


def report(work: Path, kills: bool, errors: bool, questions: bool, every: int) -> list[str]:
    """Prints the table, a row as soon as it is known; returns the rows with a problem."""
    text, shim = write_text(work), build_shim(work)
    unbroken = work / "unbroken"
    assert train(unbroken, text).status == 0
    expected, bad, count = curve(unbroken), [], 0

    def show(fault: str, problem: str) -> None:
        nonlocal count
        count += 1
        print(f"{'FAILS' if problem else 'ok   '}  {fault}  {problem}", flush=True)
        bad.extend([f"{fault}: {problem}"] if problem else [])

    def judge(fault: tuple[str, int]) -> str:
        ended, folder = train_with_error(work, text, shim, *fault)
        problems = [problem_of(folder, text, expected)]
        if ended.status not in (0, 2, 75):
            problems.append(f"ends with {ended.status}: {ended.error.strip()[-300:]}")
        if ended.status and not one_line(ended.error):
            problems.append(f"not one line: {ended.error.strip()[-300:]}")
        return "; ".join(filter(None, problems))

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        if kills:
            states = states_of_kills(work, text, shim)[::every]
            found = pool.map(lambda state: problem_of(state[1], text, expected), states)
            for (call, _), problem in zip(states, found, strict=True):
                show(f"killed before {call}", problem)
        if errors:
            points = points_of_errors(work, text, shim)[::every]
            faults = [(point, errno.EIO) for point in points]
            faults += [(point, errno.ENOSPC) for point in points if point.split()[0] in GROWS]
            for (point, code), problem in zip(faults, pool.map(judge, faults), strict=True):
                show(f"{errno.errorcode[code]} at {point}", problem)
        if questions:
            points = points_of_errors(work, text, shim, unbroken)
            faults = [(point, code) for point in points for code in (errno.EIO, errno.ESTALE)][::every]
            for (point, code), problem in zip(faults, pool.map(judge, faults), strict=True):
                show(f"{errno.errorcode[code]} at {point}", problem)
    print(f"{count} faults, {len(bad)} with a problem")
    return bad


if __name__ == "__main__":
    sys.exit(main())
