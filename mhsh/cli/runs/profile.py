"""mhsh profile: where the time of a run's profiled steps went."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rich.console import Console
from rich.table import Table

from mhsh.cli.parser import examples
from mhsh.errors import UserError
from mhsh.run_folder import PROFILE_FOLDER, RunFolder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.epilog = examples("mhsh profile runs/2l8h", "mhsh profile runs/2l8h --json")
    parser.add_argument("folder", metavar="RUN")
    parser.add_argument("--json", dest="as_json", action="store_true", help="as JSON")


def run(folder: str, as_json: bool) -> int:
    """Prints milliseconds a step by phase and part of the model, for each profile of the run.

    Raises:
      UserError: the run has none, or a file of it is missing.
    """
    run_folder = RunFolder(folder)
    run_folder.read_config()  # a run, at all
    names = sorted(path.stem for path in (run_folder.path / PROFILE_FOLDER).glob("steps_*.json"))
    if not names:
        raise UserError(f"{run_folder.path} has no profile; train with --config.train.profile_steps=FIRST:LAST")
    from mhsh.training.tracking.profiling import summary  # loads jax

    profiles = [summary(run_folder.path, name) for name in names]
    if as_json:
        print(json.dumps(profiles, indent=2))
        return 0
    for profile in profiles:
        _print_table(profile)
    print(f"traces: {run_folder.path / PROFILE_FOLDER} (xprof --logdir, or the .trace.json.gz in Perfetto)")
    return 0


def _print_table(profile: dict[str, Any]) -> None:
    rows = profile["milliseconds_per_step"]
    total = sum(row["milliseconds"] for row in rows) or 1.0
    where = f"{profile['devices']} x {profile['device_kind']}"
    print(f"steps {profile['first_step']} to {profile['last_step']} on {where}: {total:,.1f} ms of operations a step")
    table = Table("PHASE", "PART", "ms", "share", box=None, pad_edge=False)
    for row in rows:
        if row["milliseconds"] >= 0.001 * total:
            table.add_row(row["phase"], row["part"], f"{row['milliseconds']:,.2f}", f"{row['milliseconds'] / total:.1%}")
    Console().print(table)
