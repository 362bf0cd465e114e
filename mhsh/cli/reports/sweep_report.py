"""mhsh sweep-report: the results of a sweep so far, written into its folder. Never imports jax."""

from __future__ import annotations

import argparse
from pathlib import Path

from mhsh.cli.parser import examples
from mhsh.report.compare import page as compare_page
from mhsh.report.compare import plots as compare_plots
from mhsh.report.compare.comparison import compare
from mhsh.report.render import outputs
from mhsh.report.render.figure_files import COLUMN
from mhsh.report.sweep import page, plots, tables
from mhsh.report.sweep.cells import load_sweep, treatment_of
from mhsh.report.sweep.quality import claims, qualities
from mhsh.report.sweep.stability_map import map_axes, stability_map
from mhsh.verdict.runs import Loaded

KINDS = ("png", "svg")
COMPARISON = "comparison.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.epilog = examples("mhsh sweep-report sweep", "mhsh sweep-report runs/stability")
    parser.add_argument("folder", metavar="DIR", help="the sweep's folder")


def run(folder: str) -> int:
    """Writes sweep.html, .md, .json, .csv, pictures and the comparison of its runs into the
    sweep's folder, and prints what they say.

    Raises:
      UserError: the folder holds no sweep, or cannot be written to.
    """
    place = Path(folder)
    sweep = load_sweep(place)
    grids = stability_map(sweep)
    # The squares of a map hold what quality against its two axes would be.
    found = qualities(sweep, but=map_axes(sweep) or ())
    files = {"sweep.csv": tables.as_csv(sweep), "sweep.json": tables.as_json(sweep, found, grids)}
    pictures = {}
    for quality in found:
        drawn = {kind: plots.quality_picture(quality, kind) for kind in KINDS}
        files |= {f"quality_{quality.axis.name}.{kind}": drawn[kind] for kind in KINDS}
        pictures[quality.axis.path] = drawn["svg"]
    if grids:
        files |= {f"stability_map.{kind}": plots.map_picture(grids, kind) for kind in KINDS}
    runs = tuple(cell.run for cell in sweep.cells if cell.run is not None)
    curves: list[bytes] = []
    if runs:
        comparison = compare(Loaded(runs, ()), treatment=treatment_of(sweep.axes))
        drawn = compare_plots.pictures(comparison)
        curves = [drawn["svg"], compare_plots.pictures(comparison, COLUMN, ("svg",))["svg"]]
        files |= {f"curves.{kind}": drawn[kind] for kind in KINDS}
        files[COMPARISON] = compare_page.render(comparison, drawn["png"])
    drawings = {f"quality_{quality.axis.name}.png": f"Quality against {quality.axis.name}" for quality in found}
    drawings |= {"stability_map.png": "Stability map"} if grids else {}
    files["sweep.md"] = page.as_markdown(sweep, found, grids, drawings)
    files["sweep.html"] = page.render(sweep, found, grids, pictures, curves, COMPARISON)
    for name, content in files.items():
        outputs.write(place / name, content)
    for line in [claim for quality in found for claim in claims(quality)] + [grid.summary() for grid in grids]:
        print(line)
    print(f"Report: {place / 'sweep.html'}" + (f"\nComparison of its runs: {place / COMPARISON}" if runs else ""))
    return 0
