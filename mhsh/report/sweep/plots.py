"""A sweep's pictures as PNG and SVG: quality against an axis, and the stability map."""

from __future__ import annotations

import math
import textwrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mhsh.outcome import DIVERGED
from mhsh.report.render.figure_files import COLUMN, PAGE, add_legend, figure_bytes, figure_style
from mhsh.report.render.outputs import MARK
from mhsh.report.render.styles import curve_style
from mhsh.report.sweep.cells import CONVERGED, PLATEAUED
from mhsh.report.sweep.quality import Quality, spans_decades
from mhsh.report.sweep.stability_map import LETTERS, Grid
from mhsh.report.sweep.tuning import Tuning
from mhsh.verdict.words import SCHEME_NAMES

_COLUMNS = 4  # grids side by side
_LEAST_SEEDS = 3  # for a bar: that of two would be thirteen deviations long, and hide the lines
# Colour and hatch of a square; every other verdict is white.
_SQUARES = {CONVERGED: ("#BFE5D6", ""), PLATEAUED: ("#F7DDA0", "//"), DIVERGED: ("#EFA98A", "xx")}


def quality_picture(quality: Quality, kind: str) -> bytes:
    """Mean final validation loss with 95 % intervals against the axis, as a `png` or an `svg`.

    There is a line for each setting of the other axes, and a dash for each seed. Two seeds have no
    bar.
    """
    with figure_style():
        return figure_bytes(_quality_figure(quality), kind, MARK)


def sensitivity_picture(tuning: Tuning, kind: str) -> bytes:
    """As `quality_picture` of the tuned axis, and a ring marks each chosen value."""
    with figure_style():
        figure = _quality_figure(tuning.sensitivity, "; ring: the value chosen")
        (axes,) = figure.axes
        for index, (setting, line) in enumerate(zip(tuning.settings, tuning.sensitivity.lines, strict=True)):
            chosen = [point for point in line.points if point.quality is not None and point.value == setting.value]
            means = [point.quality.mean for point in chosen if point.quality is not None]
            axes.plot(
                [point.value for point in chosen], means, "o", color=curve_style(index).color, markersize=10, fillstyle="none"
            )
        return figure_bytes(figure, kind, MARK)


def _quality_figure(quality: Quality, remark: str = "") -> Figure:
    figure = Figure(figsize=(COLUMN, 2.3), layout="constrained")
    axes = figure.subplots()
    values = sorted(point.value for point in quality.lines[0].points)
    if spans_decades(values):
        axes.set_xscale("log", base=2 if all(math.log2(value).is_integer() for value in values) else 10)
    axes.set_xticks(values, [str(value) for value in values])
    axes.minorticks_off()
    handles = []
    for index, line in enumerate(quality.lines):
        style = curve_style(index)
        points = sorted((point.value, point.quality) for point in line.points if point.quality is not None)
        x, y = [value for value, _ in points], [estimated.mean for _, estimated in points]
        half = [estimated.high - estimated.mean if estimated.seeds >= _LEAST_SEEDS else 0.0 for _, estimated in points]
        handles.append(axes.errorbar(x, y, half, color=style.color, linestyle=style.linestyle, marker=style.marker))
        seeds = [(point.value, loss) for point in line.points for loss in point.losses if len(point.losses) > 1]
        axes.plot([value for value, _ in seeds], [loss for _, loss in seeds], "_", color=style.color, markersize=9, alpha=0.6)
    most = max((len(point.losses) for line in quality.lines for point in line.points), default=0)
    bars = "bars: 95 % intervals; " if most >= _LEAST_SEEDS else ""
    axes.set_xlabel(_words(quality.axis.name))
    axes.set_ylabel("final validation loss\n(nats per token)")
    caption = f"{bars}dashes: single seeds{remark}" if most > 1 else remark.removeprefix("; ")
    labels = [line.label for line in quality.lines]
    add_legend(figure, handles if labels[0] else [], labels if labels[0] else [], caption)
    return figure


def _words(name: str) -> str:
    """The name of a field as words, without formulas."""
    return name.replace("_", " ").replace("$", r"\$")


def map_picture(grids: tuple[Grid, ...], kind: str) -> bytes:
    """All grids of a stability map beside each other, as a `png` or an `svg`."""
    columns = min(_COLUMNS, len(grids))
    rows = math.ceil(len(grids) / columns)
    with figure_style():
        most = max(len(grid.learning_rates) for grid in grids)
        figure = Figure(figsize=(max(PAGE * columns / _COLUMNS, (0.42 + 0.43 * most) * columns), 1.85 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).reshape(-1)
        for axes, grid in zip(panels, grids, strict=False):
            _draw_grid(axes, grid)
        for axes in panels[len(grids) :]:
            axes.set_axis_off()
        shown = {square.verdict for grid in grids for square in grid.squares.values()}
        letters = ", ".join(f"{letter} {verdict}" for verdict, letter in LETTERS.items() if verdict in shown)
        add_legend(figure, [], [], f"{letters}; number: final validation loss, nats per token")
        return figure_bytes(figure, kind, MARK)


def _draw_grid(axes: Axes, grid: Grid) -> None:
    for (rate, depth), square in grid.squares.items():
        x, y = grid.learning_rates.index(rate), grid.depths.index(depth)
        color, hatch = _SQUARES.get(square.verdict, ("#FEFEFE", ""))
        axes.add_patch(Rectangle((x, y), 1, 1, facecolor=color, hatch=hatch, edgecolor="#6B6B6B", linewidth=0.5))
        text = "\n".join(filter(None, [LETTERS[square.verdict], square.figure, square.share]))
        plate = {"facecolor": "#FEFEFE", "edgecolor": "none", "pad": 1}
        axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=7, color="#111111", bbox=plate, parse_math=False)
    axes.set_xlim(0, len(grid.learning_rates))
    axes.set_ylim(0, len(grid.depths))
    axes.set_xticks([i + 0.5 for i in range(len(grid.learning_rates))], [f"{rate:g}" for rate in grid.learning_rates])
    axes.set_yticks([i + 0.5 for i in range(len(grid.depths))], [str(depth) for depth in grid.depths])
    axes.tick_params(length=0)
    axes.set_xlabel("learning rate")
    axes.set_ylabel("layers")
    axes.grid(False)
    axes.set_title(textwrap.fill(SCHEME_NAMES.get(grid.title, grid.title.replace("$", r"\$")), 34))
