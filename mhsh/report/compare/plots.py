"""The loss curves as PNG and SVG for papers. Equal input gives equal bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from mhsh.report.compare.chart import GROUPS, SPLIT_NAMES, first_view
from mhsh.report.compare.comparison import Comparison
from mhsh.report.compare.unequal_marks import SIGN, unequal_conditions
from mhsh.report.render.figure_files import PAGE, add_legend, caption_characters, figure_bytes, figure_style
from mhsh.report.render.outputs import MARK
from mhsh.report.render.styles import CurveStyle, curve_style, run_styles
from mhsh.report.runs import downsample
from mhsh.verdict.curves import SPLITS
from mhsh.verdict.words import shorten

KINDS = ("png", "svg")
_MOST_POINTS = 1500  # of one curve: a panel is some 1,000 pixels wide
_MOST_NAMED = 14  # curves; of more, some are grey
_MOST_RAW = 6  # curves; of more, only the smoothed ones are drawn
_GREY = "#8A8A8A"
_OTHERS: dict[str, Any] = {"color": _GREY, "linewidth": 0.6, "alpha": 0.4, "zorder": 1.5}  # behind those with a name


def pictures(comparison: Comparison, width: float = PAGE, kinds: Sequence[str] = KINDS) -> dict[str, bytes]:
    """Training and validation loss by steps, by the kind of file: groups with bands if any has
    several seeds, else runs. The panels are side by side, and below each other where `width`
    (inches) is a column's.
    """
    grouped = first_view(comparison) == GROUPS
    names = _names(comparison, grouped)
    shown = _shown(comparison, names)
    splits = [split for split in SPLITS if any(len(run.curves[split]) for run in comparison.runs)] or ["train"]
    beside = width >= PAGE and len(splits) > 1
    with figure_style():
        styles = _styles(comparison, grouped, shown)
        labels = [names[place] for place in shown]
        others = len(names) - len(shown)
        labels += [f"{others} others, named on the page"] * bool(others)
        labels += [entropy] if (entropy := _entropy_label(comparison)) else []
        caption = _caption(comparison, grouped, width)
        figure = Figure(figsize=(width, 2.35 if beside or len(splits) == 1 else 1.6 * len(splits)), layout="constrained")
        grid = (1, len(splits)) if beside else (len(splits), 1)
        panels = figure.subplots(*grid, squeeze=False, sharex=True).reshape(-1)
        for axes, split in zip(panels, splits, strict=True):
            (_draw_groups if grouped else _draw_runs)(axes, comparison, split, styles)
            _draw_entropies(axes, comparison)
            axes.set_title(f"{SPLIT_NAMES[split]} loss")
            axes.set_ylabel("nats per token")
            axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
        for axes in panels if beside else panels[-1:]:
            axes.set_xlabel(f"training steps{comparison.axis_suffix}")
        handles: list[Artist] = [_sample(style) for style in styles.values()]
        handles += [Line2D([], [], color=_GREY, linewidth=1)] * bool(others)
        handles += [Line2D([], [], color=_GREY, linestyle=":")] * bool(entropy)
        add_legend(figure, handles, labels, caption)
        return {kind: figure_bytes(figure, kind, MARK) for kind in kinds}


def _names(comparison: Comparison, grouped: bool) -> dict[int, str]:
    """The name of every curve that is drawn, by the index of its group or run."""
    signs = {place: f" {SIGN}" if differing else "" for place, differing in enumerate(unequal_conditions(comparison))}
    if grouped:
        return {place: f"{group.name}{signs[place]}" for place, group in enumerate(comparison.groups)}
    of_run = {run: signs[place] for place, group in enumerate(comparison.groups) for run in group.runs}
    return {index: f"{run.name}{of_run[index]}" for index, run in enumerate(comparison.runs) if run.drawable}


def _shown(comparison: Comparison, names: Mapping[int, str]) -> list[int]:
    """The curves with a colour and a name: all, or the baseline and those that ended lowest."""
    if len(names) <= _MOST_NAMED:
        return list(names)
    results = comparison.results
    places = list(dict.fromkeys([results.baseline, *results.ranked, *range(len(comparison.groups))]))
    # Where runs are drawn, every group has one.
    grouped = len(comparison.groups) == len(names)
    indices = places if grouped else [index for place in places for index in comparison.groups[place].runs]
    return sorted([index for index in indices if index in names][:_MOST_NAMED])


def _styles(comparison: Comparison, grouped: bool, shown: list[int]) -> dict[int, CurveStyle]:
    """As on the page; where only some curves have a colour, those of the first ones."""
    every = run_styles(group.runs for group in comparison.groups)
    if len(shown) < len(comparison.groups):
        return {index: curve_style(place) for place, index in enumerate(shown)}
    return {index: curve_style(index) if grouped else every[index] for index in shown}


def _draw_groups(axes: Axes, comparison: Comparison, split: str, styles: Mapping[int, CurveStyle]) -> None:
    for place, group in enumerate(comparison.groups):
        band, style = group.bands[split]["step"], styles.get(place)
        if style is None:
            axes.plot(band.x, band.mean, **_OTHERS)
        elif len(band.x):
            axes.fill_between(band.x, band.low, band.high, color=style.color, alpha=0.18, linewidth=0)
            _draw_line(axes, band.x, band.mean, style)


def _draw_runs(axes: Axes, comparison: Comparison, split: str, styles: Mapping[int, CurveStyle]) -> None:
    for index, run in enumerate(comparison.runs):
        if not run.drawable:
            continue
        curve, style = run.curves[split], styles.get(index)
        rows = downsample.thin(curve.loss, _MOST_POINTS)
        x, raw = curve.x["step"][rows], curve.loss[rows]
        drawn = downsample.smooth(curve.loss)[rows] if split == "train" else raw
        if style is None:
            axes.plot(x, drawn, **_OTHERS)
            continue
        if drawn is not raw and len(comparison.runs) <= _MOST_RAW:
            axes.plot(x, raw, color=style.color, linewidth=0.4, alpha=0.3)
        _draw_line(axes, x, drawn, style)
        starts = curve.x["step"][downsample.gap_starts(curve.loss)]
        # A gap has no loss, so its mark is at the top edge.
        axes.plot(starts, np.full(len(starts), 0.97), "x", color=style.color, markersize=6, transform=axes.get_xaxis_transform())


def _draw_line(axes: Axes, x: np.ndarray, loss: np.ndarray, style: CurveStyle) -> None:
    every = max(1, len(x) // 10)
    # Begun at different rows: markers of curves that lie on each other stay visible.
    first = len(axes.lines) * every // 5 % every
    axes.plot(x, loss, color=style.color, linestyle=style.linestyle, marker=style.marker, markevery=(first, every))


def _sample(style: CurveStyle) -> Line2D:
    drawn = Line2D([], [])
    drawn.set(color=style.color, linestyle=style.linestyle, marker=style.marker)
    return drawn


def _entropy_label(comparison: Comparison) -> str:
    values = [value for value, _ in comparison.entropies]
    if not values:
        return ""
    low, high = min(values), max(values)
    return f"unigram entropy {low:.3f}" + (f" to {high:.3f}" if high > low else "")


def _caption(comparison: Comparison, grouped: bool, width: float) -> str:
    """One line: what a reader has to know, as much of it as fits."""
    longest = max((len(run.curves["train"]) for run in comparison.runs), default=0)
    few = len(comparison.runs) <= _MOST_RAW
    most = caption_characters(width)
    parts = []
    if comparison.marks:
        said = f"{SIGN} not comparable with "
        parts.append(said + shorten(comparison.groups[comparison.results.baseline].name, most - len(said)))
    if grouped:
        parts.append("mean over seeds, band: 95 % interval")
    elif downsample.smoothing_rows(longest) > 1:
        parts.append(f"training: running mean{', as logged behind it' if few else ''}")
    while len(parts) > 1 and len("; ".join(parts)) > most:
        parts.pop()
    return "; ".join(parts)


def _draw_entropies(axes: Axes, comparison: Comparison) -> None:
    low, high = axes.get_ylim()
    for value, _ in comparison.entropies:
        # Where all curves are far from it, it would only make them flat.
        if low <= value <= high:
            axes.axhline(value, color=_GREY, linestyle=":", zorder=1)
    axes.set_ylim(low, high)
