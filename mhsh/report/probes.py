"""The results of `mhsh probe`, out of its JSON: tables, with means over seeds, and pictures."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from mhsh.config.recorded import from_record
from mhsh.report.figure_files import PAGE, add_legend, curve_style, figure_bytes, figure_style
from mhsh.report.report import Table
from mhsh.report.terminal import UNBOUNDED, print_line, print_table
from mhsh.verdict.estimate import estimate, half_width_factor
from mhsh.verdict.groups import group_by_seeds, names_of, reset_seeds

AUTHOR = "written by mhsh probe"

_GREY = "#7F7F7F"
_LINEAR_BELOW = 0.01  # nats; above it the scale of an ablation is logarithmic

Document = dict[str, Any]  # a probe's JSON
Model = dict[str, Any]  # an entry of it
Figures = dict[str, Any]  # what it has of one stack of a model
Cells = dict[str, str | float]  # a row of a table, by column


def tables(document: Document) -> list[Table]:
    """The tables of a probe: means over seeds where there are several, and the other models."""
    if document["kind"] == "amplification":
        return [_scheme_table(document["schemes"])]
    title, cells_of = _TABLES[document["kind"]]
    cells = [list(cells_of(model["result"])) for model in document["models"]]
    columns = list(max(itertools.chain(*cells), key=len))  # a decoder has all sublayers of an encoder
    single_rows, mean_rows = [], []
    for name, indices in model_groups(document["models"]):
        for stack in zip(*(cells[index] for index in indices), strict=True):
            row = [name, *(_over_seeds([each.get(column, "") for each in stack]) for column in columns)]
            (single_rows if len(indices) == 1 else mean_rows).append(row)
    found = [Table.from_text(title, ["model", *columns], single_rows)] if single_rows else []
    if mean_rows:
        names, *means = zip(*mean_rows, strict=True)
        rows = [[column, *row] for column, row in zip(columns, means, strict=True)]
        found.append(Table.from_text(f"{title}; over seeds, with 95 % intervals", ["", *names], rows))
    return found


def print_tables(found: Sequence[Table]) -> None:
    """Prints tables with their titles. A terminal folds the lines that are too long for it."""
    console = Console(highlight=False, width=UNBOUNDED)
    for table in found:
        print_line(table.title, console, style="bold")
        print_table(table, console)
        console.print()


def model_groups(models: Sequence[Model]) -> list[tuple[str, list[int]]]:
    """Name and indices of each group of models at the same step, by GROUP_RULE. The name is that of
    a single model; of several, their shape, scheme, the fields in which such groups differ, and
    number.
    """
    configs = [from_record(model["config"], model["name"]) for model in models]
    keys = [(reset_seeds(config), model["step"]) for config, model in zip(configs, models, strict=True)]
    groups = group_by_seeds(keys, configs)
    names = names_of([configs[indices[0]] for indices in groups])
    return [
        (f"{name}, {len(indices)} seeds" if len(indices) > 1 else models[indices[0]]["name"], indices)
        for name, indices in zip(names, groups, strict=True)
    ]


def _over_seeds(cells: Sequence[str | float]) -> str:
    """The cell of a group in one column: the mean over its models, or their common text."""
    numbers = [cell for cell in cells if not isinstance(cell, str)]
    if len(numbers) < len(cells):
        return str(cells[0]) if len(set(cells)) == 1 else ""
    if len(numbers) == 1:
        return f"{numbers[0]:.4g}"
    mean = estimate(numbers)
    return f"{mean.mean:.4g}" + (f" ({mean.low:.4g} to {mean.high:.4g})" if mean.has_interval else "")


def _sublayers(figures: Figures) -> dict[str, Sequence[float]]:
    """The shares of a stack's sublayers by kind, a number a layer."""
    return {name: values for name, values in figures.items() if name not in ("input", "biases")}


def _dependency_cells(result: dict[str, Figures]) -> Iterator[Cells]:
    for stack, figures in result.items():
        kinds = _sublayers(figures)
        later = sum(sum(shares[len(shares) // 2 :]) for shares in kinds.values())
        # One column for the self-attention of both stacks: the encoder's is called attention.
        totals = {kind.removeprefix("self_").replace("_", "-"): sum(shares) for kind, shares in kinds.items()}
        ends = {"biases": figures["biases"], "second half of the layers": later}
        yield {"stack": stack, "input": figures["input"], **totals, **ends}


def _gradients_cells(result: dict[str, Any]) -> Iterator[Cells]:
    for stack, figures in result["stacks"].items():
        norms = figures["layer"]
        ends = {"first": norms[0], "last": norms[-1], "largest": max(norms), "smallest": min(norms)}
        yield {"stack": stack, "loss": result["loss"], **ends}


def _coverage_cells(result: dict[str, dict[str, Figures]]) -> Iterator[Cells]:
    for stack, sublayers in result.items():
        for name, figures in sublayers.items():
            has_rollout = "rollout" in figures
            yield {
                "sublayer": f"{stack} {name}",
                "heads": str(sum(map(len, figures["heads"]))),
                "may see": figures["visible"],
                "a head": float(np.mean(figures["heads"])),
                "a layer": float(np.mean(figures["layers"])),
                "whole stack": figures["rollout"][-1] if has_rollout else "",
                "whole stack, no residual": figures["rollout_without_residual"][-1] if has_rollout else "",
                "argmax share, a layer": float(np.mean(figures["argmax_layers"])) / figures["visible"],
                "argmax share, whole stack": figures["argmax_stack"][-1] / figures["visible"],
            }


def _similarity_cells(result: dict[str, Figures]) -> Iterator[Cells]:
    for stack, figures in result.items():
        cells: Cells = {"stack": stack}
        for key, name in (("cka", "CKA"), ("cosine", "cosine")):
            cells |= {f"{name}, mean": float(np.mean(figures[key])), f"{name}, least": min(figures[key])}
        yield cells


def _ablation_cells(result: dict[str, Figures]) -> Iterator[Cells]:
    for stack, figures in result.items():
        depth, loss, skipped = len(figures["skipped"]), np.mean(figures["whole"]), _more_loss(figures, "skipped")
        half_depth = max(count for count in map(int, figures["without_last"]) if count <= max(1, depth // 2))
        yield {
            "stack": stack,
            "loss": float(loss),
            "+ a layer skipped": float(skipped.mean()),
            "most": float(skipped.mean(axis=0).max()),
            "+ two swapped": float(_more_loss(figures, "swapped").mean()) if figures["swapped"] else "",
            "last left out": f"{half_depth} of {depth}",
            "+": float(np.mean(figures["without_last"][str(half_depth)]) - loss),
            "influence": float(np.mean(figures["influence"])),
            "on later": float(np.mean(figures["later"])),
        }


def _more_loss(figures: Figures, name: str) -> np.ndarray:
    """How much each of the changes `name` (skipped, swapped, without_last) adds to the loss of a
    stack's model, in nats: [batches, changes].
    """
    losses = list(figures[name].values()) if isinstance(figures[name], dict) else figures[name]
    return (np.array(losses).reshape(-1, len(figures["whole"])) - np.array(figures["whole"])).T


_TABLES: dict[str, tuple[str, Callable[[dict[str, Any]], Iterable[Cells]]]] = {
    "dependency": ("shares of the final residual stream", _dependency_cells),
    "gradients": ("gradient norms of the layers", _gradients_cells),
    "coverage": ("effective number of positions that a token draws on", _coverage_cells),
    "similarity": ("the residual stream before and after a layer", _similarity_cells),
    "ablation": ("the loss without layers, and in another order; means over the layers", _ablation_cells),
}


def _scheme_table(schemes: Sequence[dict[str, Any]]) -> Table:
    rows = []
    for scheme in schemes:
        ends, growth = [scheme["points"][place]["mean"] or 0.0 for place in (0, -1)], ["", "", ""]
        if fitted := scheme["growth"]:
            growth = [f"{fitted['exponent']:.2f}", f"{fitted['low']:.2f} to {fitted['high']:.2f}", fitted["law"]]
        rows.append([scheme["scheme"], scheme["theory"], *growth, *(f"{end:.4g}" for end in ends)])
    depths = [f"{schemes[0]['points'][place]['layers']} layers" for place in (0, -1)]
    columns = ["scheme", "theory", "exponent", "95 %", "best law", *depths]
    return Table.from_text("E|f(w) - f(w + delta)|^2, fresh", columns, rows)


def picture(document: Document, kind: str) -> bytes:
    """The figure of a probe's document as a `png` or an `svg`, as wide as a page."""
    draw, panels = _PICTURES[document["kind"]]
    with figure_style():
        figure = Figure(figsize=(PAGE, 2.5), layout="constrained")
        axes = list(figure.subplots(1, len(panels), squeeze=False)[0])
        for each, (title, x, y) in zip(axes, panels, strict=True):
            each.set(title=title, xlabel=x, ylabel=y)
        draw(axes, document)
        handles, labels = axes[0].get_legend_handles_labels()
        # Models are called as their users like; the schemes of a sweep have formulas.
        entries = [(handle, label.removeprefix(" ")) for handle, label in zip(handles, labels, strict=True)]
        add_legend(figure, entries, math="schemes" in document)
        return figure_bytes(figure, kind, AUTHOR)


def _line(axes: Axes, index: int, label: str, x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> None:
    style = curve_style(index)
    every = max(1, len(x) // 12)
    # The space in front: matplotlib ignores labels that begin with an underscore.
    axes.plot(x, y, color=style.color, linestyle=style.linestyle, marker=style.symbol, markevery=every, label=f" {label}")


def _band(axes: Axes, index: int, label: str, x: np.ndarray, rows: Sequence[Any] | np.ndarray) -> None:
    """The mean over `rows` (seeds, or batches), and where there are several its interval."""
    values = np.asarray(rows, float)
    mean, factor = values.mean(axis=0), half_width_factor(len(values))
    _line(axes, index, label, x, mean)
    if factor is not None:
        half_width = factor * values.std(axis=0, ddof=1)
        axes.fill_between(x, mean - half_width, mean + half_width, color=curve_style(index).color, alpha=0.15, linewidth=0)


def _stacks(document: Document, key: str | None = None) -> Iterator[tuple[str, list[Figures]]]:
    """Label of every stack, and its numbers in all models that differ only in their seeds."""
    models = document["models"]
    for name, indices in model_groups(models):
        results = [models[index]["result"] if key is None else models[index]["result"][key] for index in indices]
        for stack in results[0]:
            yield f"{name}, {stack}" if len(results[0]) > 1 else name, [result[stack] for result in results]


def _depth(count: int) -> np.ndarray:
    return np.arange(1, count + 1) / count


def _dependency(panels: Sequence[Axes], document: Document) -> None:
    for index, (label, runs) in enumerate(_stacks(document)):
        by_kind = np.array([list(_sublayers(figures).values()) for figures in runs], float)
        shares = by_kind.transpose(0, 2, 1).reshape(len(runs), -1)  # in the order of the stream
        added = np.cumsum(np.column_stack([[figures["input"] for figures in runs], shares]), axis=1)
        depth = _depth(shares.shape[1])
        _band(panels[0], index, label, depth, shares * len(depth))
        _band(panels[1], index, label, np.concatenate([[0], depth]), added)


def _gradients(panels: Sequence[Axes], document: Document) -> None:
    for index, (label, runs) in enumerate(_stacks(document, "stacks")):
        depth, style = _depth(len(runs[0]["layer"])), curve_style(index)
        _band(panels[0], index, label, depth, [figures["layer"] for figures in runs])
        kinds = [name for name in runs[0] if name not in ("layer", "joins")]
        for kind, alpha in zip(kinds, (1.0, 0.6, 0.3), strict=False):
            mean = np.mean([figures[kind] for figures in runs], axis=0)
            panels[1].plot(depth, mean, color=style.color, linestyle=style.linestyle, alpha=alpha)
    for axes in panels:
        axes.set_yscale("log")


def _coverage(panels: Sequence[Axes], document: Document) -> None:
    sublayers = [
        (f"{label}, {name}" if len(runs[0]) > 1 else label, [run[name] for run in runs])
        for label, runs in _stacks(document)
        for name in runs[0]
    ]
    for index, (label, runs) in enumerate(sublayers):
        heads = np.array([figures["heads"] for figures in runs], float)
        heads_passed = np.arange(1, heads.shape[1] + 1) * heads.shape[2]
        _band(panels[0], index, label, heads_passed, heads.mean(axis=2))
        if heads.shape[2] > 1:
            layers = np.mean([figures["layers"] for figures in runs], axis=0)
            panels[0].plot(heads_passed, layers, color=curve_style(index).color, linewidth=0.8)
        if "rollout" in runs[0]:
            _band(panels[1], index, label, heads_passed, [figures["rollout"] for figures in runs])
            panels[1].axhline(runs[0]["visible"], color=_GREY, linestyle=":", linewidth=1.2)
    for axes in panels:
        axes.set_ylim(bottom=0)


def _similarity(panels: Sequence[Axes], document: Document) -> None:
    for axes, key in zip(panels, ("cka", "cosine"), strict=True):
        for index, (label, runs) in enumerate(_stacks(document)):
            _band(axes, index, label, _depth(len(runs[0][key])), [figures[key] for figures in runs])


def _ablation(panels: Sequence[Axes], document: Document) -> None:
    for index, (label, runs) in enumerate(_stacks(document)):
        depth = len(runs[0]["skipped"])
        counts = np.array([int(count) for count in runs[0]["without_last"]])
        places = {"skipped": _depth(depth), "swapped": np.arange(1, depth) / depth, "without_last": counts / depth}
        for axes, (name, x) in zip(panels, places.items(), strict=True):
            # By seed, or by batch where there is one seed.
            more = [_more_loss(figures, name) for figures in runs]
            _band(axes, index, label, x, more[0] if len(runs) == 1 else [each.mean(axis=0) for each in more])
    for axes in panels:
        # A layer costs 2 nats in a stack of one and 0.001 in one of 24, or less than nothing.
        axes.set_yscale("symlog", linthresh=_LINEAR_BELOW)


def _amplification(panels: Sequence[Axes], document: Document) -> None:
    (axes,) = panels
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks: set[int] = set()
    for index, scheme in enumerate(document["schemes"]):
        points = [point for point in scheme["points"] if point["mean"]]
        if not points:
            continue
        n = np.array([point["sublayers"] for point in points])
        ticks |= set(n.tolist())
        fitted = f"$n^{{{scheme['growth']['exponent']:.2f}}}$, " if scheme["growth"] else ""
        theory = "theory ${}$".format(scheme["theory"].replace("log n", r"\log n")) if scheme["theory"] else "no theory"
        _line(axes, index, f"{scheme['label']}: {fitted}{theory}", n, [point["mean"] for point in points])
        if any(point["low"] is None for point in points):
            continue  # one draw has no interval
        # A logarithm has no place for an interval's end below 0.
        bounds = np.array([[max(point["low"], 1e-3 * point["mean"]), point["high"]] for point in points])
        axes.fill_between(n, bounds[:, 0], bounds[:, 1], color=curve_style(index).color, alpha=0.15, linewidth=0)
    axes.set_xticks(sorted(ticks), [str(tick) for tick in sorted(ticks)])
    axes.minorticks_off()


_DEPTH, _NORM = "depth (1: the last layer)", r"$\|\nabla L\|_2$"
# What draws the panels of a picture, and the title and the axes of each panel.
_PICTURES: dict[str, tuple[Callable[[Sequence[Axes], Document], None], Sequence[tuple[str, str, str]]]] = {
    "dependency": (
        _dependency,
        (
            ("share in the final stream, in equal shares", "depth (1: the last sublayer)", "share \u00d7 number of sublayers"),
            ("share added up to this depth", "depth (0: the stack's input)", "share of the variance"),
        ),
    ),
    "amplification": (
        _amplification,
        (
            (
                "change of the normalised output when all weights change a little",
                "sublayers $n$ of a fresh stack",
                r"$E\,\|f(w) - f(w + \delta)\|^2$",
            ),
        ),
    ),
    "gradients": (
        _gradients,
        (("gradient of a layer", _DEPTH, _NORM), ("its sublayers, in order: full, paler, palest", _DEPTH, _NORM)),
    ),
    "coverage": (
        _coverage,
        (
            ("a head, on average (thin: its layer)", "heads passed", "effective number of positions"),
            ("rollout through the stack (dotted: visible)", "heads passed", "effective number of positions"),
        ),
    ),
    "similarity": (
        _similarity,
        (
            ("linear CKA of the stream", _DEPTH, "before and after a layer (1: the same)"),
            ("cosine of a token's stream, mean", _DEPTH, ""),
        ),
    ),
    "ablation": (
        _ablation,
        (
            ("one layer skipped", _DEPTH, f"more loss, nats (linear to {_LINEAR_BELOW})"),
            ("two neighbours swapped", "depth", ""),
            ("the last layers left out", "share of the layers", ""),
        ),
    ),
}
