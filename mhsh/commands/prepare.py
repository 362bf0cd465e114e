"""mhsh prepare: a config's sentence pairs as packed rows on disk, for data.source = arrayrecord:DIR."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mhsh.config import Config
from mhsh.data.prepare_translation import prepare
from mhsh.data.workers import run_chunks, run_chunks_on_beam
from mhsh.errors import UserError

_SECONDS_BETWEEN_LINES = 5


def run(config: Config, out: str, workers: int, runner: str, beam_options: str, pairs_per_shard: int) -> int:
    """Prepares the rows, goes on with them, or verifies them where they are finished; prints the summary."""
    if runner not in ("local", "beam"):
        raise UserError(f"--runner={runner} is not known; allowed: local, beam")
    if beam_options and runner != "beam":
        raise UserError("--beam-options are for --runner=beam")
    if workers < 1:
        raise UserError(f"--workers={workers} must be 1 or more")
    start = time.monotonic()
    run_all = _on_beam(beam_options) if runner == "beam" else functools.partial(_locally, workers)
    summary = prepare(config, Path(out), pairs_per_shard, run_all, _say)
    _print_summary(summary)
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


def _print_summary(summary: dict[str, Any]) -> None:
    _say(
        f"pairs read {summary['read']:,}: {summary['empty']:,} empty, {summary['duplicates']:,} duplicates, "
        f"{summary['in_both_splits']:,} left to validation"
    )
    for split in ("train", "validation"):
        counts = summary[split]
        _say(
            f"{split}: {counts['pairs']:,} pairs ({counts['too_long']:,} too long and {counts['unlike']:,} too unlike left out), "
            f"{counts['source_tokens']:,} source and {counts['target_tokens']:,} target tokens in {counts['rows']:,} rows, "
            f"{counts['source_padding_fraction']:.1%} and {counts['target_padding_fraction']:.1%} padding"
        )


def _say(line: str) -> None:
    print(line, flush=True)
