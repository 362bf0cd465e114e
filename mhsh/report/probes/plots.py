"""The pictures of `mhsh probe`, drawn from its JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mhsh.report.render.figure_files import figure_bytes
from mhsh.report.render.styles import curve_style

AUTHOR = "written by mhsh probe"

Document = dict[str, Any]


def picture(document: Document, kind: str) -> bytes:
    """The figure of a probe's document as a `png` or an `svg`."""
    figure = Figure(figsize=(11, 5.5), dpi=120, layout="constrained")
    _KINDS[document["kind"]](figure, document)
    axes = figure.axes[0]
    handles, labels = axes.get_legend_handles_labels()
    legend = figure.legend(handles, [""] * len(labels), loc="outside lower center", ncols=2, handlelength=4)
    for entry, label in zip(legend.get_texts(), labels, strict=True):
        # Set afterwards, so that dollar signs are not parsed as formulas.
        entry.set_parse_math(False)
        entry.set_text(textwrap.fill(label.removeprefix(" "), 60))
    return figure_bytes(figure, kind, AUTHOR)


def _line(axes: Axes, index: int, label: str, x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> None:
    style = curve_style(index)
    every = max(1, len(x) // 12)
    # The space in front: matplotlib ignores labels that begin with an underscore.
    axes.plot(
        x, y, color=style.color, linestyle=style.linestyle, marker=style.marker, markersize=5, markevery=every, label=f" {label}"
    )


def _finish(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)


def _stacks(document: Document, key: str | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Label and numbers of every stack of every model."""
    for model in document["models"]:
        found = model["result"] if key is None else model["result"][key]
        for stack, values in found.items():
            yield f"{model['name']}, {stack}" if len(found) > 1 else model["name"], values


def _in_depth_order(values: dict[str, Any], names: Sequence[str]) -> np.ndarray:
    """One list in the order of the stream, from a list for each sublayer."""
    return np.stack([np.asarray(values[name], float) for name in names], axis=1).reshape(-1)


def _depth(count: int) -> np.ndarray:
    return np.arange(1, count + 1) / count


def _dependency(figure: Figure, document: Document) -> None:
    shares, grown = figure.subplots(1, 2)
    for index, (label, values) in enumerate(_stacks(document)):
        names = [name for name in values if name not in ("input", "biases")]
        each = _in_depth_order(values, names)
        _line(shares, index, label, _depth(len(each)), each * len(each))
        _line(grown, index, label, np.concatenate([[0], _depth(len(each))]), values["input"] + np.concatenate([[0], each.cumsum()]))
    _finish(
        shares,
        "share of the final residual stream, times the number of sublayers",
        "depth (1: the last sublayer)",
        "1: an equal share",
    )
    _finish(grown, "share added up to this depth", "depth (0: what entered the stack)", "share of the variance")


def _gradients(figure: Figure, document: Document) -> None:
    layers, parts = figure.subplots(1, 2)
    for index, (label, values) in enumerate(_stacks(document, "stacks")):
        _line(layers, index, label, _depth(len(values["layer"])), values["layer"])
        names = [name for name in values if name not in ("layer", "joins")]
        for name, alpha in zip(names, (1.0, 0.6, 0.3), strict=False):
            style = curve_style(index)
            parts.plot(_depth(len(values[name])), values[name], color=style.color, linestyle=style.linestyle, alpha=alpha)
    _finish(layers, "gradient of the loss, norm in each layer", "depth (1: the last layer)", "norm")
    _finish(parts, "its sublayers (in the order of the stream: full, paler, palest)", "depth (1: the last layer)", "norm")
    for axes in (layers, parts):
        axes.set_yscale("log")


def _coverage(figure: Figure, document: Document) -> None:
    single, rolled = figure.subplots(1, 2)
    index = 0
    for label, sublayers in _stacks(document):
        for name, values in sublayers.items():
            full = f"{label}, {name}" if len(sublayers) > 1 else label
            heads = np.asarray(values["heads"], float)
            passed = np.arange(1, len(heads) + 1) * heads.shape[1]
            _line(single, index, full, passed, heads.mean(axis=1))
            if heads.shape[1] > 1:
                single.plot(passed, values["layers"], color=curve_style(index).color, linewidth=0.8)
            if "rollout" in values:
                _line(rolled, index, full, passed, values["rollout"])
                rolled.axhline(values["visible"], color="#7F7F7F", linestyle=":", linewidth=1.2)
            index += 1
    _finish(single, "one head, on average (thin: its layer's mean over heads)", "heads passed", "effective number of positions")
    _finish(
        rolled, "attention rollout through the stack (dotted: visible positions)", "heads passed", "effective number of positions"
    )
    for axes in (single, rolled):
        axes.set_ylim(bottom=0)


def _similarity(figure: Figure, document: Document) -> None:
    panels = figure.subplots(1, 2)
    for axes, key, title in zip(panels, ("cka", "cosine"), ("linear CKA", "cosine of a token, mean"), strict=True):
        for index, (label, values) in enumerate(_stacks(document)):
            _line(axes, index, label, _depth(len(values[key])), values[key])
        _finish(axes, f"residual stream before and after a layer: {title}", "depth (1: the last layer)", "1: the same")


def _amplification(figure: Figure, document: Document) -> None:
    axes = figure.subplots(1, 1)
    if "schemes" in document:
        for index, scheme in enumerate(document["schemes"]):
            points = [point for point in scheme["points"] if point["mean"]]
            if not points:
                continue
            n = np.array([point["sublayers"] for point in points])
            fitted = scheme["growth"]
            exponent = f": n^{fitted['exponent']:.2f}" if fitted else ""
            _line(axes, index, f"{scheme['scheme']}{exponent} (theory: {scheme['theory']})", n, [point["mean"] for point in points])
            bounds = np.array([[max(point["low"], 1e-3 * point["mean"]), point["high"]] for point in points])
            axes.fill_between(n, bounds[:, 0], bounds[:, 1], color=curve_style(index).color, alpha=0.15, linewidth=0)
        what = "sublayers n of a fresh stack"
    else:
        for index, model in enumerate(document["models"]):
            means = np.array(model["result"]["means"], float)  # null: not finite
            _line(axes, index, model["name"], 2 * np.arange(1, len(means) + 1), means)
        what = "sublayers passed"
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    _finish(axes, "change of the normalised output when the weights change a little", what, "E|f(w) - f(w + delta)|^2")


_KINDS: dict[str, Callable[[Figure, Document], None]] = {
    "dependency": _dependency,
    "amplification": _amplification,
    "gradients": _gradients,
    "coverage": _coverage,
    "similarity": _similarity,
}
