"""Everything that is worth measuring on a device, in one command that can be cut off.

  python -m benchmarks.suite --out=DIR [--size=tiny] [--only=STAGE,...]

Every stage is a command in a process of its own: `python -m benchmarks.bench`, or `mhsh train`. So
one that fails, or needs more memory than the device has, ends no other. The same command goes on
where it stopped, and tries again what failed. --size=tiny runs the same stages with small models,
on a CPU. Exit status 2: a stage failed; 128 + n: stopped by signal n.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mhsh.bench.results import BenchResults, show
from mhsh.cluster.signals import StopSignals
from mhsh.errors import UserError
from mhsh.storage.files import read_object, write_new
from mhsh.text import timing

ROOT = Path(__file__).resolve().parents[1]
COMPARED = ("run-shallow", "run-deep")  # on a page of `mhsh compare`
_POLL_SECONDS = 0.1
RUN_STEPS, PROFILED = 200, "100:102"
# What a step is tried with, each beside what it is by default.
VARIANTS = (
    "model.scan_unroll=1",
    "model.remat_policy=none",
    "model.remat_policy=full",
    "model.residual_dtype=bfloat16",
)

Changes = dict[str, Any]  # SECTION.FIELD: value


class Size(NamedTuple):
    """The configs of a suite: pairs of a shallow model and its deep twin."""

    large: tuple[str, str]
    base: tuple[str, str]
    translation: tuple[str, str]
    rows: int  # of a step
    rounds: int
    seconds: float  # of a turn
    lengths: str  # of the inference grid
    batches: str


SIZES = {
    "full": Size(
        ("bert:24l16h", "bert:384l1h"),
        ("bert:12l12h", "bert:144l1h"),
        ("translation:6l8h", "translation:48l1h"),
        rows=16,
        rounds=5,
        seconds=1.0,
        lengths="32,128,512",
        batches="1,4,16,64",
    ),
    # The same stages in minutes on a CPU, to try the command itself.
    "tiny": Size(
        ("bert:2l8h", "bert:16l1h"),
        ("bert:2l4h", "bert:8l1h"),
        ("translation:tiny", "translation:tiny_8l1h"),
        rows=4,
        rounds=2,
        seconds=0.05,
        lengths="16",
        batches="1,2",
    ),
}


class Stage(NamedTuple):
    """One command."""

    name: str  # and of what it writes: NAME.json, or the run folder NAME
    what: str  # for readers
    arguments: tuple[str, ...]  # of python -m, without what it writes
    missing: str = ""  # why it cannot run here; empty where it can

    @property
    def is_run(self) -> bool:
        """Whether it trains, into a run folder; else it measures, into a file."""
        return self.arguments[:2] == ("mhsh", "train")


class Outcome(NamedTuple):
    """How a stage ended: done, failed, not here, or stopped."""

    state: str
    seconds: float
    reason: str  # why it is not done


def stages(size: Size) -> list[Stage]:
    """All stages in their order: what says most comes first, for it may be cut off."""
    no_torch = "" if importlib.util.find_spec("torch") else "torch is not installed (the extra `parity`)"
    rows, turns = {"train.batch_size": size.rows}, (f"--rounds={size.rounds}", f"--seconds={size.seconds:g}")
    deep = size.large[1]

    def step(pair: tuple[str, str], changes: Changes, *more: str) -> tuple[str, ...]:
        return _bench("train", pair, changes, changes, *turns, *more)

    large_steps = step(size.large, rows)
    base_steps = step(size.base, rows)
    torch_steps = step(size.base, rows, "--peer=torch-eager,torch-compile")
    tried = "benchmarks.bench", "train", *_config("config", deep, rows), *turns, *(f"--variant={each}" for each in VARIANTS)
    grid = _bench("inference", size.large, {}, {}, f"--batch={size.batches}", f"--length={size.lengths}", *turns)
    decode = _bench("decode", size.translation, {}, {}, f"--rounds={size.rounds}")
    compiling = _bench("compile", size.large, rows, rows, "--rounds=3")
    return [
        Stage("train-large", "a step of both large twins", large_steps),
        Stage("train-base", "a step of both base twins", base_steps),
        Stage("train-variants", "the deep twin with other fields", tried),
        Stage("train-torch", "a step of both base twins beside PyTorch", torch_steps, no_torch),
        Stage("run-shallow", f"{RUN_STEPS} training steps of the shallow large twin", _run(size.large[0], size)),
        Stage("run-deep", f"{RUN_STEPS} training steps of the deep large twin", _run(deep, size)),
        Stage("inference-large", "the forward pass of both large twins", grid),
        Stage("decode", "beam search of both translation models", decode),
        Stage("compile-large", "tracing and compiling a step of both large twins", compiling),
    ]


def _bench(kind: str, pair: tuple[str, str], changes: Changes, other: Changes, *more: str) -> tuple[str, ...]:
    """A bench of a pair, with changes of the first and of the second."""
    return "benchmarks.bench", kind, *_config("config", pair[0], changes), *_config("against", pair[1], other), *more


def _config(flag: str, name: str, changes: Changes) -> tuple[str, ...]:
    return f"--{flag}={name}", *(f"--{flag}.{field}={value}" for field, value in changes.items())


def _run(name: str, size: Size) -> tuple[str, ...]:
    changes = {
        "data.source": "stdlib",
        "train.batch_size": size.rows,
        "train.num_steps": RUN_STEPS,
        "train.log_interval": 10,
        "train.eval_interval": 50,
        "train.eval_batches": 4,
        "train.checkpoint_interval": 0,
        "train.profile_steps": PROFILED,
        "optimizer.warmup_steps": RUN_STEPS // 10,
    }
    return "mhsh", "train", *_config("config", name, changes)


def run_suite(chosen: Sequence[Stage], folder: Path, tell: Callable[[Stage, Outcome | None], None]) -> int | None:
    """Runs the stages that are not done yet, one after the other.

    What a stage prints goes to NAME.log, how it ended to NAME.state.json. A failed stage is tried
    again the next time.

    Args:
      tell: called with each stage when it begins (None) and when it ends.

    Returns:
      the number of the signal that stopped it, or None.
    """
    with StopSignals() as signals:
        for stage in chosen:
            before = outcome(stage, folder)
            if before is not None and before.state == "done":
                tell(stage, before)
                continue
            if stage.missing:
                tell(stage, Outcome("not here", 0.0, stage.missing))
                continue
            tell(stage, None)
            ended = _run_stage(stage, folder, signals)
            tell(stage, ended)
            if signals.signal is not None:
                break
    return signals.signal


def outcome(stage: Stage, folder: Path) -> Outcome | None:
    """How the stage ended when it ran last; None where it has not."""
    state = folder / f"{stage.name}.state.json"
    return Outcome(**read_object(str(state))) if state.exists() else None


def _run_stage(stage: Stage, folder: Path, signals: StopSignals) -> Outcome:
    folder = folder.resolve()
    target = folder / stage.name if stage.is_run else folder / f"{stage.name}.json"
    out = f"--workdir={target}" if stage.is_run else f"--out={target}"
    state = folder / f"{stage.name}.state.json"
    state.unlink(missing_ok=True)
    begin = time.monotonic()
    with (folder / f"{stage.name}.log").open("wb") as log:
        # In a process group of its own: Ctrl-C at the terminal reaches only the suite.
        process = subprocess.Popen(
            [sys.executable, "-m", *stage.arguments, out],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            process_group=0,
        )
        try:
            while process.poll() is None and signals.signal is None:
                time.sleep(_POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.send_signal(signals.signal or signal.SIGTERM)
            status = process.wait()
    seconds = time.monotonic() - begin
    if signals.signal is not None and status:
        return Outcome("stopped", seconds, signal.Signals(signals.signal).name)
    ended = Outcome("failed", seconds, _reason(folder / f"{stage.name}.log", status)) if status else Outcome("done", seconds, "")
    write_new(str(state), json.dumps(ended._asdict()) + "\n")
    return ended


def _reason(log: Path, status: int) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
    return f"{how}: {lines[-1][:200]}" if lines else how


def main(arguments: Sequence[str]) -> int:
    """Runs the stages, prints their tables, and compares the runs; the exit status."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.suite", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--size", choices=tuple(SIZES), default="full")
    parser.add_argument("--only")
    options = parser.parse_args(arguments)
    try:
        return _run_chosen(options.out, chosen_stages(stages(SIZES[options.size]), options.only))
    except UserError as error:
        print(f"benchmarks.suite: {error}", file=sys.stderr)
        return 2


def chosen_stages(known: Sequence[Stage], only: str | None) -> list[Stage]:
    """The stages of --only, in their own order. Raises UserError where one does not exist."""
    names = [stage.name for stage in known]
    wanted = names if only is None else only.split(",")
    for name in wanted:
        if name not in names:
            raise UserError(f"--only={only}: unknown stage {name!r}; allowed: {', '.join(names)}")
    return [stage for stage in known if stage.name in wanted]


def _run_chosen(folder: Path, chosen: Sequence[Stage]) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    stopped = run_suite(chosen, folder, _tell)
    ended = {stage: outcome(stage, folder) for stage in chosen}
    done = [stage for stage, how in ended.items() if how is not None and how.state == "done"]
    for stage in done:
        if not stage.is_run:
            print(f"\n{stage.name}: {stage.what}")
            show(msgspec.convert(read_object(str(folder / f"{stage.name}.json")), BenchResults))
    if stopped is not None:
        print(f"stopped; the same command goes on: {len(done)} of {len(chosen)} stages are done")
        return 128 + stopped
    runs = [str(folder / stage.name) for stage in done if stage.name in COMPARED]
    if runs:
        subprocess.run([sys.executable, "-m", "mhsh", "compare", *runs, f"--out={folder / 'report.html'}"], check=False)
    return 2 if any(how is not None and how.state == "failed" for how in ended.values()) else 0


def _tell(stage: Stage, ended: Outcome | None) -> None:
    if ended is None:
        print(f"{stage.name}: {stage.what} ...", flush=True)
    else:
        took = f" ({timing(ended.seconds)})" if ended.seconds else ""
        print(f"{stage.name}: {ended.state}{took}" + (f": {ended.reason}" if ended.reason else ""), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
