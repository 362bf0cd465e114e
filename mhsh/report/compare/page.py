"""report.html: one file that opens without a network and runs only its own scripts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from markupsafe import Markup

from mhsh.report.compare.chart import Chart, describe_chart, to_json
from mhsh.report.compare.comparison import Comparison
from mhsh.report.compare.sections import render_parts
from mhsh.report.render.html import normalize_lines, read_asset, render_page
from mhsh.report.render.outputs import MARK

_SCRIPTS = [f"compare/scripts/{name}.js" for name in ("curves", "numbers", "switches", "chart", "export", "page")]


def render(comparison: Comparison, picture: bytes) -> bytes:
    """The page as UTF-8. `picture` is a PNG of the curves, for browsers without scripts."""
    return _render("compare/page.html", comparison, describe_chart(comparison), _SCRIPTS, picture=picture)


def render_live(comparison: Comparison, chart: Chart) -> bytes:
    """The page as UTF-8 for a server: it asks for the `pieces` that changed and puts them in place.

    `chart` is the comparison's, made once for page and pieces.
    """
    return _render("compare/live.html", comparison, chart, [*_SCRIPTS, "compare/scripts/watch.js"], connect="'self'")


def pieces(comparison: Comparison, chart: Chart) -> dict[str, str]:
    """What may change in a page of `render_live`, as JSON by name: the title, parts (HTML), and the
    chart, of which each run is a piece of its own.
    """
    pieces = {"title": json.dumps(comparison.headline.title)}
    pieces |= {f"part {name}": json.dumps(part) for name, part in render_parts(comparison, chart).items()}
    pieces |= {f"content {name}": to_json(value) for name, value in chart.content.items() if name != "runs"}
    return pieces | {f"run {place}": to_json(run) for place, run in enumerate(chart.content["runs"])}


def _render(template: str, comparison: Comparison, chart: Chart, scripts: Sequence[str], **values: Any) -> bytes:
    return render_page(
        template,
        title=comparison.headline.title,
        author=MARK,
        styles=[read_asset("render/page.css"), _read_uplot("uPlot.min.css"), read_asset("compare/page.css")],
        scripts=[_read_uplot("uPlot.iife.js"), *map(read_asset, scripts)],
        pictures="data: blob:",  # of the export as PNG
        parts=render_parts(comparison, chart),
        content=Markup(to_json(chart.content)),
        **values,
    )


def _read_uplot(name: str) -> str:
    """A file of uPlot, the JavaScript library that draws the chart (MIT), as uplot-python carries
    it. That package is not imported: it would import IPython.
    """
    path = Path(str(distribution("uplot-python").locate_file(f"uplot/static/{name}")))
    return normalize_lines(path.read_text(encoding="utf-8"))
