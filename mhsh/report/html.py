"""report.html: one file that opens without a network and runs only its own scripts.

Every value that a template prints is escaped. The page's content security policy admits its own
styles and scripts by their hashes, and nothing else.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
from collections.abc import Iterable
from importlib import resources
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mhsh.report.figure_files import CurveStyle, curve_style
from mhsh.report.report import CAUTION, DIFFERENCE, GROUPS, MARK, RUNS, Column, Curves, Report, Row, Table, TableCell
from mhsh.text import sanitize

_SCRIPTS = ("lines.js", "plot.js", "export.js", "page.js")
_REFERENCE = CurveStyle("#7F7F7F", (3, 4), "")
_VIEWS = {GROUPS: "means with 95 % bands", RUNS: "single runs", DIFFERENCE: "difference to the baseline"}


def to_html(report: Report, live: bool = False) -> bytes:
    """The page as UTF-8. A `live` one asks its server for what it is now."""
    scripts = [_read_uplot("uPlot.iife.js"), *map(_read_asset, _SCRIPTS), *[_read_asset("watch.js")] * live]
    style = _read_uplot("uPlot.min.css") + _read_asset("page.css")
    policy = (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes([style])}; img-src data: blob:; "
        f"connect-src {chr(39)}{'self' if live else 'none'}{chr(39)}; base-uri 'none'; form-action 'none'"
    )
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=report.title,
            author=MARK,
            policy=policy,
            style=Markup(style),
            scripts=list(map(Markup, scripts)),
            live=live,
            parts=_parts(report),
            content=Markup(_to_json(_content(report))),
        )
        .encode()
    )


def _parts(report: Report) -> dict[str, Markup]:
    """The HTML of each part of the page, by the id of its element. Those of curves are empty where
    there are none.
    """
    curves = report.curves
    style_of = functools.partial(_style_of, report)
    fields = [(field, field) for field in curves.fields] if curves else []
    views = [(view, words) for view, words in _VIEWS.items() if (curves and curves.baseline) or view != DIFFERENCE]
    values: dict[str, Any] = {"cells": _cells, "caution": _caution, "CAUTION": CAUTION, "reference_style": _REFERENCE}
    values |= {"views": views, "fields": fields, "curve_style": curve_style}
    made: Any = _environment().get_template("parts.html").make_module(values)
    forest = Forest(*report.bounds, report.margin) if report.differences else None
    claim, others = made.claim(report, style_of, forest), made.tables(report, style_of)
    parts = {"claim": claim, "figures": made.figures(report, style_of), "tables": others}
    if curves is not None:
        parts |= {"controls": made.controls(curves), "more": made.more(), "notes": made.notes(curves)}
    return {name: Markup(part.strip()) for name, part in parts.items()}


@dataclasses.dataclass(frozen=True)
class Forest:
    """The scale of the differences that are drawn beside their numbers."""

    low: float
    high: float
    margin: float | None

    def position(self, value: float) -> float:
        """A place in a picture that is 200 wide, with room for signs of what lies beyond."""
        return round(min(196.0, max(4.0, 8 + 184 * (value - self.low) / (self.high - self.low))), 1)

    @property
    def tick(self) -> float:
        """A round number that lies inside on one side at least."""
        most = max(self.high, -self.low)
        powers = (10.0**power for power in range(308, -324, -1))
        return next(step for power in powers for step in (5 * power, 2 * power, power) if step <= most)


def _style_of(report: Report, row: Row) -> CurveStyle | None:
    """The style of the curve of the row's group or run; None: it has none."""
    if report.curves is None or (row.run is None and row.group is None):
        return None
    if row.run is not None:
        return _run_style(report.curves, row.run)
    group = report.curves.groups[row.group or 0]
    return curve_style(group.color, group.variant)


def _cells(table: Table, row: Row) -> list[tuple[Column, TableCell]]:
    """The cells that stand in columns of their own: a caution stands below the name."""
    return [(column, cell) for column, cell in zip(table.columns, row.full_cells, strict=True) if column.name != CAUTION]


def _caution(table: Table, row: Row) -> str:
    return next((cell.text for column, cell in zip(table.columns, row.full_cells, strict=True) if column.name == CAUTION), "")


def _run_style(curves: Curves, run: int) -> CurveStyle:
    """The colour and the marker of its group, and a dash of its own."""
    group = next(group for group in curves.groups if run in group.runs)
    return curve_style(group.color, group.variant + group.runs.index(run))


def _content(report: Report) -> dict[str, Any]:
    """The data that the scripts read: the fields of Curves, the points, the styles of all lines."""
    content = msgspec.to_builtins(report.curves) if report.curves else {"runs": ()}
    content["points"] = msgspec.to_builtins(report.points)
    for series in (series for figure in content["points"] for series in figure["series"]):
        series.update(msgspec.to_builtins(curve_style(series["color"], series["variant"])))
    if report.curves is not None:
        for place, run in enumerate(content["runs"]):
            run["style"] = _run_style(report.curves, place)
        for group in content["groups"]:
            group["style"] = curve_style(group["color"], group["variant"])
        most = max((len(set(values)) for values in report.curves.fields.values()), default=0)
        content["styles"] = [curve_style(place) for place in range(most)]
    return content


def _to_json(value: Any) -> str:
    """JSON, safe between script tags whatever the names of runs hold. Not finite is null."""
    text = msgspec.json.encode(value).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _read_asset(name: str) -> str:
    """A file of the page, with the line ends that an HTML parser makes, so that its hash is the
    browser's.
    """
    return resources.files("mhsh.report").joinpath("page", name).read_text(encoding="utf-8")


def _read_uplot(name: str) -> str:
    """A file of uPlot, the JavaScript library that draws the figures (MIT), as uplot-python carries
    it. That package is not imported: it would import IPython.
    """
    return Path(str(distribution("uplot-python").locate_file(f"uplot/static/{name}"))).read_text(encoding="utf-8")


@functools.cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("mhsh.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        # Control characters and direction overrides are not for a reader's screen.
        finalize=lambda value: sanitize(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _hashes(texts: Iterable[str]) -> str:
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts)
