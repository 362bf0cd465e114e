"""sweep.html: one static file without scripts, in which every string from a run or a plan is escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources

from mhsh.report import wording
from mhsh.report.cells import COLUMNS
from mhsh.report.estimate import DIFFERENCE_RULE, INTERVAL_RULE
from mhsh.report.outputs import MARK
from mhsh.report.stability_map import LETTERS, SQUARE_RULE, Grid, Square
from mhsh.report.sweep_cells import VERDICT_RULES, Sweep, SweptCell
from mhsh.report.sweep_quality import QUALITY_RULE, Point, Quality, claims, difference_in_words, in_words
from mhsh.report.wording import printable

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
_SCROLLING = 'tabindex="0" role="region"'  # a part that scrolls sideways has to be reachable by keyboard


def render(sweep: Sweep, found: Sequence[Quality], grids: Sequence[Grid], pictures: Mapping[str, bytes]) -> bytes:
    """The page as UTF-8. `pictures` are PNGs of quality by axis path."""
    style = "".join(resources.files("mhsh.report").joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "sweep.css"))
    style_hash = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{style_hash}'; img-src data:; base-uri 'none'; form-action 'none'"
    title = f"Sweep over {wording.listing([printable(axis.name) for axis in sweep.axes])}"
    parts = (
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta name="generator" content="{MARK}">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        f"<style>{style}</style>",
        "</head>",
        "<body>",
        "<main>",
        f"<h1>{escape(title)}</h1>",
        _list([_counts(sweep), *(claim for quality in found for claim in claims(quality)), *(grid.summary() for grid in grids)]),
        *(_quality_section(quality, pictures[quality.axis.path]) for quality in found),
        _map_section(grids) if grids else "",
        _cells_section(sweep),
        _section("Problems", _list(sweep.problems, "problems")) if sweep.problems else "",
        _section("Rules", _list([*VERDICT_RULES, *_rules(found, grids)], "small")),
        "</main>",
        "</body>",
        "</html>",
    )
    return ("\n".join(parts) + "\n").encode()


def _rules(found: Sequence[Quality], grids: Sequence[Grid]) -> list[str]:
    return [SQUARE_RULE] * bool(grids) + [QUALITY_RULE, INTERVAL_RULE, DIFFERENCE_RULE] * bool(found)


def _counts(sweep: Sweep) -> str:
    counted = [f"{sweep.count(verdict)} {verdict}" for verdict in LETTERS if sweep.count(verdict)]
    return f"{len(sweep.cells)} cells: {', '.join(counted)}"


def _section(heading: str, body: str) -> str:
    return f'<section aria-label="{escape(heading)}">\n<h2>{escape(heading)}</h2>\n{body}\n</section>'


def _list(lines: Sequence[str], kind: str = "") -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="{kind}">{items}</ul>' if kind else f"<ul>{items}</ul>"


def _quality_section(quality: Quality, picture: bytes) -> str:
    name = printable(quality.axis.name)
    encoded = base64.b64encode(picture).decode()
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
            rows.append(_row(headings, cells))
    body = (
        f'<img class="picture" alt="Final validation loss against {escape(name)}; its numbers are in the table below" '
        f'src="data:image/png;base64,{encoded}">\n{_table(headings, rows, f"Quality against {name}")}'
    )
    return _section(f"Quality against {name}", body)


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
    return _section(
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
        f'<div class="scroll" {_SCROLLING} aria-label="{title}"><table class="map"><caption>{title}</caption>'
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
    headings = [*(printable(axis.name) for axis in sweep.axes), "verdict", *_COLUMNS]
    rows = [_row(headings, _cell_texts(cell)) for cell in sweep.cells]
    note = '<p class="small">Losses are in nats per predicted token. Device time is training time without compilation.</p>'
    return _section("All cells", _table(headings, rows, "All cells") + note)


def _cell_texts(cell: SweptCell) -> list[str]:
    columns = dict(COLUMNS)
    reason = f": {printable(cell.state.reason)}" if cell.state.reason else ""
    model = cell.plan.config.model
    figures = [columns[name](cell.summary) if cell.summary else "" for name in _COLUMNS[1:]]
    settings = [printable(str(value)) for value in cell.plan.settings.values()]
    return [*settings, cell.verdict + reason, f"{model.num_layers}L x {model.num_heads}H", *figures]


def _table(headings: Sequence[str], rows: Sequence[str], label: str) -> str:
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    # The roles stay when the small screen's stylesheet takes the table's own display away.
    return (
        f'<div class="scroll" {_SCROLLING} aria-label="{escape(label)}"><table class="summary" role="table">'
        f'<thead><tr role="row">{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _row(headings: Sequence[str], texts: Sequence[str]) -> str:
    cells = "".join(
        f'<td role="cell" data-label="{escape(heading)}">{escape(text)}</td>'
        for heading, text in zip(headings[1:], texts[1:], strict=True)
    )
    return f'<tr role="row"><th role="rowheader" scope="row">{escape(texts[0])}</th>{cells}</tr>'
