"""Figures of tables, drawn inside `figure_style`: differences as a forest, and maps of losses."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure

from mhsh.report.figure_files import INK, LINE, PAGE, curve_style
from mhsh.report.report import CurveGroup, Report, Table, TableCell
from mhsh.text import shorten, shorten_all

_ROW = 0.19  # inches
_NAME = 34  # characters


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
                ends = [low - high if cell.low is None else cell.low, high - low if cell.high is None else cell.high]
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
