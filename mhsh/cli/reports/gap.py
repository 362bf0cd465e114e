"""mhsh gap: how the gap between the shapes of sweeps changes with tokens and with size. Never
imports jax.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from mhsh.cli.parser import examples
from mhsh.errors import UserError
from mhsh.files import absolute
from mhsh.report.render import outputs
from mhsh.report.render.terminal import print_line, print_table
from mhsh.report.sweep.cells import load_sweep
from mhsh.report.sweep.gap import findings, sweep_changes, sweep_gaps
from mhsh.report.sweep.gap_files import MARK, as_json, as_markdown, as_table, picture

KINDS = ("png", "svg")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.epilog = examples(
        "mhsh gap sweep",
        "mhsh gap small base large --over=lr --choosing-seeds=2",
    )
    parser.add_argument("folders", nargs="+", metavar="DIR", help="sweeps, the smallest model first, as `mhsh sweep` left them")
    parser.add_argument("--over", metavar="AXIS", help="take each setting at its best value of this axis, as `mhsh tuned` does")
    parser.add_argument("--choosing-seeds", type=int, metavar="N", help="with --over: as in `mhsh tuned`")
    parser.add_argument(
        "--out", default="gap.json", metavar="FILE", help="the JSON; a page in Markdown and pictures beside it (default: gap.json)"
    )


def run(folders: Sequence[str], over: str | None, choosing_seeds: int | None, out: str) -> int:
    """Prints how much higher each setting's loss ends than the first one's, and how that changed,
    and writes it to `out`, a page and pictures beside it.

    Raises:
      UserError: a folder holds no sweep, `over` is wrong, or a file is in the way.
    """
    if choosing_seeds is not None and over is None:
        raise UserError("--choosing-seeds goes with --over, the axis that they choose a value of")
    file = Path(out)
    if file.suffix != ".json":
        raise UserError(f"--out={out} is a JSON, and other files are written beside it; name it .json")
    pictures = {kind: file.with_suffix(f".{kind}") for kind in KINDS}
    page = file.with_suffix(".md")
    for path in (file, page, *pictures.values()):
        outputs.check_replaceable(path, MARK)
    names = [absolute(folder).name for folder in folders]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise UserError(f"two of the folders are called {repeated}; the sweeps are named by their folders, so rename one")
    sweeps = [sweep_gaps(name, load_sweep(folder), over, choosing_seeds) for name, folder in zip(names, folders, strict=True)]
    changes = sweep_changes(sweeps)
    said = findings(sweeps, changes)
    outputs.write(file, as_json(sweeps, changes, said))
    for kind, path in pictures.items():
        outputs.write(path, picture(sweeps, kind))
    outputs.write(page, as_markdown(sweeps, said, pictures["png"].name))
    console = Console(highlight=False)
    print_table(as_table(sweeps), console)
    for line in [*said, f"Written: {file} and {page.name}", f"Pictures: {', '.join(map(str, pictures.values()))}"]:
        print_line(line, console)
    return 0
