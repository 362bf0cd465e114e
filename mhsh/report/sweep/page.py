"""sweep.html: one static file without scripts, in which every string from a run or a plan is
escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from mhsh.report.compare.run_columns import COLUMNS
from mhsh.report.estimate import DIFFERENCE_RULE, INTERVAL_RULE
from mhsh.report.render.format import format_list
from mhsh.report.render.outputs import MARK
from mhsh.report.render.sanitize import sanitize
from mhsh.report.render.static_page import SCROLLING, bullets, picture, section, static_page, table
from mhsh.report.sweep.cells import VERDICT_RULES, Sweep, SweptCell
from mhsh.report.sweep.quality import QUALITY_RULE, Point, Quality, claims, difference_in_words, in_words
from mhsh.report.sweep.stability_map import LETTERS, SQUARE_RULE, Grid, Square

# Of the columns that runs have in `mhsh compare`; the first ones here are the settings.
_COLUMNS = (
    "shape",
    "validation loss, final",
    "validation loss, best (at step)",
    "training loss, final",
    "steps",
    "FLOPs",
    "device time",
)


def render(sweep: Sweep, found: Sequence[Quality], grids: Sequence[Grid], pictures: Mapping[str, bytes]) -> bytes:
    """The page as UTF-8. `pictures` are PNGs of quality by axis path."""
    parts = (
        bullets([_counts(sweep), *(claim for quality in found for claim in claims(quality)), *(grid.summary() for grid in grids)]),
        *(_quality_section(quality, pictures[quality.axis.path]) for quality in found),
        _map_section(grids) if grids else "",
        _cells_section(sweep),
        section("Problems", bullets(sweep.problems, "problems")) if sweep.problems else "",
        section("Rules", bullets([*VERDICT_RULES, *_rules(found, grids)], "small")),
    )
    title = f"Sweep over {format_list([sanitize(axis.name) for axis in sweep.axes])}"
    return static_page(title, MARK, ("render/page.css", "sweep/page.css"), parts)


def _rules(found: Sequence[Quality], grids: Sequence[Grid]) -> list[str]:
    return [SQUARE_RULE] * bool(grids) + [QUALITY_RULE, INTERVAL_RULE, DIFFERENCE_RULE] * bool(found)


def _counts(sweep: Sweep) -> str:
    counted = [f"{sweep.count(verdict)} {verdict}" for verdict in LETTERS if sweep.count(verdict)]
    return f"{len(sweep.cells)} cells: {', '.join(counted)}"


def _quality_section(quality: Quality, png: bytes) -> str:
    name = sanitize(quality.axis.name)
    several = bool(quality.lines[0].label)
    headings = [
        *["setting"] * several,
        name,
        "final validation loss",
        f"against {name} = {quality.axis.values[0]}",
        "not in the mean",
    ]
    rows = []
    for line in quality.lines:
        for point in line.points:
            cells = [
                *[line.label] * several,
                str(point.value),
                in_words(point),
                _difference(point, quality),
                "; ".join(point.missing),
            ]
            rows.append(cells)
    text = f"Final validation loss against {name}; its numbers are in the table below"
    content = f"{picture(png, 'image/png', text)}\n{table(headings, rows, f'Quality against {name}')}"
    return section(f"Quality against {name}", content)


def _difference(point: Point, quality: Quality) -> str:
    if point.against_first is None:
        return "the first value" if point.value == quality.axis.values[0] else ""
    return difference_in_words(point.against_first)


def _map_section(grids: Sequence[Grid]) -> str:
    shown = {square.verdict for grid in grids for square in grid.squares.values()}
    legend = "".join(
        f'<li><span class="key {_square_class(verdict)}"><span class="plate letter">{letter}</span></span>{escape(verdict)}</li>'
        for verdict, letter in LETTERS.items()
        if verdict in shown
    )
    maps = "\n".join(map(_grid, grids))
    return section(
        "Stability map: learning rate against depth", f'<ul class="legend">{legend}</ul>\n<div class="maps">{maps}</div>'
    )


def _grid(grid: Grid) -> str:
    headings = "".join(f'<th scope="col">{rate:g}</th>' for rate in grid.learning_rates)
    rows = []
    for depth in reversed(grid.depths):  # the deepest on top, as in the picture
        squares = "".join(_square(grid.squares.get((rate, depth))) for rate in grid.learning_rates)
        rows.append(f'<tr><th scope="row">{depth} layers</th>{squares}</tr>')
    title = escape(grid.title)
    return (
        f'<div class="scroll" {SCROLLING} aria-label="{title}"><table class="map"><caption>{title}</caption>'
        f'<thead><tr><th scope="col">learning rate</th>{headings}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _square(square: Square | None) -> str:
    if square is None:
        return "<td></td>"
    words = "<br>".join(escape(text) for text in (square.verdict, square.figure, square.share) if text)
    plate = f'<span class="plate"><span class="letter">{LETTERS[square.verdict]}</span> {words}</span>'
    return f'<td class="{_square_class(square.verdict)}">{plate}</td>'


def _square_class(verdict: str) -> str:
    return f"square-{verdict.replace(' ', '-')}"


def _cells_section(sweep: Sweep) -> str:
    headings = [*(sanitize(axis.name) for axis in sweep.axes), "verdict", *_COLUMNS]
    rows = [_cell_texts(cell) for cell in sweep.cells]
    note = '<p class="small">Losses are in nats per predicted token. Device time is training time without compilation.</p>'
    return section("All cells", table(headings, rows, "All cells") + note)


def _cell_texts(cell: SweptCell) -> list[str]:
    columns = dict(COLUMNS)
    reason = f": {sanitize(cell.state.reason)}" if cell.state.reason else ""
    model = cell.plan.config.model
    figures = [columns[name](cell.summary) if cell.summary else "" for name in _COLUMNS[1:]]
    settings = [sanitize(str(value)) for value in cell.plan.settings.values()]
    return [*settings, cell.verdict + reason, f"{model.num_layers}L x {model.num_heads}H", *figures]
