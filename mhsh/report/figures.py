"""The report's figures as SVG or PNG for papers. Equal reports give equal bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from mhsh.report.curves import Line, difference_lines, group_lines, spread
from mhsh.report.figure_files import (
    COLUMN,
    PAGE,
    PAPER,
    CurveStyle,
    add_legend,
    caption_characters,
    curve_style,
    figure_bytes,
    figure_style,
)
from mhsh.report.report import MARK, Curves, Points
from mhsh.text import format_loss, format_signed, shorten

_MOST_NAMED = 14  # groups; of more, the first ones have a colour and the others are grey
_GREY = "#8A8A8A"
# As on the page: of the steps, where a steep start may leave the y-axis; rows of lines that are
# shown whole.
_START, _SHORT = 0.1, 12
_TICK_CHARACTERS = 36  # below a figure of a column's width; more are turned
_ROW = 0.055  # of a panel's height: between final values


def curves_figure(curves: Curves, kind: str) -> bytes:
    """The mean loss of every group on the first split that has any, and beside it the differences
    to the baseline; as an `svg` or a `png`.
    """
    split = next((split for split in curves.splits if any(split in run.curves for run in curves.runs)), "")
    name, every = curves.splits.get(split, ""), range(len(curves.groups))
    references = [reference for reference in curves.references if reference.metric == "loss"]
    lines = {place: group_lines(curves, place, split) for place in every}
    panels = [(lines, f"{name} loss", [reference.value for reference in references])]
    caption = "bands: 95 % intervals"
    if curves.baseline is not None and any(group.pairs for group in curves.groups):
        changes = {place: difference_lines(curves, place, split) for place in every}
        panels.append((changes, f"difference in {name} loss", [0.0]))
        caption = f"{caption}; differences are to {curves.groups[curves.baseline].name}"
    with figure_style():
        figure = Figure(figsize=(PAGE, 2.5), layout="constrained")
        for axes, (drawn, title, levels) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _draw_panel(axes, drawn, is_difference=drawn is not lines)
            for value in levels:
                axes.axhline(value, color=_GREY, linestyle=":", zorder=1)
            axes.set_title(title)
            axes.set_ylabel("nats per token")
            axes.set_xlabel(next(iter(curves.axes.values())))
            axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
        drawn = [place for place in every if lines[place]]
        named = [place for place in drawn if place < _MOST_NAMED]
        handles: list[Artist] = [_sample(curve_style(place)) for place in named]
        labels = [curves.groups[place].name + " \u2260" * bool(curves.groups[place].unequal) for place in named]
        if len(drawn) > len(named):
            handles.append(Line2D([], [], color=_GREY, linewidth=1))
            labels.append(f"{len(drawn) - len(named)} others, named on the page")
        handles += [Line2D([], [], color=_GREY, linestyle=":")] * len(references)
        labels += [reference.label for reference in references]
        add_legend(figure, handles, labels, shorten(caption, caption_characters(PAGE)))
        return figure_bytes(figure, kind, MARK)


def points_figure(points: Points, kind: str) -> bytes:
    """As an `svg` or a `png`. Hollow points are those of the page."""
    with figure_style():
        figure = Figure(figsize=(COLUMN, 2.5), layout="constrained")
        axes = figure.subplots()
        for place, (series, x) in enumerate(zip(points.series, _beside(points), strict=True)):
            style = curve_style(place if series.group is None else series.group)
            y = [point.y for point in series.points]
            low = [point.y - point.low if point.low is not None else 0.0 for point in series.points]
            high = [point.high - point.y if point.high is not None else 0.0 for point in series.points]
            axes.errorbar(x, y, (low, high), color=style.color, linestyle=style.linestyle if series.joined else "none")
            for at, point in zip(x, series.points, strict=True):
                face = PAPER if point.hollow else style.color
                axes.plot([at], [point.y], style.marker, color=style.color, markerfacecolor=face, zorder=3)
        if points.log_x:
            axes.set_xscale("log")
        if points.log_y:
            axes.set_yscale("log")
        if points.ticks:
            words = [shorten(words, 16) for _, words in points.ticks]
            turned: dict[str, Any] = {"rotation": 45, "ha": "right"} if sum(map(len, words)) > _TICK_CHARACTERS else {}
            axes.set_xticks([at for at, _ in points.ticks], words, parse_math=False, **turned)
            axes.minorticks_off()
        for reference in points.references:
            axes.axhline(reference.value, color=_GREY, linestyle=":", zorder=1)
        axes.set_xlabel(points.x_title, parse_math=False)
        axes.set_ylabel(points.y_title.replace(", ", ",\n"), parse_math=False)
        handles: list[Artist] = [_sample(curve_style(p if s.group is None else s.group)) for p, s in enumerate(points.series)]
        handles += [Line2D([], [], color=_GREY, linestyle=":")] * len(points.references)
        add_legend(figure, handles, [series.name for series in points.series] + [each.label for each in points.references])
        return figure_bytes(figure, kind, MARK)


def _beside(points: Points) -> list[Float[np.ndarray, " points"]]:
    """Where the points of each series are drawn on the x-axis: a little apart where series share a
    place, since intervals that lie on each other hide each other.
    """
    places = [np.array([point.x for point in series.points]) for series in points.series]
    every = np.concatenate([*places, []])
    if len(np.unique(every)) == len(every):
        return places
    to, back = (np.log, np.exp) if points.log_x else (np.asarray, np.asarray)
    step = min(0.012, 0.05 / len(places)) * float(np.ptp(to(every)))
    return [back(to(each) + step * (place - (len(places) - 1) / 2)) for place, each in enumerate(places)]


def _draw_panel(axes: Axes, lines: Mapping[int, Sequence[Line]], is_difference: bool) -> None:
    """The lines of groups with their bands, clipped by a y-axis that shows the lines after their
    start, and the final values beside their ends.
    """
    each = [(place, line) for place, of_group in lines.items() for line in of_group]
    for place, line in each:
        if place >= _MOST_NAMED:
            axes.plot(line.x, line.y, color=_GREY, linewidth=0.6, alpha=0.4, zorder=1.5)
            continue
        style, every = curve_style(place), max(1, len(line.x) // 10)
        # Begun at different rows: markers of curves that lie on each other stay visible.
        first = len(axes.lines) * every // 5 % every
        axes.fill_between(line.x, line.low, line.high, color=style.color, alpha=0.18, linewidth=0)
        axes.plot(line.x, line.y, color=style.color, linestyle=style.linestyle, marker=style.marker, markevery=(first, every))
    first, last = min((line.x[0] for _, line in each), default=0.0), max((line.x[-1] for _, line in each), default=0.0)
    is_long = max((len(line.x) for _, line in each), default=0) > _SHORT
    start = first + _START * (last - first) if is_long else first
    values = np.concatenate([*(line.y[line.x >= start] for _, line in each), [0.0] * is_difference])
    values = values[np.isfinite(values)]
    if len(values):
        room = 0.06 * float(np.ptp(values)) or 0.05 * abs(float(values[0])) or 0.05
        axes.set_ylim(float(values.min()) - room, float(values.max()) + room)
    low, high = axes.get_ylim()
    ends = [(place, float(line.y[-1])) for place, line in each if place < _MOST_NAMED and low <= line.y[-1] <= high]
    heights = spread([(value - low) / (high - low) for _, value in ends], _ROW, 0.0, 1.0)
    for (place, value), height in zip(ends, heights, strict=True):
        text = format_signed(value) if is_difference else format_loss(value)
        axes.annotate(text, (1.02, height), xycoords="axes fraction", va="center", fontsize=6, color=curve_style(place).color)


def _sample(style: CurveStyle) -> Line2D:
    drawn = Line2D([], [])
    drawn.set(color=style.color, linestyle=style.linestyle, marker=style.marker)
    return drawn
