"""mhsh prepare: sentence pairs or documents as packed rows on disk, for
data.source=arrayrecord:DIR.
"""

from __future__ import annotations

import argparse
import functools
import os
import time
from collections.abc import Callable
from pathlib import Path

from mhsh.cli.flags import add_configs
from mhsh.cli.parser import examples
from mhsh.config.schema import Config
from mhsh.data.corpus import StreamedTask
from mhsh.data.load import task_of
from mhsh.data.pool import run_chunks, run_chunks_on_beam
from mhsh.data.prepare import describe, prepare
from mhsh.errors import UserError
from mhsh.files import expanded, is_remote

_SECONDS_BETWEEN_LINES = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.epilog = examples(
        "mhsh prepare --config=bert:12l12h --out=prepared",
        "mhsh prepare --config=translation:tiny --out=pairs --workers=2",
    )
    add_configs(parser, "config")
    parser.add_argument("--out", required=True, metavar="DIR", help="where the rows go: a folder, or gs://BUCKET/FOLDER")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (default: one a core)")
    parser.add_argument("--runner", default="local", metavar="NAME", help="local (default) or beam")
    parser.add_argument("--beam-options", default="", metavar="OPTIONS", help="Beam's pipeline options, in one string")
    parser.add_argument(
        "--per-shard", type=int, metavar="N", help="sentence pairs (default: 20000) or documents (default: 1000) in a shard"
    )


def run(config: Config, out: str, workers: int, runner: str, beam_options: str, per_shard: int | None) -> int:
    """Prepares the rows, goes on with them, or verifies them where they are finished; prints the
    summary.

    Args:
      per_shard: pairs or documents in a shard; None: as many as the task has where nobody says
        otherwise.
    """
    if runner not in ("local", "beam"):
        raise UserError(f"--runner={runner} is not known; allowed: local, beam")
    if beam_options and runner != "beam":
        raise UserError("--beam-options are for --runner=beam")
    if workers < 1:
        raise UserError(f"--workers={workers} must be 1 or more")
    if runner == "beam" and is_remote(out):
        raise UserError(f"--runner=beam writes to a file system that its workers share, not to {out}; prepare there, then copy it")
    start = time.monotonic()
    run_all = _on_beam(beam_options) if runner == "beam" else functools.partial(_locally, workers)
    task = task_of(config)
    if not isinstance(task, StreamedTask):
        raise UserError(
            "mhsh prepare makes rows for pre-training and translation; those of model.objective = "
            f"{config.model.objective!r} are made when training starts"
        )
    where = expanded(out) if is_remote(out) else Path(out)
    summary = prepare(task, where, per_shard if per_shard is not None else task.items_per_shard, run_all, _say)
    for line in describe(summary):
        _say(line)
    _say(f"{out} is finished ({time.monotonic() - start:.1f} s); train from it with --config.data.source=arrayrecord:{out}")
    return 0


def _locally(workers: int, work: Callable[[int], None], chunks: range) -> None:
    done, next_line = 0, time.monotonic() + _SECONDS_BETWEEN_LINES

    def count(chunk: int) -> None:
        nonlocal done, next_line
        done += 1
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            _say(f"{done} of {len(chunks)} chunks")

    run_chunks(work, chunks, workers, count)


def _on_beam(options: str) -> Callable[[Callable[[int], None], range], None]:
    return lambda work, chunks: run_chunks_on_beam(work, chunks, options)


def _say(line: str) -> None:
    print(line, flush=True)
