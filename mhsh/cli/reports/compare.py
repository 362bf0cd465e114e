"""`mhsh compare`: a table in the terminal, and beside each other report.html, the table as
Markdown, the curves for a page and for a column of a paper as PNG and SVG, and the numbers as CSV.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mhsh.cli.parser import examples
from mhsh.errors import UserError
from mhsh.report.render import outputs
from mhsh.run_folder import RunFolder
from mhsh.verdict.runs import find_runs, load_runs, loading

if TYPE_CHECKING:
    from mhsh.report.compare.comparison import Comparison

_FILES = (
    "curves.png",
    "curves.svg",
    "curves_column.png",
    "curves_column.svg",
    "curves.csv",
    "groups.csv",
    "results.md",
)  # beside the page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.epilog = examples("mhsh compare runs/6l4h_post_ln runs/24l1h_admin", "mhsh compare runs --watch")
    parser.add_argument("folders", nargs="+", metavar="RUN", help="a run, or a folder that holds runs, such as that of a sweep")
    parser.add_argument("--out", metavar="FILE", help="the page (default: report.html)")
    parser.add_argument(
        "--target", type=float, metavar="LOSS", help="the loss to reach (default: the worst final loss of a run that trained)"
    )
    parser.add_argument("--baseline", metavar="RUN", help="the run, or group of runs, to set against (default: the first)")
    parser.add_argument(
        "--treatment",
        metavar="FIELD,...",
        help="what is meant to differ: config fields, or `shape` (default), the residual included",
    )
    parser.add_argument(
        "--with-pretraining", action="store_true", help="count what the runs started from: steps, tokens, FLOPs and device seconds"
    )
    parser.add_argument("--watch", action="store_true", help="serve the page on this machine and refresh it while runs train")
    parser.add_argument("--port", type=int, metavar="N", help="where --watch serves it (default: any free port)")


def run(
    folders: Sequence[str],
    out: str | None = None,
    target: float | None = None,
    baseline: str | None = None,
    treatment: str | None = None,
    with_pretraining: bool = False,
    watch: bool = False,
    port: int | None = None,
) -> int:
    """Compares the runs that `folders` are or hold, and writes the page to `out` (report.html), and
    the pictures and tables into the same folder.

    `target` (nats per predicted token), `baseline`, `treatment` and `with_pretraining` are those of
    `compare`. With `watch` nothing is written: the page is served at `port` of the loopback
    interface and kept fresh.

    Returns:
      0, or 2 where a folder could not be opened or its files are damaged; a line on stderr then
      names each, and the others are drawn all the same.

    Raises:
      UserError: there is nothing to draw, `out` or what goes beside it would overwrite something
        that is no former report, or `target`, `baseline` or `treatment` is none.
    """
    if not folders:
        raise UserError("no run is named; give the folders that --workdir named, or one that holds them")
    options: dict[str, Any] = {"target": target, "baseline": baseline, "pretraining": with_pretraining}
    if treatment is not None:
        options["treatment"] = tuple(treatment.split(","))
    if watch:
        if out is not None:
            raise UserError("--watch serves the page and writes nothing; leave --out away")
        return _watch(folders, options, port or 0)
    if port is not None:
        raise UserError("--port is for --watch; give both or neither")
    comparison = _compare(folders, Path(out or "report.html"), options)
    return 2 if comparison.problems else 0


def _compare(folders: Sequence[str], page_path: Path, options: Mapping[str, Any]) -> Comparison:
    """Compares the runs, writes the report and prints it."""
    beside = [_beside(page_path, name) for name in _FILES]
    for path in (page_path, *beside):
        outputs.check_replaceable(path)
    with loading(folders) as loaded:
        # Imported only here: what measures and draws takes a second to import, and meanwhile others
        # read.
        from rich.console import Console

        from mhsh.report.compare import csv_tables, page, plots
        from mhsh.report.compare.comparison import compare
        from mhsh.report.compare.table import as_markdown, print_comparison
        from mhsh.report.render.figure_files import COLUMN

        comparison = compare(loaded(), **options)
    if not any(item.drawable for item in comparison.runs):
        raise UserError(f"nothing to draw: {'; '.join(comparison.problems)}")
    for problem in comparison.problems:
        print(f"mhsh compare: {problem}", file=sys.stderr)
    page_wide, column_wide = plots.pictures(comparison), plots.pictures(comparison, COLUMN)
    outputs.write(page_path, page.render(comparison, page_wide["png"]))
    tables = (
        csv_tables.curves_table(comparison),
        csv_tables.groups_table(comparison),
        as_markdown(comparison, beside[0].name),
    )
    for path, content in zip(beside, (*page_wide.values(), *column_wide.values(), *tables), strict=True):
        outputs.write(path, content)
    # Written first: a closed pipe on stdout (mhsh compare ... | head) must not cost the report.
    print_comparison(comparison, Console(highlight=False))
    prefix = beside[-1].name.removesuffix("results.md")
    print(f"\nReport: {page_path}")
    print(
        f"Beside it: {prefix}curves.png, .svg and .csv; {prefix}curves_column.png and .svg; {prefix}groups.csv; {prefix}results.md"
    )
    return comparison


def _beside(page_path: Path, name: str) -> Path:
    """Beside `report.html` it is `name`, beside `other.html` `other_NAME`: pages share no files."""
    return page_path.with_name(name if page_path.stem == "report" else f"{page_path.stem}_{name}")


def _watch(folders: Sequence[str], options: Mapping[str, Any], port: int) -> int:
    from mhsh.report.compare.comparison import compare
    from mhsh.report.compare.watch import LOOPBACK, Server, Watched

    watched = Watched(folders, lambda: compare(load_runs(folders), **options))
    try:
        if not any(RunFolder(folder).path.is_dir() for folder in folders):
            raise UserError(f"nothing to watch: none of {', '.join(folders)} is a folder; start a run first")
        watched.newest()  # what cannot be read or compared is said here, not to a browser
    except OSError as error:
        raise UserError(f"cannot read {error.filename}: {error.strerror}; give folders that can be read") from error
    server = Server(watched, port)
    # Suppressed from before the address is told: who reads it may interrupt at once.
    with server, contextlib.suppress(KeyboardInterrupt):
        # Flushed: whoever reads this through a pipe waits for the address.
        print(f"Watching {len(find_runs(folders)[0])} runs at {server.address} (Ctrl-C ends it)")
        print(f"From another machine: ssh -L {server.server_port}:{LOOPBACK}:{server.server_port} THIS-HOST", flush=True)
        server.serve_forever()
    return 0
