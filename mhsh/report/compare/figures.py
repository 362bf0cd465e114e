"""The interactive loss curves: one plotly figure, and the values that the page's switches show."""

from __future__ import annotations

import dataclasses
import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mhsh.report.compare.comparison import Comparison
from mhsh.report.compare.groups import Group
from mhsh.report.compare.unequal_marks import SIGN, unequal_conditions
from mhsh.report.render.format import format_list
from mhsh.report.render.styles import CurveStyle, curve_style, run_styles
from mhsh.report.runs import downsample
from mhsh.report.runs.curves import AXES, Curve
from mhsh.report.runs.loading import Run

AXIS_TITLES = {
    "step": "training steps",
    "tokens": "training tokens",
    "flops": "training FLOPs",
    "seconds": "device seconds of training (compilation excluded)",
}
SPLIT_NAMES = {"train": "training", "validation": "validation"}
RUNS, GROUPS = "runs", "groups"  # the two views
_DOTTED_UP_TO = 60  # points of a curve that each get a marker; longer curves get _SPARSE markers
_SPARSE = 12
_X_DIGITS, _LOSS_DIGITS = 7, 6  # that the page holds, more than a screen can show

Values = list[float | None]  # None stands for a gap


@dataclasses.dataclass(frozen=True)
class Trace:
    """What one trace draws, for every switch of the page. Fields that a part does not need are
    empty.
    """

    view: str  # RUNS or GROUPS
    part: (
        str  # line, band (between low and high of the line it belongs to), gaps (marks at the top edge) or sign (at the line's end)
    )
    member: int  # the index of its run or group in the comparison
    split: str
    line: int | None = None  # of a band or a sign: the index of its line in the figure
    x: Mapping[str, Values] = dataclasses.field(default_factory=dict)  # by axis
    y: Mapping[str, Values] = dataclasses.field(default_factory=dict)  # nats per token: `raw` and `smooth`, or by axis in GROUPS
    low: Mapping[str, Values] = dataclasses.field(default_factory=dict)  # by axis
    high: Mapping[str, Values] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class CurvesFigure:
    """A figure without its values, the values that the page switches between, and notes."""

    figure: Mapping[str, Any]  # data and layout in plotly's words
    traces: tuple[Trace, ...]  # one for each trace of the figure, in its order
    view: str  # shown first
    split: str  # shown first
    notes: tuple[str, ...]
    axis_titles: Mapping[str, str]

    def to_json(self) -> str:
        """One JSON object, safe between script tags whatever the names of runs hold."""
        content: dict[str, Any] = {
            "figure": self.figure,
            "traces": [{key: value for key, value in vars(trace).items() if value or value == 0} for trace in self.traces],
            "axisTitles": self.axis_titles,
        }
        text = json.dumps(content, allow_nan=False, separators=(",", ":"))
        return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def plotly_text(text: str) -> str:
    """`text` escaped for plotly, which reads a small HTML of its own, entities included."""
    # plotly would look for MathJax at a dollar sign, and the page has none.
    return html.escape(text, quote=False).replace("$", "&#36;")


def draw_figure(comparison: Comparison) -> CurvesFigure:
    """The loss of every run and of every group with its band, training and validation."""
    pen = _Pen(comparison.drawn_points)
    # Bands first: they lie below all lines.
    for place, group in enumerate(comparison.groups):
        pen.draw_group(place, group)
    styles = run_styles(group.runs for group in comparison.groups)
    for place, run in enumerate(comparison.runs):
        pen.draw_run(place, run, styles[place])
    for place, (group, differing) in enumerate(zip(comparison.groups, unequal_conditions(comparison), strict=True)):
        if differing:
            pen.sign(place, group, differing)
    figure = {"data": pen.data, "layout": _layout(comparison)}
    return CurvesFigure(
        figure,
        tuple(pen.traces),
        first_view(comparison),
        _first_split(comparison),
        (*pen.thinned_note(), *pen.notes),
        {axis: title + comparison.axis_suffix for axis, title in AXIS_TITLES.items()},
    )


def first_view(comparison: Comparison) -> str:
    """GROUPS as soon as one group has more than one seed."""
    return GROUPS if any(len(group.runs) > 1 for group in comparison.groups) else RUNS


def _first_split(comparison: Comparison) -> str:
    """Training, unless some run that is drawn has no training rows."""
    drawn = [run for run in comparison.runs if run.drawable]
    return "train" if all(len(run.curves["train"]) for run in drawn) else "validation"


class _Pen:
    """Collects the traces of one figure."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._longest = 0
        self.data: list[dict[str, Any]] = []
        self.traces: list[Trace] = []
        self.notes: list[str] = []

    def draw_group(self, place: int, group: Group) -> None:
        style = curve_style(place)
        for split, bands in group.bands.items():
            if not any(len(band.x) for band in bands.values()):
                continue
            banded = any(np.isfinite(band.low).any() for band in bands.values())
            if banded:
                # The line comes right after its band.
                self._add(Trace(GROUPS, "band", place, split, line=len(self.traces) + 1), _band(group.name, style))
            x, mean, low, high = (
                {axis: _values(getattr(band, field), digits) for axis, band in bands.items()}
                for field, digits in (("x", _X_DIGITS), ("mean", _LOSS_DIGITS), ("low", _LOSS_DIGITS), ("high", _LOSS_DIGITS))
            )
            points = max(len(values) for values in x.values())
            line = Trace(GROUPS, "line", place, split, x=x, y=mean, low=low if banded else {}, high=high if banded else {})
            self._add(line, _line(group.name, points, style))

    def draw_run(self, place: int, run: Run, style: CurveStyle) -> None:
        for split, curve in run.curves.items():
            if not len(curve):
                continue
            rows = downsample.thin(curve.loss, self._most)
            self._longest = max(self._longest, len(curve))
            y = {"raw": _values(curve.loss[rows], _LOSS_DIGITS)}
            if split == "train":
                y["smooth"] = _values(downsample.smooth(curve.loss)[rows], _LOSS_DIGITS)
            self._add(Trace(RUNS, "line", place, split, x=_x(curve, rows), y=y), _line(run.name, len(rows), style))
            gaps = downsample.gap_starts(curve.loss)
            if len(gaps):
                height: Values = [0.97] * len(gaps)  # of the plot
                self._add(Trace(RUNS, "gaps", place, split, x=_x(curve, gaps), y={"raw": height}), _gap_marks(run.name, style))
                self.notes.append(_gap_note(run.name, split, curve, gaps))

    def sign(self, place: int, group: Group, differing: Sequence[str]) -> None:
        """Puts SIGN at the end of every line of the group and of its runs."""
        members = {(GROUPS, place), *((RUNS, run) for run in group.runs)}
        for number, trace in enumerate(tuple(self.traces)):
            if trace.part == "line" and (trace.view, trace.member) in members:
                drawn = self.data[number]
                text = plotly_text(f"other {format_list(list(differing))} than the baseline")
                self._add(
                    Trace(trace.view, "sign", trace.member, trace.split, line=number),
                    _sign(drawn["name"], drawn["line"]["color"], text),
                )

    def thinned_note(self) -> tuple[str, ...]:
        if self._longest <= self._most:
            return ()
        return (
            f"Of each longer curve {self._most:,} rows are drawn (the longest has {self._longest:,}); "
            "every stretch keeps its lowest and its highest.",
        )

    def _add(self, trace: Trace, drawn: dict[str, Any]) -> None:
        self.traces.append(trace)
        self.data.append(drawn)


def _x(curve: Curve, rows: np.ndarray) -> dict[str, Values]:
    return {axis: _values(curve.x[axis][rows], _X_DIGITS) for axis in AXES}


def _values(values: np.ndarray, digits: int) -> Values:
    """Rounded to `digits` significant digits, which makes the page a third smaller. None where not
    finite.
    """
    finite = np.isfinite(values)
    sizes = np.abs(np.where(finite & (values != 0), values, 1.0))
    # Products and quotients with powers of ten that a float holds exactly: the results print with
    # no more digits than asked for.
    places = np.minimum(digits - 1 - np.floor(np.log10(sizes)), 300)
    up, down = 10.0 ** np.maximum(places, 0), 10.0 ** np.maximum(-places, 0)
    with np.errstate(over="ignore"):
        rounded = np.rint(np.where(finite, values, 0.0) * up / down) / up * down
    # The largest floats have nothing above them to be rounded to.
    rounded = np.where(np.isfinite(rounded), rounded, values)
    return [value if known else None for value, known in zip(rounded.tolist(), finite.tolist(), strict=True)]


def _gap_note(name: str, split: str, curve: Curve, gaps: np.ndarray) -> str:
    steps = ", ".join(f"{step:,.0f}" for step in curve.x["step"][gaps][:5])
    more = f" and {len(gaps) - 5} more" if len(gaps) > 5 else ""
    since = f"{name}: the {SPLIT_NAMES[split]} loss is not finite from step {steps}{more} on"
    return f"{since}: a gap; among single runs, x marks it at the top edge."


def _line(name: str, points: int, style: CurveStyle) -> dict[str, Any]:
    return dict(
        type="scatter",
        name=plotly_text(name),
        mode="lines+markers",
        line=dict(color=style.color, dash=style.dash, width=2),
        marker=dict(color=style.color, symbol=style.symbol, size=7, maxdisplayed=0 if points <= _DOTTED_UP_TO else _SPARSE),
        connectgaps=False,
        hoverlabel=dict(namelength=-1),
        hovertemplate="loss %{y:.4f}%{text} at %{x:,.4~g}<extra>%{fullData.name}</extra>",
    )


def _band(name: str, style: CurveStyle) -> dict[str, Any]:
    return dict(
        type="scatter",
        name=plotly_text(f"{name}: 95 % interval"),
        mode="lines",
        line=dict(color=style.color, width=0.75),
        fill="toself",
        fillpattern=dict(shape=style.pattern, fillmode="overlay", fgcolor=style.color, fgopacity=0.35, size=9, solidity=0.15),
        fillcolor=_translucent(style.color),
        hoverinfo="skip",
    )


def _translucent(color: str) -> str:
    red, green, blue = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"


def _gap_marks(name: str, style: CurveStyle) -> dict[str, Any]:
    return dict(
        type="scatter",
        yaxis="y2",
        name=plotly_text(f"{name}: loss not finite"),
        mode="markers",
        marker=dict(color=style.color, symbol="x", size=11, line=dict(width=1, color="#ffffff")),
        hoverlabel=dict(namelength=-1),
        hovertemplate="loss not finite from %{x:,.4~g} on<extra>%{fullData.name}</extra>",
    )


def _sign(name: str, color: str, text: str) -> dict[str, Any]:
    """`name` and `text` as plotly_text gives them."""
    return dict(
        type="scatter",
        name=name,
        mode="text",
        text=[SIGN],
        hovertext=[text],
        textposition="middle right",
        textfont=dict(size=24, color=color, weight=700),
        cliponaxis=False,
        hoverlabel=dict(namelength=-1),
        hovertemplate="%{hovertext}<extra>%{fullData.name}</extra>",
    )


def _layout(comparison: Comparison) -> dict[str, Any]:
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
    return dict(
        autosize=True,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font=dict(family="system-ui, sans-serif", size=14),
        margin=dict(l=56, r=20, t=36, b=48),
        showlegend=False,  # the page has its own, which the keyboard reaches
        modebar=dict(bgcolor="rgba(0,0,0,0)", color="#7F7F7F", activecolor="#D55E00"),
        hovermode="closest",
        xaxis=dict(
            title=dict(text=AXIS_TITLES["step"] + comparison.axis_suffix),
            gridcolor=grid,
            zeroline=False,
            automargin=True,
            exponentformat="SI",
        ),
        yaxis=dict(title=dict(text="loss, nats per token"), gridcolor=grid, zeroline=False, automargin=True),
        # The marks of gaps have no loss to stand at; this axis is the height of the plot itself.
        yaxis2=dict(overlaying="y", range=[0, 1], fixedrange=True, visible=False),
        shapes=entropy_lines,
    )
