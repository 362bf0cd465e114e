"""The figures of a report, drawn inside `figure_style`: curves, points, differences and maps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from mhsh.report.curves import Line, difference_lines, group_lines
from mhsh.report.figure_files import COLUMN, INK, LINE, PAGE, CurveStyle, add_legend, curve_style, log_ticks
from mhsh.report.report import CurveGroup, Curves, Points, Report, Table, TableCell
from mhsh.text import count, shorten, shorten_all

_MOST_NAMED = 14  # groups; of more, the first ones have a colour and the others are grey
_GREY = "#8A8A8A"
_START = 10  # one row of so many at the start of a line, which may be steep, may leave the y-axis
_ROW = 0.19  # inches, of a table
_NAME = 34  # characters


def curves_figure(curves: Curves, width: float = PAGE) -> Figure:
    """The mean loss of every group on the first split that has any, and beside it the differences
    to the baseline.
    """
    split = next((split for split in curves.splits if any(split in run.curves for run in curves.runs)), "")
    name, every = curves.splits.get(split, ""), range(len(curves.groups))
    styles = [curve_style(group.color, group.variant) for group in curves.groups]
    lines = {place: group_lines(curves, place, split) for place in every}
    changes = {place: difference_lines(curves, place, split) for place in every}
    panels = [(lines, f"{name} loss", [reference.value for reference in curves.references])]
    panels += [(changes, f"difference in {name} loss", [0.0])] * bool(curves.baseline)
    figure = Figure(figsize=(width, 2.5), layout="constrained")
    for axes, (drawn, title, levels) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw_panel(axes, drawn, styles, is_difference=drawn is changes)
        for value in levels:
            axes.axhline(value, color=_GREY, linestyle=":", zorder=1)
        axes.set(title=title, ylabel="nats per token", xlabel=next(iter(curves.axes.values())))
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
    drawn = [place for place in every if lines[place]]
    entries: list[tuple[Artist, str]] = [
        (_sample(styles[place]), curves.groups[place].name + " \u2260" * bool(curves.groups[place].unequal))
        for place in drawn
        if place < _MOST_NAMED
    ]
    if others := len(drawn) - len(entries):
        entries.append((Line2D([], [], color=_GREY, linewidth=1), f"{others} others, named on the page"))
    entries += [(Line2D([], [], color=_GREY, linestyle=":"), reference.label) for reference in curves.references]
    caption = f"bands: 95 % intervals{f'; differences are to {curves.baseline}' if curves.baseline else ''}"
    add_legend(figure, entries, caption)
    return figure


def points_figure(points: Points, width: float = COLUMN) -> Figure:
    """Points with their intervals, against a logarithmic axis. An end that is open goes on."""
    figure = Figure(figsize=(width, 2.5), layout="constrained")
    axes = figure.subplots()
    styles = [curve_style(series.color, series.variant) for series in points.series]
    places = _spread_places(points)
    for series, style, x in zip(points.series, styles, places, strict=True):
        y = [point.y for point in series.points]
        low = [point.y - point.low if point.low is not None else 0.0 for point in series.points]
        high = [point.high - point.y if point.high is not None else 0.0 for point in series.points]
        axes.errorbar(x, y, (low, high), color=style.color, linestyle=style.linestyle, marker=style.symbol)
    axes.set_xscale("log")
    ticks = log_ticks(*axes.get_xlim())
    axes.set_xticks(ticks, map(_tick, ticks))
    axes.minorticks_off()
    for reference in points.references:
        axes.axhline(reference.value, color=_GREY, linestyle=":", zorder=1)
    bottom, top = axes.get_ylim()
    for series, style, x in zip(points.series, styles, places, strict=True):
        for at, point in ((at, point) for at, point in zip(x, series.points, strict=True) if point.is_open):
            ends = bottom if point.low is None else point.y, top if point.high is None else point.y
            axes.plot([at, at], ends, color=style.color)
    axes.set_ylim(bottom, top)
    axes.set_xlabel(points.x_title, parse_math=False)
    axes.set_ylabel(points.y_title.replace(", ", ",\n"), parse_math=False)
    entries = [(_sample(style), series.name) for style, series in zip(styles, points.series, strict=True)]
    add_legend(figure, entries + [(Line2D([], [], color=_GREY, linestyle=":"), each.label) for each in points.references])
    return figure


def _spread_places(points: Points) -> list[Float[np.ndarray, " points"]]:
    """The places on the x-axis at which the points of each series are drawn: a little apart where
    series share a place, since intervals that lie on each other hide each other.
    """
    places = [np.array([point.x for point in series.points]) for series in points.series]
    every = np.concatenate([*places, []])
    if len(np.unique(every)) == len(every):
        return places
    step = min(0.012, 0.05 / len(places)) * float(np.ptp(np.log(every)))
    return [each * np.exp(step * (place - (len(places) - 1) / 2)) for place, each in enumerate(places)]


def _tick(value: float) -> str:
    return count(value) if abs(value) >= 1e4 else f"{value:g}"


def _draw_panel(axes: Axes, lines: Mapping[int, Sequence[Line]], styles: Sequence[CurveStyle], is_difference: bool) -> None:
    """The lines of groups with their bands, clipped by a y-axis that shows the lines after their
    start, and of differences zero and the bands.
    """
    shown = [np.zeros(int(is_difference))]
    for place, line in ((place, line) for place, of_group in lines.items() for line in of_group):
        after = slice(len(line.x) // _START, None)
        shown += [values[after] for values in ((line.y, line.low, line.high) if is_difference else (line.y,))]
        if place >= _MOST_NAMED:
            axes.plot(line.x, line.y, color=_GREY, linewidth=0.6, alpha=0.4, zorder=1.5)
            continue
        style, every = styles[place], max(1, len(line.x) // 10)
        # Begun at different rows: markers of curves that lie on each other stay visible.
        first = len(axes.lines) * every // 5 % every
        axes.fill_between(line.x, line.low, line.high, color=style.color, alpha=0.18, linewidth=0)
        axes.plot(line.x, line.y, color=style.color, linestyle=style.linestyle, marker=style.symbol, markevery=(first, every))
    values = np.concatenate(shown)
    values = values[np.isfinite(values)]
    if len(values):
        room = 0.06 * float(np.ptp(values)) or 0.05 * abs(float(values[0])) or 0.05
        axes.set_ylim(float(values.min()) - room, float(values.max()) + room)


def _sample(style: CurveStyle) -> Line2D:
    return Line2D([], [], color=style.color, linestyle=style.linestyle, marker=style.symbol)


def forest_figure(report: Report, width: float = PAGE) -> Figure:
    """The difference of every group to its baseline with its interval, section by section, beside
    zero and the band of the margin. An interval that is cut goes on.
    """
    low, high = report.bounds
    drawn = [(table, row, row.full_cells[table.forests[0]]) for table in report.results for row in table.rows]
    drawn = [each for each in drawn if each[2].value is not None]
    names, shared = shorten_all([row.full_cells[0].text for _, row, _ in drawn], _NAME)
    lines: list[tuple[str, int | None, TableCell | None]] = []
    for table in report.results:
        lines += [(shorten(table.section, _NAME), None, None)] * (len(report.results) > 1)
        of_table = [(name, row.group, cell) for name, (source, row, cell) in zip(names, drawn, strict=True) if source is table]
        lines += [(f"{name} {cell.mark}".strip(), group, cell) for name, group, cell in of_table]
    figure = Figure(figsize=(width, 0.6 + _ROW * len(lines)), layout="constrained")
    axes = figure.subplots()
    if report.margin:
        axes.axvspan(-report.margin, report.margin, color=LINE, alpha=0.5, linewidth=0)
    axes.axvline(0.0, color=INK, linewidth=0.6)
    for at, (_, group, cell) in enumerate(lines):
        if cell is not None and cell.value is not None:
            curve = report.curves.groups[group] if report.curves is not None and group is not None else CurveGroup("", ())
            style = curve_style(curve.color, curve.variant)
            if cell.note:
                ends = [2 * low - high if cell.low is None else cell.low, 2 * high - low if cell.high is None else cell.high]
                axes.plot(ends, [at, at], color=style.color)
            axes.plot([cell.value], [at], style.symbol, color=style.color)
    room = 0.04 * (high - low)
    axes.set_xlim(low - room, high + room)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_yticks(range(len(lines)), [name for name, *_ in lines], parse_math=False)
    for label, (_, _, cell) in zip(axes.get_yticklabels(), lines, strict=True):
        label.set_fontweight("bold" if cell is None else "normal")
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("difference to the baseline, with its 95 % interval")
    if shared:
        axes.set_title(f"names without: {shared}", loc="left", parse_math=False)
    return figure


def map_figure(table: Table, width: float = PAGE) -> Figure:
    """A map of losses: the best of each row is darkest."""
    cells = [row.full_cells[1:] for row in table.rows]
    names, shared = shorten_all([row.full_cells[0].text for row in table.rows], _NAME)
    figure = Figure(figsize=(width, 0.7 + _ROW * len(cells)), layout="constrained")
    axes = figure.subplots()
    heat = np.array([[math.nan if cell.heat is None else 1 - cell.heat for cell in row] for row in cells])
    axes.pcolormesh(heat, cmap="Blues", vmin=0.0, vmax=2.2, edgecolor="white", linewidth=0.5)
    for y, row in enumerate(cells):
        for x, cell in enumerate(row):
            weight = "bold" if cell.mark else "normal"
            axes.text(x + 0.5, y + 0.5, cell.text, ha="center", va="center", fontsize=7, fontweight=weight)
    axes.set_xticks(np.arange(len(cells[0])) + 0.5, [column.name for column in table.columns[1:]])
    axes.set_yticks(np.arange(len(cells)) + 0.5, names, parse_math=False)
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.set_title(f"{table.title}; names without: {shared}" if shared else table.title, parse_math=False)
    return figure
