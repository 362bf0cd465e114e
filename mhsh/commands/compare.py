"""`mhsh compare`: a table in the terminal, and beside each other report.html, curves.png, curves.svg and the numbers as CSV."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from mhsh.errors import UserError
from mhsh.report import csv_tables, outputs, page, plots
from mhsh.report.comparison import compare
from mhsh.report.runs import load_runs
from mhsh.report.table import print_comparison


def run(folders: Sequence[str], out: str, target: float | None = None, baseline: str | None = None) -> int:
    """Compares the runs in `folders` and writes the page to `out`, and the pictures and tables into the same folder.

    `target` (nats per predicted token) and `baseline` are those of mhsh.report.comparison.compare.

    Returns:
      0, or 2 where a folder could not be opened or its files are damaged; a line on stderr then names each, and the others are
      drawn all the same.

    Raises:
      UserError: there is nothing to draw, `out` or what goes beside it would overwrite something that is no former report, or
        `target` or `baseline` is none.
    """
    if not folders:
        raise UserError("no run is named; give the folders that --workdir named, as in mhsh compare runs/a runs/b")
    page_path = Path(out)
    picture_paths = {kind: page_path.with_name(f"curves.{kind}") for kind in ("png", "svg")}
    table_paths = {name: page_path.with_name(f"{name}.csv") for name in ("curves", "groups")}
    for path in (page_path, *picture_paths.values(), *table_paths.values()):
        outputs.check_replaceable(path)
    comparison = compare(load_runs(folders), target, baseline)
    for problem in comparison.problems:
        print(f"mhsh compare: {problem}", file=sys.stderr)
    if not any(item.drawable for item in comparison.runs):
        raise UserError(f"nothing to draw: none of the {len(folders)} folders named holds a run with a readable loss")
    pictures = {kind: plots.picture(comparison, kind) for kind in picture_paths}
    outputs.write(page_path, page.render(comparison, pictures["png"]))
    for kind, path in picture_paths.items():
        outputs.write(path, pictures[kind])
    outputs.write(table_paths["curves"], csv_tables.curves_table(comparison))
    outputs.write(table_paths["groups"], csv_tables.groups_table(comparison))
    # Written first: a closed pipe on stdout (mhsh compare ... | head) must not cost the report.
    print_comparison(comparison, Console(highlight=False))
    print(f"\nReport: {page_path}\nCurves: {', '.join(map(str, picture_paths.values()))}")
    print(f"Tables: {', '.join(map(str, table_paths.values()))}")
    return 2 if comparison.problems else 0
