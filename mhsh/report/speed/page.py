"""speed.html: one file without scripts that opens without a network."""

from __future__ import annotations

from collections.abc import Sequence

from mhsh.report.figure_files import for_page
from mhsh.report.render.html import read_asset, render_page
from mhsh.report.render.table import Table
from mhsh.report.speed import plots
from mhsh.report.speed.comparison import Speed
from mhsh.report.speed.cost import Cost
from mhsh.report.speed.findings import HOW_TO_READ, MARK, finding, headline, pair_title, rules, turning_points
from mhsh.report.speed.table import COST_COLUMNS, MEASUREMENT_COLUMNS
from mhsh.report.styles import curve_style


def render(speed: Speed, costs: Sequence[Cost], target: float | None) -> bytes:
    """The page as UTF-8. `target` is the loss of the `costs`; None where there are none."""
    panels = plots.panels(speed)
    return render_page(
        "speed/page.html",
        title=headline(speed),
        author=MARK,
        styles=[read_asset("render/page.css"), read_asset("speed/page.css")],
        findings=[f"{finding(pair)}." for pair in speed.pairs] if len(speed.pairs) > 1 else [],
        how_to_read=HOW_TO_READ,
        maps=[
            {"svg": for_page(plots.map_picture([pair], "svg")), "text": pair_title(pair), "turning_points": turning_points(pair)}
            for pair in speed.pairs
        ],
        target=None if target is None else f"{target:g}",
        costs=None if target is None else Table.of(COST_COLUMNS, costs).without_empty_columns(),
        cost_picture=for_page(plots.cost_picture(costs, target, "svg"))
        if target is not None and any(cost.hours for cost in costs)
        else None,
        shapes=[{"name": shape, "style": curve_style(index)} for index, shape in enumerate(speed.shapes)],
        groups=[
            {"name": group, "panels": [_panel(panel) for panel in panels if panel.group == group]}
            for group in dict.fromkeys(panel.group for panel in panels)
        ],
        measurements=Table.of(MEASUREMENT_COLUMNS, speed.rows).without_empty_columns(),
        problems=speed.problems,
        rules=rules(speed, bool(costs)),
    )


def _panel(panel: plots.Panel) -> dict[str, bytes | str]:
    return {"svg": for_page(plots.panel_picture(panel)), "text": f"{panel.group}: {panel.quantity} against {panel.size_name}"}
