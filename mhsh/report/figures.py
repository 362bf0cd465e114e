"""The report's figures as SVG or PNG for papers. Equal reports give equal bytes."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from mhsh.report.lines import Line, difference_line, group_line, spread
from mhsh.report.render.figure_files import COLUMN, PAGE, PAPER, add_legend, figure_bytes, figure_style
from mhsh.report.render.styles import CurveStyle, curve_style
from mhsh.report.report import MARK, Curves, Points

_MOST_NAMED = 14  # groups; of more, the first ones have a colour and the others are grey
_GREY = "#8A8A8A"
_START = 0.1  # of the steps, where a steep start may leave the y-axis, as on the page
_ROW = 0.055  # of a panel's height: between final values


def curves_figure(curves: Curves, kind: str) -> bytes:
    """The mean loss of every group on the first split that has any, and beside it the differences
    to the baseline; as an `svg` or a `png`.
    """
    split = next((split for split in curves.splits if any(split in run.curves for run in curves.runs)), None)
    places = range(len(curves.groups))
    lines = {place: line for place in places if split and (line := group_line(curves, place, split))}
    changes = {place: line for place in places if split and (line := difference_line(curves, place, split))}
    name = curves.splits.get(split or "", "")
    panels = [(lines, f"{name} loss", [reference.value for reference in curves.references if reference.metric == "loss"])]
    if changes and curves.baseline is not None:
        panels.append((changes, f"difference in {name} loss", [0.0]))
    with figure_style():
        figure = Figure(figsize=(PAGE, 2.5), layout="constrained")
        for axes, (drawn, title, references) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            for place, line in drawn.items():
                _draw_line(axes, line, curve_style(place) if place < _MOST_NAMED else None)
            _limit(axes, list(drawn.values()), with_zero=drawn is changes)
            for value in references:
                axes.axhline(value, color=_GREY, linestyle=":", zorder=1)
            _write_ends(axes, drawn, signed=drawn is changes)
            axes.set_title(title)
            axes.set_ylabel("nats per token")
            axes.set_xlabel(next(iter(curves.axes.values())))
            axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
        named = [place for place in lines if place < _MOST_NAMED]
        handles: list[Artist] = [_sample(curve_style(place)) for place in named]
        labels = [curves.groups[place].name for place in named]
        if len(lines) > len(named):
            handles.append(Line2D([], [], color=_GREY, linewidth=1))
            labels.append(f"{len(lines) - len(named)} others, named on the page")
        handles += [Line2D([], [], color=_GREY, linestyle=":")] * len(curves.references)
        add_legend(figure, handles, [*labels, *(reference.label for reference in curves.references)], "bands: 95 % intervals")
        return figure_bytes(figure, kind, MARK)


def points_figure(points: Points, kind: str) -> bytes:
    """As an `svg` or a `png`. Hollow points are those of the page."""
    with figure_style():
        figure = Figure(figsize=(COLUMN, 2.5), layout="constrained")
        axes = figure.subplots()
        for place, series in enumerate(points.series):
            style = curve_style(place if series.group is None else series.group)
            x, y = [point.x for point in series.points], [point.y for point in series.points]
            low = [point.y - point.low if point.low is not None else 0.0 for point in series.points]
            high = [point.high - point.y if point.high is not None else 0.0 for point in series.points]
            axes.errorbar(x, y, (low, high), color=style.color, linestyle=style.linestyle if series.joined else "none")
            for point in series.points:
                face = PAPER if point.hollow else style.color
                axes.plot([point.x], [point.y], style.marker, color=style.color, markerfacecolor=face, zorder=3)
        if points.log_x:
            axes.set_xscale("log")
        if points.log_y:
            axes.set_yscale("log")
        if points.ticks:
            axes.set_xticks([at for at, _ in points.ticks], [words for _, words in points.ticks], parse_math=False)
            axes.minorticks_off()
        for reference in points.references:
            axes.axhline(reference.value, color=_GREY, linestyle=":", zorder=1)
        axes.set_xlabel(points.x_title, parse_math=False)
        axes.set_ylabel(points.y_title.replace(", ", ",\n"), parse_math=False)
        handles: list[Artist] = [_sample(curve_style(p if s.group is None else s.group)) for p, s in enumerate(points.series)]
        add_legend(figure, handles, [series.name for series in points.series])
        return figure_bytes(figure, kind, MARK)


def _draw_line(axes: Axes, line: Line, style: CurveStyle | None) -> None:
    if style is None:
        axes.plot(line.x, line.y, color=_GREY, linewidth=0.6, alpha=0.4, zorder=1.5)
        return
    every = max(1, len(line.x) // 10)
    # Begun at different rows: markers of curves that lie on each other stay visible.
    first = len(axes.lines) * every // 5 % every
    axes.fill_between(line.x, line.low, line.high, color=style.color, alpha=0.18, linewidth=0)
    axes.plot(line.x, line.y, color=style.color, linestyle=style.linestyle, marker=style.marker, markevery=(first, every))


def _limit(axes: Axes, lines: list[Line], with_zero: bool) -> None:
    """The y-axis shows the lines after their start, and clips their bands."""
    last = max((line.x[-1] for line in lines), default=0.0)
    shown = [line.y[line.x >= _START * last] if len(line.x) > 1 else line.y for line in lines]
    values = np.concatenate([*shown, [0.0] * with_zero]) if shown else np.array([])
    values = values[np.isfinite(values)]
    if len(values):
        room = 0.06 * float(np.ptp(values)) or 0.05 * abs(float(values[0])) or 0.05
        axes.set_ylim(float(values.min()) - room, float(values.max()) + room)


def _write_ends(axes: Axes, lines: dict[int, Line], signed: bool) -> None:
    """The final values of the named lines, beside their ends."""
    low, high = axes.get_ylim()
    ends = {place: float(line.y[-1]) for place, line in lines.items() if place < _MOST_NAMED and math.isfinite(line.y[-1])}
    heights = [(value - low) / (high - low) for value in ends.values()]
    for (place, value), at in zip(ends.items(), spread(heights, _ROW, 0.0, 1.0), strict=True):
        text = f"{value:+.3f}".replace("-", "\u2212") if signed else f"{value:.3f}"
        color = curve_style(place).color
        axes.annotate(text, (1.02, at), xycoords="axes fraction", va="center", fontsize=6, color=color)


def _sample(style: CurveStyle) -> Line2D:
    return Line2D([], [], color=style.color, linestyle=style.linestyle, marker=style.marker)
