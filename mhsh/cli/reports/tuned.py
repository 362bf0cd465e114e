"""mhsh tuned: every setting of a sweep at its own best value of one axis. Never imports jax."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from mhsh.cli.parser import examples
from mhsh.report.render import outputs
from mhsh.report.render.terminal import print_line, print_table
from mhsh.report.sweep.cells import fairness_of, load_sweep
from mhsh.report.sweep.plots import sensitivity_picture
from mhsh.report.sweep.tuning import tune
from mhsh.report.sweep.tuning_files import as_csv, as_json, as_markdown, as_page, as_table

KINDS = ("png", "svg")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.epilog = examples(
        "mhsh tuned sweep --over=lr --by=heads_per_layer",
        "mhsh tuned sweep --over=lr --by=heads_per_layer,scheme --choosing-seeds=2",
    )
    parser.add_argument("folder", metavar="DIR", help="the sweep's folder, as `mhsh sweep --workdir` named it")
    parser.add_argument("--over", required=True, metavar="AXIS", help="the axis of which each setting gets its best value")
    parser.add_argument("--by", required=True, metavar="AXIS,...", help="all other axes of the sweep but the seeds")
    parser.add_argument(
        "--choosing-seeds",
        type=int,
        metavar="N",
        help="choose on the first N seeds, report the others (default: half, rounded down)",
    )


def run(folder: str, over: str, by: str, choosing_seeds: int | None) -> int:
    """Writes tuned.html, .md, .json, .csv and a picture into the sweep's folder, and prints
    what they say.

    Raises:
      UserError: the folder holds no sweep, or an axis or the number of seeds is wrong.
    """
    place = Path(folder)
    sweep = load_sweep(place)
    tuning = tune(sweep, over, by.split(","), choosing_seeds)
    reported = {name for setting in tuning.settings for name in setting.runs}
    fair = fairness_of(sweep, (cell for cell in sweep.cells if cell.plan.name in reported))
    pictures = {kind: sensitivity_picture(tuning, kind) for kind in KINDS}
    files = {
        "tuned.csv": as_csv(tuning),
        "tuned.json": as_json(tuning, fair, sweep.problems),
        **{f"tuned.{kind}": content for kind, content in pictures.items()},
        "tuned.md": as_markdown(tuning, fair, "tuned.png"),
        "tuned.html": as_page(tuning, fair, pictures["svg"], sweep.problems),
    }
    for name, content in files.items():
        outputs.write(place / name, content)
    console = Console(highlight=False)
    print_table(as_table(tuning), console)
    for line in [tuning.verdict, *fair, *tuning.warnings, f"Report: {place / 'tuned.html'}"]:
        print_line(line, console)
    return 0
