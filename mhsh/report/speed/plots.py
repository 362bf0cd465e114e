"""Pictures of speed: maps of which shape is faster; time, throughput and memory with intervals."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import EngFormatter, FixedLocator, LogLocator, NullLocator, StrMethodFormatter

from mhsh.bench.intervals import Interval
from mhsh.report.figure_files import COLUMN, PAGE, add_legend, figure_bytes, figure_style
from mhsh.report.speed.comparison import Measurement, Setting, ShapePair, Speed, crossings, verdict
from mhsh.report.speed.cost import Cost
from mhsh.report.speed.findings import HOW_TO_READ, MARK, format_ratio, kind_name, pair_title
from mhsh.report.styles import curve_style

# Pale enough for black numbers, and darker than white for readers who do not see colours.
_SHALLOW, _DEEP = "#F0A36B", "#7FB4DC"
_MAP_COLORS = LinearSegmentedColormap.from_list("speed", [_SHALLOW, "#FEFEFE", _DEEP])
_SATURATED = math.log(2)  # a ratio of 2 either way has the full colour
_BLACK = "#111111"  # numbers on a coloured square, on dark paper too


@dataclasses.dataclass(frozen=True)
class PanelLine:
    """The line of one shape in a panel."""

    shape: int  # its place among the report's shapes
    sizes: Sequence[int]
    values: Sequence[Interval]


@dataclasses.dataclass(frozen=True)
class Panel:
    """One quantity against the batch or the length."""

    group: str  # kind, device, and the length (or batch) of all its lines
    size_name: str  # batch or length
    quantity: str
    unit: str
    lines: tuple[PanelLine, ...]


def panels(speed: Speed) -> list[Panel]:
    """All panels; those of one kind, device and length (or batch) follow each other."""
    found = []
    for kind, device in dict.fromkeys((row.kind, row.device) for row in speed.rows):
        measured = {shape: speed.first(kind, device, shape) for shape in speed.shapes}
        settings = {setting for cells in measured.values() for setting in cells}
        varied = 0 if len({batch for batch, _ in settings}) > 1 or len(settings) == 1 else 1
        for kept in sorted({setting[1 - varied] for setting in settings}):
            for name, unit, value in _quantities(kind):
                lines = _lines(speed.shapes, measured, varied, kept, value)
                if lines:
                    names = ("batch", "length")
                    group = f"{kind_name(kind)} on {device}, {names[1 - varied]} {kept}"
                    found.append(Panel(group, names[varied], name, unit, lines))
    return found


def _quantities(kind: str) -> list[tuple[str, str, Callable[[Measurement], Interval | None]]]:
    quantities: list[tuple[str, str, Callable[[Measurement], Interval | None]]] = [
        ("latency" if kind == "inference" else "step time", "s", lambda row: row.result.seconds),
        ("throughput", "tokens/s", lambda row: row.tokens_per_second),
    ]
    if kind == "train":
        quantities.append(("memory of a device", "B", lambda row: _exact(row.result.memory_bytes)))
    return quantities


def _exact(value: int | None) -> Interval | None:
    return Interval(float(value), float(value), float(value), 1.0) if value else None


def _lines(
    shapes: Sequence[str],
    measured: Mapping[str, Mapping[Setting, Measurement]],
    varied: int,
    kept: int,
    value: Callable[[Measurement], Interval | None],
) -> tuple[PanelLine, ...]:
    lines = []
    for index, shape in enumerate(shapes):
        points = {s[varied]: value(row) for s, row in sorted(measured[shape].items()) if s[1 - varied] == kept}
        there = {size: interval for size, interval in points.items() if interval is not None}
        if there:
            lines.append(PanelLine(index, list(there), list(there.values())))
    return tuple(lines)


def map_picture(pairs: Sequence[ShapePair], kind: str) -> bytes:
    """The map of every pair, as a `png` or an `svg`."""
    width = max(COLUMN, *(0.9 + 0.68 * len(pair.batches) for pair in pairs))
    height = max(1.0 + 0.42 * len(pair.lengths) for pair in pairs)
    with figure_style():
        columns = max(1, min(len(pairs), int(PAGE / width)))
        figure, axes = _grid(len(pairs), columns, width, height)
        for each, pair in zip(axes, pairs, strict=False):
            _draw_map(each, pair)
        if columns > 1:
            add_legend(figure, [], [], HOW_TO_READ)
        return figure_bytes(figure, kind, MARK)


def _draw_map(axes: Axes, pair: ShapePair) -> None:
    batches, lengths = pair.batches, pair.lengths
    ratios = np.full((len(lengths), len(batches)), np.nan)
    for (batch, length), ratio in pair.ratios.items():
        x, y = batches.index(batch), lengths.index(length)
        ratios[y, x] = math.log(ratio.median)
        _draw_cell(axes, x, y, ratio, f"cell_{batch}_{length}")
    axes.set_xlim(-0.5, len(batches) - 0.5)
    axes.set_ylim(-0.5, len(lengths) - 0.5)
    axes.set_xticks(range(len(batches)), [str(batch) for batch in batches])
    axes.set_yticks(range(len(lengths)), [str(length) for length in lengths])
    axes.tick_params(length=0)
    axes.grid(False)
    axes.set_xlabel("batch (rows)")
    axes.set_ylabel("length (tokens)")
    _draw_crossing(axes, pair, ratios)
    _title(axes, pair_title(pair))


def _draw_cell(axes: Axes, x: int, y: int, ratio: Interval, name: str) -> None:
    share = 0.5 + 0.5 * float(np.clip(math.log(ratio.median) / _SATURATED, -1, 1))
    unclear = verdict(ratio) == "open"
    color = _MAP_COLORS(share)
    axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=color, edgecolor="#555555", linewidth=0.5, gid=name))
    if unclear:
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, hatch="///", edgecolor="#999999", linewidth=0))
    frame = dict(facecolor="#FEFEFE", edgecolor="none", pad=1, alpha=0.9) if unclear else None
    big = dict(ha="center", va="bottom", color=_BLACK, fontsize=8, fontweight="normal" if unclear else "bold", bbox=frame)
    axes.text(x, y + 0.02, format_ratio(ratio.median), zorder=4, **big)
    small = dict(ha="center", va="top", color=_BLACK, fontsize=6, bbox=frame)
    axes.text(x, y - 0.08, f"{format_ratio(ratio.low)} to {format_ratio(ratio.high)}", zorder=4, **small)


def _draw_crossing(axes: Axes, pair: ShapePair, ratios: np.ndarray) -> None:
    """The line of equal time; between measured settings the logarithm of the ratio is linear."""
    style = dict(color=_BLACK, linewidth=1.6, zorder=3)
    halo = [patheffects.withStroke(linewidth=3, foreground="#FEFEFE")]
    if min(ratios.shape) > 1:
        if np.nanmin(ratios) < 0 < np.nanmax(ratios):
            # The line continues to the edges of the outer squares.
            places = [np.array([-0.5, *range(size), size - 0.5]) for size in ratios.shape]
            whole = np.ma.masked_invalid(np.pad(ratios, 1, mode="edge"))
            contour = axes.contour(places[1], places[0], whole, levels=[0.0], colors=_BLACK, linewidths=1.6, zorder=3)
            contour.set(path_effects=halo, gid="crossing")
        return
    along_batch = ratios.shape[0] == 1
    sizes = pair.batches if along_batch else pair.lengths
    line = {(setting[0] if along_batch else setting[1]): ratio for setting, ratio in pair.ratios.items()}
    for crossing in crossings(line):
        place = np.interp(math.log(crossing.at), np.log(sizes), range(len(sizes)))
        (axes.axvline if along_batch else axes.axhline)(place, path_effects=halo, gid="crossing", **style)


def line_picture(chosen: Sequence[Panel], shapes: Sequence[str], kind: str) -> bytes:
    """The panels, a row a group, with a legend below; as a `png` or an `svg`."""
    groups = list(dict.fromkeys(panel.group for panel in chosen))
    rows = [[panel for panel in chosen if panel.group == group] for group in groups]
    columns = max(map(len, rows))
    drawn = sorted({line.shape for panel in chosen for line in panel.lines})
    labels = [shapes[index] for index in drawn]
    with figure_style():
        figure, axes = _grid(columns * len(rows), columns, PAGE / columns, 1.9)
        for each, panel in zip(axes, (panel for row in rows for panel in row + [None] * (columns - len(row))), strict=True):
            if panel is None:
                each.remove()
            else:
                _draw_lines(each, panel)
                _title(each, f"{panel.group}: {panel.quantity}", PAGE / columns)
        by_shape: dict[str, Any] = {str(each.get_label()): each for axis in figure.axes for each in axis.containers}
        add_legend(figure, [by_shape[str(index)] for index in drawn], labels)
        return figure_bytes(figure, kind, MARK)


def panel_picture(panel: Panel) -> bytes:
    """One panel as an `svg`, without legend: the page has that."""
    with figure_style():
        figure, axes = _grid(1, 1, COLUMN, 2.3)
        _draw_lines(axes[0], panel)
        _title(axes[0], panel.quantity)
        return figure_bytes(figure, "svg", MARK)


def _draw_lines(axes: Axes, panel: Panel) -> None:
    for place, line in enumerate(panel.lines):
        style = curve_style(line.shape)
        # Side by side, so that no interval hides another.
        shift = 1.02 ** (place - (len(panel.lines) - 1) / 2)
        middle = np.array([value.median for value in line.values])
        spread = [[v.median - v.low for v in line.values], [v.high - v.median for v in line.values]]
        axes.errorbar(
            np.array(line.sizes) * shift,
            middle,
            yerr=spread if np.any(spread) else None,
            color=style.color,
            linestyle=style.linestyle,
            marker=style.marker,
            label=str(line.shape),
        )
    sizes = sorted({size for line in panel.lines for size in line.sizes})
    axes.set_xscale("log")
    axes.set_xlim(sizes[0] / 1.3, sizes[-1] * 1.3)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(EngFormatter(unit=panel.unit))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel({"batch": "batch (rows)", "length": "length (tokens)"}[panel.size_name])


def cost_picture(costs: Sequence[Cost], target: float, kind: str) -> bytes:
    """Device-hours of the runs that have some, with intervals; as a `png` or an `svg`."""
    drawn = [(cost, cost.hours) for cost in costs if cost.hours is not None]
    with figure_style():
        figure = Figure(figsize=(PAGE, 0.6 + 0.25 * len(drawn)), layout="constrained")
        axes = figure.subplots()
        for place, (_, hours) in enumerate(drawn):
            style = curve_style(place)
            spread = [[hours.median - hours.low], [hours.high - hours.median]]
            axes.errorbar([hours.median], [place], xerr=spread, color=style.color, marker=style.marker)
        names = [textwrap.shorten(f"{cost.run} on {cost.device}", 48, placeholder=" ...") for cost, _ in drawn]
        axes.set_yticks(range(len(drawn)), names, parse_math=False)
        axes.set_ylim(len(drawn) - 0.5, -0.5)
        axes.set_xlim(left=0)
        axes.set_xlabel(f"device-hours to validation loss {target:g}")
        axes.grid(False, axis="y")
        return figure_bytes(figure, kind, MARK)


def _title(axes: Axes, text: str, width: float = COLUMN) -> None:
    """In lines that fit a panel of that many inches."""
    axes.set_title("\n".join(textwrap.wrap(text, int(width / 0.073))), parse_math=False)


def _grid(count: int, columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels of that size in inches."""
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]
