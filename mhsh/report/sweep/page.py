"""sweep.html: one file without scripts that opens without a network; and sweep.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mhsh.config.shapes import shape_name
from mhsh.report.compare.run_columns import COLUMNS
from mhsh.report.estimate import DIFFERENCE_RULE, INTERVAL_RULE
from mhsh.report.render.figure_files import for_page
from mhsh.report.render.html import read_asset, render_page
from mhsh.report.render.markdown import to_markdown
from mhsh.report.render.outputs import MARK
from mhsh.report.render.table import Table
from mhsh.report.sweep.cells import VERDICT_RULES, Sweep, SweptCell
from mhsh.report.sweep.parallel import parallel
from mhsh.report.sweep.quality import QUALITY_RULE, Quality, QualityPoint, claims, format_difference, format_quality
from mhsh.report.sweep.stability_map import LETTERS, SQUARE_RULE, Grid, as_table
from mhsh.text import sanitize
from mhsh.verdict.words import format_list

# Columns of runs as in `mhsh compare`; here the settings come before them.
_COLUMNS = (
    "shape",
    "validation loss, final",
    "validation loss, best (at step)",
    "training loss, final",
    "steps",
    "FLOPs",
    "device time",
)


def as_markdown(sweep: Sweep, qualities: Sequence[Quality], grids: Sequence[Grid], pictures: Mapping[str, str]) -> bytes:
    """The claims, `pictures` (descriptions by file) and the stability map as a table."""
    tables = [("", as_table(grids))] if grids else []
    return to_markdown(_claims(sweep, qualities, grids), pictures, tables)


def render(
    sweep: Sweep,
    qualities: Sequence[Quality],
    grids: Sequence[Grid],
    pictures: Mapping[str, bytes],
    curves: Sequence[bytes],
    comparison_file: str,
) -> bytes:
    """The page as UTF-8.

    Args:
      pictures: SVGs of quality, by axis path.
      curves: SVGs of all runs, for wide and narrow screens; empty where none has logged anything.
      comparison_file: the page of their comparison, beside this one.
    """
    shown = {square.verdict for grid in grids for square in grid.squares.values()}
    return render_page(
        "sweep/page.html",
        title=f"Sweep over {format_list([sanitize(axis.name) for axis in sweep.axes])}",
        author=MARK,
        styles=[read_asset("render/page.css"), read_asset("sweep/page.css")],
        claims=_claims(sweep, qualities, grids),
        curves=for_page(curves[0]) if curves else None,
        narrow_curves=for_page(curves[1]) if curves else None,
        comparison_file=comparison_file,
        parallel=parallel(sweep),
        qualities=[
            {"axis": sanitize(quality.axis.name), "svg": for_page(pictures[quality.axis.path]), "table": _quality_table(quality)}
            for quality in qualities
        ],
        grids=grids,
        letters=LETTERS,
        shown_letters={verdict: letter for verdict, letter in LETTERS.items() if verdict in shown},
        cells=_cells_table(sweep),
        problems=sweep.problems,
        rules=[
            *VERDICT_RULES,
            *([SQUARE_RULE] if grids else []),
            *([QUALITY_RULE, INTERVAL_RULE, DIFFERENCE_RULE] if qualities else []),
        ],
    )


def _claims(sweep: Sweep, qualities: Sequence[Quality], grids: Sequence[Grid]) -> list[str]:
    return [_counts(sweep), *(claim for quality in qualities for claim in claims(quality)), *(grid.summary() for grid in grids)]


def _counts(sweep: Sweep) -> str:
    counted = [f"{sweep.count(verdict)} {verdict}" for verdict in LETTERS if sweep.count(verdict)]
    return f"{len(sweep.cells)} cells: {', '.join(counted)}"


def _quality_table(quality: Quality) -> Table:
    name = sanitize(quality.axis.name)
    columns = ["setting", name, "final validation loss", f"against {name} = {quality.axis.values[0]}", "not in the mean"]
    rows = [
        [line.label, str(point.value), format_quality(point), _difference(point, quality), "; ".join(point.missing)]
        for line in quality.lines
        for point in line.points
    ]
    first = 0 if quality.lines[0].label else 1  # no other axes: no settings
    return Table(columns[first:], [row[first:] for row in rows])


def _difference(point: QualityPoint, quality: Quality) -> str:
    if point.against_first is None:
        return "the first value" if point.value == quality.axis.values[0] else ""
    return format_difference(point.against_first)


def _cells_table(sweep: Sweep) -> Table:
    columns = [*(sanitize(axis.name) for axis in sweep.axes), "verdict", *_COLUMNS]
    return Table(columns, [_cell_texts(cell) for cell in sweep.cells])


def _cell_texts(cell: SweptCell) -> list[str]:
    columns = dict(COLUMNS)
    reason = f": {sanitize(cell.state.reason)}" if cell.state.reason else ""
    numbers = [columns[name](cell.summary) if cell.summary else "" for name in _COLUMNS[1:]]
    settings = [sanitize(str(value)) for value in cell.plan.settings.values()]
    return [*settings, cell.verdict + reason, shape_name(cell.plan.config.model), *numbers]
