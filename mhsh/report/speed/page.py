"""speed.html: one file without scripts that opens without a network, in which every string from a
file is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from mhsh.report.render.static_page import bullets, picture, section, static_page, swatch, table
from mhsh.report.render.styles import curve_style
from mhsh.report.speed import plots as plots
from mhsh.report.speed.comparison import ShapePair, Speed
from mhsh.report.speed.cost import Cost
from mhsh.report.speed.findings import (
    COST_COLUMNS,
    HOW_TO_READ,
    MARK,
    ROW_COLUMNS,
    finding,
    headline,
    pair_title,
    rules,
    turning_points,
)


def render(speed: Speed, costs: Sequence[Cost], target: float | None) -> bytes:
    """The page as UTF-8. `target` is the loss that `costs` are to; None where there are none."""
    title = headline(speed)
    parts = (
        bullets([finding(pair) + "." for pair in speed.pairs] if len(speed.pairs) > 1 else []),
        _maps(speed.pairs),
        _cost_section(costs, target),
        _line_section(speed),
        section("Numbers", _table(ROW_COLUMNS, speed.rows, "Every measurement")),
        section("Problems", bullets(speed.problems, "problems")) if speed.problems else "",
        section("Rules", bullets(rules(speed, bool(costs)), "small")),
    )
    return static_page(title, MARK, ("render/page.css", "speed/page.css"), parts)


def _maps(pairs: Sequence[ShapePair]) -> str:
    if not pairs:
        return ""
    figures = [
        f"<figure>{_picture(plots.map_picture([pair], 'svg'), pair_title(pair))}{bullets(turning_points(pair), 'small')}</figure>"
        for pair in pairs
    ]
    reading = f'<p class="small">{HOW_TO_READ} In each cell the median of the rounds\' ratios, and its interval below it.</p>'
    return section("Where the deep one is faster", f'{reading}\n<div class="pictures">{"".join(figures)}</div>')


def _line_section(speed: Speed) -> str:
    legend = "".join(f"<li>{swatch(curve_style(index))}{escape(shape)}</li>" for index, shape in enumerate(speed.shapes))
    parts = [f'<ul class="legend" aria-label="Shapes">{legend}</ul>']
    found = plots.panels(speed)
    for group in dict.fromkeys(panel.group for panel in found):
        pictures = [
            f"<figure>{_picture(plots.panel_picture(panel), f'{group}: {panel.quantity} against {panel.size_name}')}</figure>"
            for panel in found
            if panel.group == group
        ]
        parts.append(f'<h3>{escape(group)}</h3>\n<div class="pictures">{"".join(pictures)}</div>')
    return section("Time, throughput and memory", "\n".join(parts))


def _cost_section(costs: Sequence[Cost], target: float | None) -> str:
    if target is None:
        return ""
    drawn = ""
    if any(cost.hours for cost in costs):
        found = _picture(plots.cost_picture(costs, target, "svg"), "Device-hours; their numbers are in the table below")
        drawn = f'<div class="pictures"><figure>{found}</figure></div>'
    content = (drawn, _table(COST_COLUMNS, costs, "Device-hours"))
    return section(f"Device-hours to validation loss {target:g}", "\n".join(content))


def _picture(svg: bytes, text: str) -> str:
    return picture(svg, "image/svg+xml", text)


def _table(columns: Sequence[tuple[str, Callable[[Any], str]]], rows: Sequence[Any], name: str) -> str:
    """A column that is empty throughout is left out."""
    shown = [column for column in columns if any(column[1](row) for row in rows)]
    return table([heading for heading, _ in shown], [[cell(row) for _, cell in shown] for row in rows], name)
