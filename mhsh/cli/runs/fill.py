"""mhsh fill: the likeliest words in the place of each [MASK], by a masked run."""

from __future__ import annotations

import argparse
import sys

from mhsh.cli.flags import add_checkpoint
from mhsh.cli.parser import examples
from mhsh.run_folder import RunFolder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.epilog = examples("mhsh fill runs/2l8h --text='The [MASK] sat.'", "mhsh fill runs/2l8h --top=3 < text.txt")
    parser.add_argument("folder", metavar="RUN")
    parser.add_argument("--text", metavar="TEXT", help="with a [MASK] or several (default: standard input)")
    parser.add_argument("--top", type=int, default=5, metavar="N", help="how many words for each (default: 5)")
    add_checkpoint(parser)


def run(folder: str, text: str | None, top: int, step: int | None, average: int) -> int:
    """Prints a line a word, probability first, and an empty line between the masks of `text` (None:
    standard input); see `LoadedModel.fill`.
    """
    from mhsh.inference import check_fill, check_objective, load

    check_objective(folder, RunFolder(folder).read_config(), "fill")
    given = sys.stdin.read().strip() if text is None else text
    check_fill(given, top)
    found = load(folder, step=step, average=average).fill(given, top=top)
    blocks = ("\n".join(f"{each.probability:.4f}  {each.token}" for each in candidates) for candidates in found)
    print("\n\n".join(blocks))
    return 0
