"""mhsh prepare: sentence pairs or documents as packed rows on disk."""

from __future__ import annotations

import functools
import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path

from mhsh.cli.inspect import source_lines
from mhsh.cli.parser import ConfigFlag, Count, OutFolderFlag
from mhsh.data.corpus import StreamedTask
from mhsh.data.load import task_of
from mhsh.data.pool import run_chunks
from mhsh.data.prepare import describe, prepare
from mhsh.data.tables import format_unknown
from mhsh.errors import UserError
from mhsh.storage.bucket import is_remote

_SECONDS_BETWEEN_LINES = 5
_say = functools.partial(print, flush=True)

EXAMPLES = (
    "mhsh prepare --config=bert:12l12h --out=prepared",
    "mhsh prepare --config=translation:tiny --out=pairs --workers=2",
)


def run(*, config: ConfigFlag, out: OutFolderFlag, workers: Count | None = None, per_shard: Count | None = None) -> int:
    """Turns sentence pairs or documents into packed rows on disk, for data.source=arrayrecord:DIR.

    The same command resumes after an interruption, and verifies finished rows.

    Args:
      out: the folder that the rows go to
      workers: processes; one a core by default
      per_shard: sentence pairs (20000 by default) or documents (1000) in a shard
    """
    if is_remote(out):
        raise UserError(f"--out={out} is in a bucket; prepare into a folder, then: gcloud storage cp --recursive FOLDER {out}")
    start = time.monotonic()
    run_all = functools.partial(_run_locally, workers or os.cpu_count() or 1)
    task = task_of(config)
    if not isinstance(task, StreamedTask):
        raise UserError(
            "mhsh prepare makes rows for pre-training and translation; those of model.objective = "
            f"{config.model.objective!r} are made when training starts"
        )
    for line in source_lines(config):
        _say(line)
    summary = prepare(task, Path(out), per_shard if per_shard is not None else task.items_per_shard, run_all, _say)
    for line in (*describe(summary), format_unknown(summary, task.unknown_remedy)):
        if line:
            _say(line)
    rows = shlex.quote(f"arrayrecord:{out}")
    _say(f"{out} is finished ({time.monotonic() - start:.1f} s); train from it with --config.data.source={rows}")
    return 0


def _run_locally(workers: int, work: Callable[[int], None], chunks: range) -> None:
    done, next_line = 0, time.monotonic() + _SECONDS_BETWEEN_LINES

    def count(chunk: int) -> None:
        nonlocal done, next_line
        done += 1
        if time.monotonic() >= next_line:
            next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            _say(f"{done} of {len(chunks)} chunks")

    run_chunks(work, chunks, workers, count)
