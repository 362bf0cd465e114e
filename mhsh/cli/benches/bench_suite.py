"""mhsh bench suite: all stages on this machine's device, a table, and two pages."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from mhsh.bench.results import read
from mhsh.cli.parser import examples
from mhsh.errors import UserError
from mhsh.text import quantity, timing

if TYPE_CHECKING:
    from mhsh.bench.suite import Outcome, Stage

# What `mhsh compare` puts together of the stages: every shape once.
_IN_THE_REPORT = ("train-large.json", "train-base.json", "inference-large.json", "run-shallow", "run-deep")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.epilog = examples(
        "mhsh bench suite --out=measured", "mhsh bench suite --out=tried --size=tiny --only=train-large,run-deep"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder; the same command goes on where it stopped")
    parser.add_argument("--size", choices=("full", "tiny"), default="full", help="of the models (default: full)")
    parser.add_argument("--only", metavar="STAGE,...", help="some stages, in their order")


def run(out: str, size: str, only: str | None) -> int:
    """Runs the stages, prints what they found, and writes report.html into `out`.

    Returns:
      0; 2 where a stage failed; 128 and its number after a signal, and the same command goes on.

    Raises:
      UserError: there is no such stage, or no device.
    """
    from mhsh.bench.suite import SIZES, first_device, outcome, run_suite, stages  # loads jax

    every = stages(SIZES[size], first_device())
    names = [stage.name for stage in every]
    wanted = names if only is None else only.split(",")
    unknown = [name for name in wanted if name not in names]
    if unknown:
        raise UserError(f"--only={only}: there is no stage {unknown[0]!r}; allowed: {', '.join(names)}")
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [stage for stage in every if stage.name in wanted]
    stopped = run_suite(chosen, folder, _tell)
    found = {stage.name: outcome(stage, folder) for stage in chosen}
    done = [stage for stage in chosen if (ended := found[stage.name]) is not None and ended.state == "done"]
    _print(done, folder)
    if stopped is not None:
        print(f"stopped; the same command goes on: {len(done)} of {len(chosen)} stages are done")
        return 128 + stopped
    _write_report([stage.name for stage in done], folder)
    return 2 if any(ended is not None and ended.state == "failed" for ended in found.values()) else 0


def _tell(stage: Stage, ended: Outcome | None) -> None:
    if ended is None:
        print(f"{stage.name}: {stage.what} ...", flush=True)
    else:
        took = f" ({timing(ended.seconds)})" if ended.seconds else ""
        print(f"{stage.name}: {ended.state}{took}" + (f": {ended.reason}" if ended.reason else ""), flush=True)


def _print(done: Sequence[Stage], folder: Path) -> None:
    table = Table("STAGE", "", "TIME", "EACH SECOND", "MFU", "RATIO", box=None, pad_edge=False)
    for stage in done:
        if stage.is_run:
            continue
        results = read(str(folder / f"{stage.name}.json"))
        for cell in results.cells:
            setting = " ".join(f"{name} {value}" for name, value in cell.setting.items()) if len(results.cells) > 1 else ""
            for each in cell.candidates:
                table.add_row(
                    stage.name,
                    f"{each.label}{', ' if setting else ''}{setting}",
                    timing(each.seconds.median),
                    f"{quantity(each.rate, '').strip()} {results.unit}s",
                    f"{each.share_of_peak:.1%}" if each.share_of_peak else "",
                    f"{each.time_ratio.median:.2f}" if each.time_ratio else "",
                )
    if table.row_count:
        Console().print(table)


def _write_report(done: Sequence[str], folder: Path) -> None:
    from mhsh.cli.reports import compare  # loads what draws

    paths = [str(folder / name) for name in _IN_THE_REPORT if name.removesuffix(".json") in done]
    if paths:
        compare.run(paths, out=str(folder / "report.html"))
