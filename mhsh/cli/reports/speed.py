"""`mhsh speed`: a table in the terminal, and beside each other speed.html, its pictures and a CSV
with all digits.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from mhsh.cli.parser import examples
from mhsh.errors import UserError
from mhsh.report import outputs
from mhsh.report.speed import page as speed_page
from mhsh.report.speed import plots
from mhsh.report.speed.comparison import Speed, read_speed
from mhsh.report.speed.cost import Cost, costs
from mhsh.report.speed.findings import MARK
from mhsh.report.speed.table import print_speed, to_csv
from mhsh.verdict.runs import load_runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.epilog = examples(
        "mhsh speed train.json inference.json",
        "mhsh speed train.json --runs runs/2l8h runs/16l1h --target=5.5",
    )
    parser.add_argument("files", nargs="+", metavar="FILE.json", help="--out of mhsh bench inference or mhsh bench train")
    parser.add_argument("--out", default="speed.html", metavar="FILE", help="the page (default: speed.html)")
    parser.add_argument("--runs", nargs="+", metavar="RUN", help="runs whose device-hours to --target are asked for")
    parser.add_argument("--target", type=float, metavar="LOSS", help="validation loss, nats a predicted token")


def run(files: Sequence[str], out: str, runs: Sequence[str] | None = None, target: float | None = None) -> int:
    """Draws what `mhsh bench train` and `mhsh bench inference` wrote to `files` into the page
    `out`, pictures and CSV beside it.

    With `runs` also their device-hours to the validation loss `target`.

    Returns:
      0, or 2 where a run could not be opened, has no device-hours, or measurements do not fit
      together; each is named on stderr.

    Raises:
      UserError: a file is of another kind or damaged, or something is in the way that is no former
        page of this command.
    """
    if (runs is None) != (target is None):
        raise UserError("device-hours need both --runs=RUN... and --target=LOSS; give both or neither")
    page = Path(out)
    pictures = {name: page.with_name(f"{page.stem}_{name}") for name in _pictures(runs is not None)}
    numbers = page.with_suffix(".csv")
    if page == numbers:
        raise UserError(f"--out={out} is the page, and beside it a .csv is written; name it .html")
    for path in (page, numbers, *pictures.values()):
        outputs.check_replaceable(path, MARK)
    speed = read_speed(files)
    found, problems = _costs(speed, runs, target)
    for problem in (*speed.problems, *problems):
        print(f"mhsh speed: {problem}", file=sys.stderr)
    outputs.write(page, speed_page.render(speed, found, target))
    outputs.write(numbers, to_csv(speed.rows))
    written = [numbers]
    for name, path in pictures.items():
        content = _drawn(name, speed, found, target)
        if content is not None:
            outputs.write(path, content)
            written.append(path)
    print_speed(speed, found, target)
    print(f"\nPage: {page}\nBeside it: {', '.join(str(path) for path in written)}")
    return 2 if speed.problems or problems else 0


def _pictures(with_costs: bool) -> list[str]:
    return [f"{name}.{kind}" for name in ("map", "lines", *(["cost"] if with_costs else [])) for kind in ("png", "svg")]


def _drawn(name: str, speed: Speed, found: Sequence[Cost], target: float | None) -> bytes | None:
    """None where there is nothing to draw."""
    what, kind = name.split(".")
    if what == "map":
        return plots.map_picture(speed.pairs, kind) if speed.pairs else None
    if what == "lines":
        return plots.line_picture(plots.panels(speed), speed.shapes, kind)
    if target is None or not any(cost.hours for cost in found):
        return None
    return plots.cost_picture(found, target, kind)


def _costs(speed: Speed, runs: Sequence[str] | None, target: float | None) -> tuple[list[Cost], list[str]]:
    """Of the runs that could be opened, and a line for all else."""
    if runs is None or target is None:
        return [], []
    loaded = load_runs(runs)
    found = costs(loaded.runs, speed.rows, target)
    damages = [problem for each in loaded.runs for problem in each.problems]
    refusals = [f"{cost.run}: {cost.refusal}" for cost in found if cost.refusal]
    return found, [*loaded.refused, *damages, *refusals]
