"""The interactive loss curves: one plotly figure, and the other x-axes and smoothings that the page can switch it to."""

from __future__ import annotations

import dataclasses
import html
import json
from typing import Any

import numpy as np
import plotly.graph_objects as go

from mhsh.report import thinning
from mhsh.report.comparison import Comparison
from mhsh.report.curves import AXES, Curve
from mhsh.report.looks import Look, look

AXIS_TITLES = {
    "step": "training steps",
    "tokens": "training tokens",
    "flops": "training FLOPs",
    "seconds": "device seconds of training (compilation excluded)",
}
SPLIT_NAMES = {"train": "training", "validation": "validation"}
_DOTTED_UP_TO = 60  # points of a curve that each get a marker; longer curves get _SPARSE markers
_SPARSE = 12


@dataclasses.dataclass(frozen=True)
class Trace:
    """The values that one trace of the figure can be switched between; None stands for a gap."""

    run: int  # the place of its run in the comparison
    split: str
    x: dict[str, list[float | None]]  # by axis
    loss: list[float | None]  # nats per predicted token; 0.97 of the plot's height for a mark
    smooth: list[float | None]


@dataclasses.dataclass(frozen=True)
class Curves:
    """A figure as first shown, the switchable values of its traces, and what the page has to say about the drawing."""

    figure: go.Figure
    traces: tuple[Trace, ...]  # one for each trace of the figure, in its order
    split: str  # the split shown first
    notes: tuple[str, ...]

    def to_json(self) -> str:
        """Everything as one JSON object that is safe between script tags, whatever the run names hold."""
        content: dict[str, Any] = {
            "figure": json.loads(self.figure.to_json() or "{}"),
            "traces": [dataclasses.asdict(trace) for trace in self.traces],
            "axisTitles": AXIS_TITLES,
        }
        text = json.dumps(content, allow_nan=False, separators=(",", ":"))
        return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def plotly_text(text: str) -> str:
    """`text` as plotly must get it to show it as it is: plotly reads a small HTML of its own, entities included."""
    # A dollar sign would have it look for MathJax, which the page does not bring.
    return html.escape(text, quote=False).replace("$", "&#36;")


def draw_curves(comparison: Comparison) -> Curves:
    """Draws the loss of every run, training and validation, smoothed training first, over steps."""
    split = _first_split(comparison)
    figure = go.Figure(layout=_layout(comparison))
    traces: list[Trace] = []
    notes: list[str] = []
    for index, run in enumerate(comparison.runs):
        for name, curve in run.curves.items():
            if not len(curve):
                continue
            trace = _trace(index, name, curve)
            traces.append(trace)
            figure.add_trace(_line(run.name, trace, look(index), visible=name == split))
            gaps = thinning.gap_starts(curve.loss)
            if len(gaps):
                mark = _mark(index, name, curve, gaps)
                traces.append(mark)
                figure.add_trace(_gap_marks(run.name, mark, look(index), visible=name == split))
            notes += _notes(run.name, name, curve, len(trace.loss), gaps)
    return Curves(figure, tuple(traces), split, tuple(notes))


def _first_split(comparison: Comparison) -> str:
    """Training, unless some run that is drawn has no training rows."""
    drawn = [run for run in comparison.runs if run.drawable]
    return "train" if all(len(run.curves["train"]) for run in drawn) else "validation"


def _trace(run: int, split: str, curve: Curve) -> Trace:
    smooth = thinning.smooth(curve.loss) if split == "train" else curve.loss
    rows = thinning.thin(curve.loss)
    x = {axis: _values(curve.x[axis][rows]) for axis in AXES}
    return Trace(run, split, x, _values(curve.loss[rows]), _values(smooth[rows]))


def _mark(run: int, split: str, curve: Curve, gaps: np.ndarray) -> Trace:
    height: list[float | None] = [0.97] * len(gaps)
    return Trace(run, split, {axis: _values(curve.x[axis][gaps]) for axis in AXES}, height, height)


def _notes(name: str, split: str, curve: Curve, drawn: int, gaps: np.ndarray) -> list[str]:
    """What was done to a curve before it was drawn, in words."""
    notes = []
    kind = SPLIT_NAMES[split]
    if drawn < len(curve):
        notes.append(f"{name}: {drawn:,} of {len(curve):,} {kind} rows are drawn; every stretch keeps its lowest and its highest.")
    if len(gaps):
        steps = ", ".join(f"{step:,.0f}" for step in curve.x["step"][gaps][:5])
        more = f" and {len(gaps) - 5} more" if len(gaps) > 5 else ""
        notes.append(f"{name}: the {kind} loss is not finite from step {steps}{more} on: a gap, marked x at the top edge.")
    return notes


def _values(values: np.ndarray) -> list[float | None]:
    return [float(value) if finite else None for value, finite in zip(values, np.isfinite(values), strict=True)]


def _line(name: str, trace: Trace, style: Look, visible: bool) -> go.Scatter:
    dotted = len(trace.loss) <= _DOTTED_UP_TO
    return go.Scatter(
        x=trace.x["step"],
        y=trace.smooth,
        name=plotly_text(name),
        mode="lines+markers",
        line=dict(color=style.color, dash=style.dash, width=2),
        marker=dict(color=style.color, symbol=style.symbol, size=7, maxdisplayed=0 if dotted else _SPARSE),
        visible=visible,
        connectgaps=False,
        hoverlabel=dict(namelength=-1),
        hovertemplate="loss %{y:.4f} at %{x:,.4~g}<extra>%{fullData.name}</extra>",
    )


def _gap_marks(name: str, trace: Trace, style: Look, visible: bool) -> go.Scatter:
    return go.Scatter(
        x=trace.x["step"],
        y=trace.loss,
        yaxis="y2",
        name=plotly_text(f"{name}: loss not finite"),
        mode="markers",
        marker=dict(color=style.color, symbol="x", size=11, line=dict(width=1, color="#ffffff")),
        visible=visible,
        hoverlabel=dict(namelength=-1),
        hovertemplate="loss not finite from %{x:,.4~g} on<extra>%{fullData.name}</extra>",
    )


def _layout(comparison: Comparison) -> go.Layout:
    grid = "rgba(128,128,128,0.3)"
    entropy_lines = [
        dict(
            type="line",
            xref="paper",
            x0=0,
            x1=1,
            yref="y",
            y0=value,
            y1=value,
            line=dict(color="#7F7F7F", width=1.5, dash="dot"),
            label=dict(text=plotly_text(label), textposition="end", yanchor="bottom", font=dict(size=12)),
        )
        for value, label in comparison.entropies
    ]
    return go.Layout(
        template="none",
        autosize=True,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font=dict(family="system-ui, sans-serif", size=14),
        margin=dict(l=56, r=12, t=36, b=48),
        showlegend=False,  # the page has its own, which the keyboard reaches
        modebar=dict(bgcolor="rgba(0,0,0,0)", color="#7F7F7F", activecolor="#D55E00"),
        hovermode="closest",
        xaxis=dict(title=dict(text=AXIS_TITLES["step"]), gridcolor=grid, zeroline=False, automargin=True, exponentformat="SI"),
        yaxis=dict(title=dict(text="loss, nats per token"), gridcolor=grid, zeroline=False, automargin=True),
        # The marks of gaps have no loss to stand at; this axis is the height of the plot itself.
        yaxis2=dict(overlaying="y", range=[0, 1], fixedrange=True, visible=False),
        shapes=entropy_lines,
    )
