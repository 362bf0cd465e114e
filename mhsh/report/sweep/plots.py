"""A sweep's pictures as PNG and SVG: quality against an axis, and the stability map."""

from __future__ import annotations

import math
import textwrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mhsh.outcome import DIVERGED
from mhsh.report.render.figure_files import figure_bytes
from mhsh.report.render.outputs import MARK
from mhsh.report.render.styles import curve_style
from mhsh.report.sweep.cells import CONVERGED, PLATEAUED
from mhsh.report.sweep.quality import Quality
from mhsh.report.sweep.stability_map import LETTERS, Grid
from mhsh.report.sweep.tuning import Tuning

_COLUMNS = 4  # grids side by side
# Colour and hatch of a square; every other verdict is white.
_SQUARES = {CONVERGED: ("#BFE5D6", ""), PLATEAUED: ("#F7DDA0", "//"), DIVERGED: ("#EFA98A", "xx")}


def quality_picture(quality: Quality, kind: str) -> bytes:
    """Mean final validation loss with 95 % intervals against the axis, as a `png` or an `svg`.

    There is a line for each setting of the other axes, and a dash for each seed.
    """
    return figure_bytes(_quality_figure(quality), kind, MARK)


def sensitivity_picture(tuning: Tuning, kind: str) -> bytes:
    """As `quality_picture` of the tuned axis; the intervals are bands, and a ring marks each chosen
    value.
    """
    figure = _quality_figure(tuning.sensitivity)
    (axes,) = figure.axes
    for index, (setting, line) in enumerate(zip(tuning.settings, tuning.sensitivity.lines, strict=True)):
        style = curve_style(index)
        drawn = sorted((point.value, point.quality) for point in line.points if point.quality is not None)
        banded = [(value, estimated.low, estimated.high) for value, estimated in drawn if estimated.has_interval]
        x, low, high = zip(*banded, strict=True) if banded else ((), (), ())
        axes.fill_between(x, low, high, color=style.color, alpha=0.12, linewidth=0)
        chosen = [(value, estimated.mean) for value, estimated in drawn if value == setting.value]
        axes.plot(
            [value for value, _ in chosen], [mean for _, mean in chosen], "o", color=style.color, markersize=15, fillstyle="none"
        )
    axes.set_title("a ring: the value chosen", fontsize=9, loc="right")
    return figure_bytes(figure, kind, MARK)


def _quality_figure(quality: Quality) -> Figure:
    figure = Figure(figsize=(7.5, 4.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    values = sorted(point.value for point in quality.lines[0].points)
    if values[0] > 0 and values[-1] / values[0] >= 4:
        axes.set_xscale("log", base=2 if all(math.log2(value).is_integer() for value in values) else 10)
    axes.set_xticks(values, [str(value) for value in values])
    axes.minorticks_off()
    for index, line in enumerate(quality.lines):
        style = curve_style(index)
        points = sorted((point.value, point.quality) for point in line.points if point.quality is not None)
        x, y = [value for value, _ in points], [estimated.mean for _, estimated in points]
        half = [estimated.high - estimated.mean if estimated.has_interval else 0.0 for _, estimated in points]
        axes.errorbar(
            x, y, half, color=style.color, linestyle=style.linestyle, marker=style.marker, capsize=4, label=f"line {index}"
        )
        seeds = [(point.value, loss) for point in line.points for loss in point.losses]
        axes.plot([value for value, _ in seeds], [loss for _, loss in seeds], "_", color=style.color, markersize=16)
    if quality.lines[0].label:
        legend = figure.legend(loc="outside lower center", ncols=2, handlelength=4)
        for text, line in zip(legend.get_texts(), quality.lines, strict=True):
            # Set afterwards, so that dollar signs are not parsed as formulas.
            text.set_parse_math(False)
            text.set_text(textwrap.fill(line.label, 60))
    axes.set_xlabel(quality.axis.name)
    axes.set_ylabel("final validation loss, nats per token")
    axes.grid(alpha=0.3)
    return figure


def map_picture(grids: tuple[Grid, ...], kind: str) -> bytes:
    """All grids of a stability map beside each other, as a `png` or an `svg`."""
    columns = min(_COLUMNS, len(grids))
    rows = math.ceil(len(grids) / columns)
    figure = Figure(figsize=(1 + 3.2 * columns, 0.6 + 2.9 * rows), dpi=120, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).reshape(-1)
    for axes, grid in zip(panels, grids, strict=False):
        _draw_grid(axes, grid)
    for axes in panels[len(grids) :]:
        axes.set_axis_off()
    shown = {square.verdict for grid in grids for square in grid.squares.values()}
    figure.supxlabel("   ".join(f"{letter}: {verdict}" for verdict, letter in LETTERS.items() if verdict in shown), fontsize=9)
    return figure_bytes(figure, kind, MARK)


def _draw_grid(axes: Axes, grid: Grid) -> None:
    for (rate, depth), square in grid.squares.items():
        x, y = grid.learning_rates.index(rate), grid.depths.index(depth)
        color, hatch = _SQUARES.get(square.verdict, ("#FFFFFF", ""))
        axes.add_patch(Rectangle((x, y), 1, 1, facecolor=color, hatch=hatch, edgecolor="#6B6B6B", linewidth=0.8))
        text = "\n".join(filter(None, [LETTERS[square.verdict], square.figure, square.share]))
        plate = {"facecolor": "#FFFFFF", "edgecolor": "none", "pad": 1.5}
        axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=8, color="#1B1B1B", bbox=plate, parse_math=False)
    axes.set_xlim(0, len(grid.learning_rates))
    axes.set_ylim(0, len(grid.depths))
    axes.set_xticks([i + 0.5 for i in range(len(grid.learning_rates))], [f"{rate:g}" for rate in grid.learning_rates], fontsize=8)
    axes.set_yticks([i + 0.5 for i in range(len(grid.depths))], [str(depth) for depth in grid.depths], fontsize=8)
    axes.tick_params(length=0)
    axes.set_xlabel("learning rate", fontsize=9)
    axes.set_ylabel("layers", fontsize=9)
    axes.set_title(textwrap.fill(grid.title, 34), fontsize=10, parse_math=False)
