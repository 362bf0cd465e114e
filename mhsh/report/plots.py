"""The loss curves as files for papers: PNG and SVG by matplotlib, equal input giving equal bytes."""

from __future__ import annotations

import textwrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mhsh.report import thinning
from mhsh.report.comparison import Comparison
from mhsh.report.figure_files import figure_bytes
from mhsh.report.looks import look
from mhsh.report.outputs import MARK

_PANELS = (("train", "training loss (thin: as logged; thick: smoothed)"), ("validation", "validation loss"))


def picture(comparison: Comparison, kind: str = "png") -> bytes:
    """Training and validation loss over steps, side by side, as a `png` or an `svg`."""
    figure = Figure(figsize=(11, 5.5), dpi=120, layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (split, title) in zip(panels, _PANELS, strict=True):
        _panel(axes, comparison, split)
        axes.set_title(title, fontsize=11)
    panels[0].set_ylabel("loss, nats per token")
    handles, labels = panels[0].get_legend_handles_labels()
    legend = figure.legend(handles, [f"run {i}" for i in range(len(labels))], loc="outside lower center", ncols=2, handlelength=4)
    for entry, label in zip(legend.get_texts(), labels, strict=True):
        # Set afterwards and unparsed: a run's name may hold dollar signs or begin with an underscore.
        entry.set_parse_math(False)
        entry.set_text(textwrap.fill(comparison.runs[int(label)].name, 60))
    return figure_bytes(figure, kind, MARK)


def _panel(axes: Axes, comparison: Comparison, split: str) -> None:
    for index, run in enumerate(comparison.runs):
        if not run.drawable:
            continue
        curve, style = run.curves[split], look(index)
        rows = thinning.thin(curve.loss)
        x, raw = curve.x["step"][rows], curve.loss[rows]
        drawn = thinning.smooth(curve.loss)[rows] if split == "train" else raw
        if split == "train":
            axes.plot(x, raw, color=style.color, linewidth=0.5, alpha=0.35)
        axes.plot(
            x,
            drawn,
            color=style.color,
            linestyle=style.linestyle,
            linewidth=1.8,
            marker=style.marker,
            markersize=5,
            markevery=max(1, len(x) // 12),
            label=str(index),
        )
        starts = curve.x["step"][thinning.gap_starts(curve.loss)]
        # A gap has no loss to stand at: the mark stands at the top edge, whatever the range of losses.
        axes.plot(starts, np.full(len(starts), 0.97), "x", color=style.color, markersize=9, transform=axes.get_xaxis_transform())
    for value, label in comparison.entropies:
        axes.axhline(value, color="#7F7F7F", linestyle=":", linewidth=1.2)
        shown = textwrap.shorten(label, 60, placeholder=" ...")
        axes.annotate(shown, (1, value), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8, parse_math=False)
    axes.set_xlabel("training steps")
    axes.grid(alpha=0.3)
