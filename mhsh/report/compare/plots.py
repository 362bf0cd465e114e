"""The loss curves as PNG and SVG for papers. Equal input gives equal bytes."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mhsh.report.compare.comparison import Comparison
from mhsh.report.compare.figures import GROUPS, first_view
from mhsh.report.compare.unequal_marks import SIGN, unequal_conditions
from mhsh.report.render.figure_files import figure_bytes
from mhsh.report.render.outputs import MARK
from mhsh.report.render.styles import CurveStyle, curve_style
from mhsh.report.runs import downsample

_MOST_POINTS = 1500  # of one curve: a panel is some 600 pixels wide
_TITLES = {
    False: {"train": "training loss (thin: as logged; thick: smoothed)", "validation": "validation loss"},
    True: {
        "train": "training loss, smoothed (mean and 95 % interval)",
        "validation": "validation loss (mean and 95 % interval)",
    },
}


def picture(comparison: Comparison, kind: str = "png") -> bytes:
    """Training and validation loss by steps, side by side, as a `png` or an `svg`: groups with
    bands if any has several seeds, else runs.
    """
    grouped = first_view(comparison) == GROUPS
    figure = Figure(figsize=(11, 5.5), dpi=120, layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    entries: dict[str, Artist] = {}
    for axes, (split, title) in zip(panels, _TITLES[grouped].items(), strict=True):
        entries |= _groups(axes, comparison, split) if grouped else _runs(axes, comparison, split)
        _furnish(axes, comparison)
        axes.set_title(title, fontsize=11)
    panels[0].set_ylabel("loss, nats per token")
    _legend(figure, entries, comparison)
    return figure_bytes(figure, kind, MARK)


def _groups(axes: Axes, comparison: Comparison, split: str) -> dict[str, Artist]:
    entries: dict[str, Artist] = {}
    signs = unequal_conditions(comparison)
    for place, group in enumerate(comparison.groups):
        band, style = group.bands[split]["step"], curve_style(place)
        if not len(band.x):
            continue
        # The edge and the hatch keep bands distinct in print without colour.
        axes.fill_between(band.x, band.low, band.high, facecolor=style.color, alpha=0.2, linewidth=0)
        axes.fill_between(
            band.x, band.low, band.high, facecolor="none", edgecolor=style.color, alpha=0.4, linewidth=0.5, hatch=style.hatch
        )
        entries[_signed(group.name, signs[place])] = _line(axes, band.x, band.mean, style)
    return entries


def _runs(axes: Axes, comparison: Comparison, split: str) -> dict[str, Artist]:
    entries: dict[str, Artist] = {}
    signs = {
        run: differing
        for group, differing in zip(comparison.groups, unequal_conditions(comparison), strict=True)
        for run in group.runs
    }
    for index, run in enumerate(comparison.runs):
        if not run.drawable:
            continue
        curve, style = run.curves[split], curve_style(index)
        rows = downsample.thin(curve.loss, _MOST_POINTS)
        x, raw = curve.x["step"][rows], curve.loss[rows]
        if split == "train":
            axes.plot(x, raw, color=style.color, linewidth=0.5, alpha=0.35)
        drawn = downsample.smooth(curve.loss)[rows] if split == "train" else raw
        entries[_signed(run.name, signs[index])] = _line(axes, x, drawn, style)
        starts = curve.x["step"][downsample.gap_starts(curve.loss)]
        # A gap has no loss, so its mark is at the top edge.
        axes.plot(starts, np.full(len(starts), 0.97), "x", color=style.color, markersize=9, transform=axes.get_xaxis_transform())
    return entries


def _line(axes: Axes, x: np.ndarray, loss: np.ndarray, style: CurveStyle) -> Artist:
    (line,) = axes.plot(
        x,
        loss,
        color=style.color,
        linestyle=style.linestyle,
        linewidth=1.8,
        marker=style.marker,
        markersize=5,
        markevery=max(1, len(x) // 12),
    )
    return line


def _signed(name: str, differing: Sequence[str]) -> str:
    return f"{name} {SIGN}" if differing else name


def _furnish(axes: Axes, comparison: Comparison) -> None:
    for value, label in comparison.entropies:
        axes.axhline(value, color="#7F7F7F", linestyle=":", linewidth=1.2)
        shown = textwrap.shorten(label, 60, placeholder=" ...")
        axes.annotate(shown, (1, value), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8, parse_math=False)
    axes.set_xlabel(f"training steps{comparison.axis_suffix}")
    axes.grid(alpha=0.3)


def _legend(figure: Figure, entries: dict[str, Artist], comparison: Comparison) -> None:
    title = "\n".join(textwrap.fill(f"{SIGN} {line}", 130) for line in comparison.marks) or None
    placeholders = [f"curve {number}" for number in range(len(entries))]
    legend = figure.legend(list(entries.values()), placeholders, loc="outside lower center", ncols=2, handlelength=4, title=title)
    legend.get_title().set_parse_math(False)
    legend.get_title().set_fontsize(9)
    for entry, name in zip(legend.get_texts(), entries, strict=True):
        # Set afterwards and unparsed: a run's name may hold dollar signs or begin with an
        # underscore.
        entry.set_parse_math(False)
        entry.set_text(textwrap.fill(name, 60))
