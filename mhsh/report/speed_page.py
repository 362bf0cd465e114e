"""speed.html: one file without scripts that opens without a network, in which every string from a file is escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from html import escape
from importlib import resources
from typing import Any

from mhsh.report import speed_plots as plots
from mhsh.report.looks import look
from mhsh.report.speed import Pair, Speed
from mhsh.report.speed_cost import Cost
from mhsh.report.speed_words import (
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
    style = _styles()
    hashed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{hashed}'; img-src data:; base-uri 'none'; form-action 'none'"
    title = escape(headline(speed))
    parts = (
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta name="generator" content="{MARK}">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title>",
        f"<style>{style}</style>",
        "</head>",
        "<body>",
        "<main>",
        f"<h1>{title}</h1>",
        _list([finding(pair) + "." for pair in speed.pairs] if len(speed.pairs) > 1 else []),
        _maps(speed.pairs),
        _cost_section(costs, target),
        _line_section(speed),
        _section("numbers", "Numbers", _table(ROW_COLUMNS, speed.rows, "Every measurement")),
        _section("problems", "Problems", _list(speed.problems, "problems")) if speed.problems else "",
        _section("rules", "Rules", _list(rules(speed, bool(costs)), "small")),
        "</main>",
        "</body>",
        "</html>",
    )
    return ("\n".join(parts) + "\n").encode()


def _styles() -> str:
    """As an HTML parser reads them, so that the hash is that of what the browser sees."""
    texts = [resources.files("mhsh.report").joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "speed.css")]
    return "".join(texts).replace("\r\n", "\n").replace("\r", "\n")


def _section(name: str, heading: str, content: str) -> str:
    return f'<section aria-labelledby="{name}-heading">\n<h2 id="{name}-heading">{heading}</h2>\n{content}\n</section>'


def _list(lines: Sequence[str], kind: str = "findings") -> str:
    return f'<ul class="{kind}">{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>' if lines else ""


def _maps(pairs: Sequence[Pair]) -> str:
    if not pairs:
        return ""
    figures = [
        f"<figure>{_picture(plots.map_picture([pair], 'svg'), pair_title(pair))}{_list(turning_points(pair), 'small')}</figure>"
        for pair in pairs
    ]
    reading = f'<p class="small">{HOW_TO_READ} In each cell the median of the rounds\' ratios, and its interval below it.</p>'
    return _section("maps", "Where the deep one is faster", f'{reading}\n<div class="pictures">{"".join(figures)}</div>')


def _line_section(speed: Speed) -> str:
    legend = "".join(f"<li>{look(index).swatch}{escape(shape)}</li>" for index, shape in enumerate(speed.shapes))
    parts = [f'<ul class="legend" aria-label="Shapes">{legend}</ul>']
    found = plots.panels(speed)
    for group in dict.fromkeys(panel.group for panel in found):
        pictures = [
            f"<figure>{_picture(plots.panel_picture(panel), f'{group}: {panel.quantity} against {panel.size_name}')}</figure>"
            for panel in found
            if panel.group == group
        ]
        parts.append(f'<h3>{escape(group)}</h3>\n<div class="pictures">{"".join(pictures)}</div>')
    return _section("lines", "Time, throughput and memory", "\n".join(parts))


def _cost_section(costs: Sequence[Cost], target: float | None) -> str:
    if target is None:
        return ""
    picture = ""
    if any(cost.hours for cost in costs):
        drawn = _picture(plots.cost_picture(costs, target, "svg"), "Device-hours; their numbers are in the table below")
        picture = f'<div class="pictures"><figure>{drawn}</figure></div>'
    content = (picture, _table(COST_COLUMNS, costs, "Device-hours"))
    return _section("cost", f"Device-hours to validation loss {target:g}", "\n".join(content))


def _picture(svg: bytes, text: str) -> str:
    # An image runs no scripts and has its styles to itself: the page's policy need not let them pass.
    return f'<img class="picture" alt="{escape(text)}" src="data:image/svg+xml;base64,{base64.b64encode(svg).decode()}">'


def _table(columns: Sequence[tuple[str, Callable[[Any], str]]], rows: Sequence[Any], name: str) -> str:
    """The first column heads its row; one that is empty throughout is left out."""
    shown = [column for column in columns if any(column[1](row) for row in rows)]
    headings = "".join(f'<th scope="col">{escape(heading)}</th>' for heading, _ in shown)
    lines = []
    for row in rows:
        cells = "".join(f'<td role="cell" data-label="{escape(title)}">{escape(cell(row))}</td>' for title, cell in shown[1:])
        lines.append(f'<tr role="row"><th role="rowheader" scope="row">{escape(shown[0][1](row))}</th>{cells}</tr>')
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{name}"><table class="summary" role="table">'
        # The roles stay when the small screen's stylesheet takes the table's own display away.
        f'<thead><tr role="row">{headings}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
    )
