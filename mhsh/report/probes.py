"""What `mhsh probe` found, out of its JSON: its tables, with means over seeds, and its pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from mhsh.config.resolve import from_dict
from mhsh.config.shapes import shape_name
from mhsh.report.figure_files import PAGE, add_legend, curve_style, figure_bytes, figure_style
from mhsh.report.report import Table
from mhsh.report.terminal import print_line, print_table
from mhsh.verdict.estimate import estimate, mean_band
from mhsh.verdict.experiment import seed_groups, without_seeds

AUTHOR = "written by mhsh probe"

# Residual schemes, by their names on the command line, as papers write them; `$` encloses formulas.
_SCHEME_NAMES = {
    "post_ln": "Post-LN",
    "pre_ln": "Pre-LN",
    "admin": "Admin",
    "admin_closed_log": r"Admin, closed form $O(\log n)$",
    "admin_closed_one": "Admin, closed form $O(1)$",
    "deepnorm": "DeepNorm",
    "rezero": "ReZero",
    "keel": "Keel",
    "peri_ln": "Peri-LN",
    "ln_scaling": "LayerNorm scaling",
    "completep": "CompleteP",
    "hybrid_norm": "HybridNorm",
}

_LINEAR_BELOW = 0.01  # nats; above it the scale of an ablation is logarithmic
_WIDTH = 120  # of a table, at least

Document = dict[str, Any]  # a probe's JSON
Model = dict[str, Any]  # an entry of it


def tables(document: Document) -> list[Table]:
    """What `mhsh probe` found: means over seeds where there are several, and the other models."""
    return _TABLES[document["kind"]](document)


def print_tables(found: Sequence[Table]) -> None:
    """Prints tables with their titles."""
    # Wide enough for figures in one line each, also where the output goes to a file.
    console = Console(highlight=False, width=max(_WIDTH, Console().width))
    for table in found:
        print_line(table.title, console, style="bold")
        print_table(table, console)


def model_groups(models: Sequence[Model]) -> list[tuple[str, list[int]]]:
    """Name and indices of each group of models at the same step, by GROUP_RULE. The name is that of
    a single model; of several, their shape, scheme and number.
    """
    configs = [from_dict(model["config"]) for model in models]
    alike = [(without_seeds(config), model["step"]) for config, model in zip(configs, models, strict=True)]
    groups = []
    for indices in seed_groups(alike, configs):
        first = configs[indices[0]].model
        several = f"{shape_name(first)} {first.residual}, {len(indices)} seeds"
        groups.append((several if len(indices) > 1 else models[indices[0]]["name"], indices))
    return groups


def _more_loss(figures: dict[str, Any], name: str) -> np.ndarray:
    """How much each of the changes `name` (skipped, swapped, without_last) adds to the loss of a
    stack's model, in nats: [batches, changes].
    """
    losses = list(figures[name].values()) if isinstance(figures[name], dict) else figures[name]
    return (np.array(losses).reshape(-1, len(figures["whole"])) - np.array(figures["whole"])).T


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    cells = [[cell if isinstance(cell, str) else f"{cell:.4g}" for cell in row] for row in rows]
    return Table.of_text(title, columns, cells)


def _of_models(title: str, columns: Sequence[str], rows: Sequence[tuple[Model, Sequence[Any]]]) -> list[Table]:
    """The means over seeds of models that have several, and a row for each stack of the others."""
    models = list({id(model): model for model, _ in rows}.values())
    by_model = [[cells for each, cells in rows if each is model] for model in models]
    alone, means = [], []
    for name, indices in model_groups(models):
        if len(indices) == 1:
            alone += [[name, *cells] for cells in by_model[indices[0]]]
        else:
            for stack in zip(*(by_model[index] for index in indices), strict=True):
                means.append([name, *map(_over_seeds, zip(*stack, strict=True))])
    transposed = list(zip(columns, *(row[1:] for row in means), strict=True))
    found = [_table(title, ["model", *columns], alone)] if alone else []
    over_seeds = f"{title}; over seeds, with 95 % intervals"
    return [*found, _table(over_seeds, ["", *(row[0] for row in means)], transposed)] if means else found


def _of_stacks(
    title: str, columns: Sequence[str], document: Document, cells: Callable[[dict[str, Any]], Sequence[Any]]
) -> list[Table]:
    """As `_of_models`, a row for the figures of each stack."""
    stacks = [(model, stack, figures) for model in document["models"] for stack, figures in model["result"].items()]
    return _of_models(title, ["stack", *columns], [(model, [stack, *cells(figures)]) for model, stack, figures in stacks])


def _over_seeds(cells: Sequence[Any]) -> str:
    """One column of the runs of a group."""
    if any(isinstance(cell, str) for cell in cells):
        return str(cells[0]) if len(set(cells)) == 1 else ""
    mean = estimate(cells)
    return f"{mean.mean:.4g}" + (f" ({mean.low:.4g} to {mean.high:.4g})" if mean.has_interval else "")


def _dependency_table(document: Document) -> list[Table]:
    rows = [
        (model, [stack, figures["input"], *(sum(figures[name]) for name in names), figures["biases"], _half(figures, names)])
        for model in document["models"]
        for stack, figures in model["result"].items()
        for names in [[name for name in figures if name not in ("input", "biases")]]
    ]
    width = max(len(cells) for _, cells in rows)
    parts = ["attention", "feed-forward"] if width == 6 else ["sublayers", "in", "order"]
    rows = [(model, cells[:-2] + [""] * (width - len(cells)) + cells[-2:]) for model, cells in rows]
    return _of_models(
        "shares of the final residual stream", ["stack", "input", *parts, "biases", "second half of the layers"], rows
    )


def _half(figures: dict[str, Any], names: Sequence[str]) -> float:
    return sum(sum(figures[name][len(figures[name]) // 2 :]) for name in names)


def _gradients_table(document: Document) -> list[Table]:
    rows = [
        (
            model,
            [
                stack,
                model["result"]["loss"],
                *(figures["layer"][end] for end in (0, -1)),
                max(figures["layer"]),
                min(figures["layer"]),
            ],
        )
        for model in document["models"]
        for stack, figures in model["result"]["stacks"].items()
    ]
    return _of_models("gradient norms of the layers", ["stack", "loss", "first", "last", "largest", "smallest"], rows)


def _coverage_table(document: Document) -> list[Table]:
    rows = [
        (
            model,
            [
                f"{stack} {name}",
                str(sum(len(heads) for heads in figures["heads"])),
                figures["visible"],
                float(np.mean(figures["heads"])),
                float(np.mean(figures["layers"])),
                figures["rollout"][-1] if "rollout" in figures else "",
                figures["rollout_without_residual"][-1] if "rollout" in figures else "",
            ],
        )
        for model in document["models"]
        for stack, sublayers in model["result"].items()
        for name, figures in sublayers.items()
    ]
    columns = ["sublayer", "heads", "may see", "a head", "a layer", "whole stack", "whole stack, no residual"]
    return _of_models("effective number of positions that a token draws on", columns, rows)


def _similarity_table(document: Document) -> list[Table]:
    columns = ["CKA, mean", "CKA, least", "cosine, mean", "cosine, least"]
    return _of_stacks(
        "the residual stream before and after a layer",
        columns,
        document,
        lambda figures: [f(figures[key]) for key in ("cka", "cosine") for f in (np.mean, min)],
    )


def _ablation_table(document: Document) -> list[Table]:
    columns = ["loss", "+ a layer skipped", "most", "+ two swapped", "last left out", "+", "influence", "on later"]
    return _of_stacks("the loss without layers, and in another order; means over the layers", columns, document, _ablation_cells)


def _ablation_cells(figures: dict[str, Any]) -> list[Any]:
    skipped = _more_loss(figures, "skipped")
    return [
        float(np.mean(figures["whole"])),
        float(skipped.mean()),
        float(skipped.mean(axis=0).max()),
        float(_more_loss(figures, "swapped").mean()) if figures["swapped"] else "",
        *_without_half(figures),
        float(np.mean(figures["influence"])),
        float(np.mean(figures["later"])),
    ]


def _without_half(figures: dict[str, Any]) -> list[Any]:
    """How many of the last layers are left out, at most half of them, and the increase."""
    depth = len(figures["skipped"])
    counts = [int(count) for count in figures["without_last"] if int(count) <= max(1, depth // 2)]
    losses = figures["without_last"][str(max(counts))]
    return [f"{max(counts)} of {depth}", float(np.mean(losses) - np.mean(figures["whole"]))]


def _amplification_table(document: Document) -> list[Table]:
    schemes = document["schemes"]
    ends = [f"{schemes[0]['points'][end]['layers']} layers" for end in (0, -1)]
    rows = []
    for entry in schemes:
        first, *_, last = (point["mean"] or 0.0 for point in entry["points"])
        rows.append([entry["scheme"], entry["theory"], *_growth_cells(entry["growth"]), first, last])
    return [_table("E|f(w) - f(w + delta)|^2, fresh", ["scheme", "theory", "exponent", "95 %", "best law", *ends], rows)]


def _growth_cells(fitted: dict[str, Any] | None) -> list[str]:
    if fitted is None:
        return ["", "", ""]
    return [f"{fitted['exponent']:.2f}", f"{fitted['low']:.2f} to {fitted['high']:.2f}", fitted["law"]]


_TABLES: dict[str, Callable[[Document], list[Table]]] = {
    "dependency": _dependency_table,
    "amplification": _amplification_table,
    "gradients": _gradients_table,
    "coverage": _coverage_table,
    "similarity": _similarity_table,
    "ablation": _ablation_table,
}


def picture(document: Document, kind: str) -> bytes:
    """The figure of a probe's document as a `png` or an `svg`, as wide as a page."""
    with figure_style():
        figure = Figure(figsize=(PAGE, 2.5), layout="constrained")
        # Models are called as their users like; the schemes of a sweep have formulas.
        math = "schemes" in document
        _KINDS[document["kind"]](figure, document)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        add_legend(figure, handles, [label.removeprefix(" ") for label in labels], math=math)
        return figure_bytes(figure, kind, AUTHOR)


def _line(axes: Axes, index: int, label: str, x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> None:
    style = curve_style(index)
    every = max(1, len(x) // 12)
    # The space in front: matplotlib ignores labels that begin with an underscore.
    axes.plot(x, y, color=style.color, linestyle=style.linestyle, marker=style.marker, markevery=every, label=f" {label}")


def _band(axes: Axes, index: int, label: str, x: np.ndarray, rows: Sequence[Any] | np.ndarray) -> None:
    """The mean over `rows` (seeds, or batches), and where there are several its interval."""
    mean, low, high = mean_band(np.asarray(rows, float))
    _line(axes, index, label, x, mean)
    axes.fill_between(x, low, high, color=curve_style(index).color, alpha=0.15, linewidth=0)


def _finish(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def _stacks(document: Document, key: str | None = None) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Label of every stack, and its numbers in all models that differ only in their seeds."""
    models = document["models"]
    for name, indices in model_groups(models):
        results = [models[index]["result"] if key is None else models[index]["result"][key] for index in indices]
        for stack in results[0]:
            yield f"{name}, {stack}" if len(results[0]) > 1 else name, [result[stack] for result in results]


def _in_depth_order(values: dict[str, Any], names: Sequence[str]) -> np.ndarray:
    """One list in the order of the stream, from a list for each sublayer."""
    return np.stack([np.asarray(values[name], float) for name in names], axis=1).reshape(-1)


def _depth(count: int) -> np.ndarray:
    return np.arange(1, count + 1) / count


def _dependency(figure: Figure, document: Document) -> None:
    shares, grown = figure.subplots(1, 2)
    for index, (label, runs) in enumerate(_stacks(document)):
        names = [name for name in runs[0] if name not in ("input", "biases")]
        each = np.stack([_in_depth_order(values, names) for values in runs])
        added = np.stack([np.cumsum([values["input"], *row]) for values, row in zip(runs, each, strict=True)])
        depth = _depth(each.shape[1])
        _band(shares, index, label, depth, each * len(depth))
        _band(grown, index, label, np.concatenate([[0], depth]), added)
    _finish(
        shares, "share in the final stream, in equal shares", "depth (1: the last sublayer)", "share \u00d7 number of sublayers"
    )
    _finish(grown, "share added up to this depth", "depth (0: the stack's input)", "share of the variance")


def _gradients(figure: Figure, document: Document) -> None:
    layers, parts = figure.subplots(1, 2)
    for index, (label, runs) in enumerate(_stacks(document, "stacks")):
        depth = _depth(len(runs[0]["layer"]))
        _band(layers, index, label, depth, [values["layer"] for values in runs])
        names = [name for name in runs[0] if name not in ("layer", "joins")]
        for name, alpha in zip(names, (1.0, 0.6, 0.3), strict=False):
            style = curve_style(index)
            mean = np.mean([values[name] for values in runs], axis=0)
            parts.plot(depth, mean, color=style.color, linestyle=style.linestyle, alpha=alpha)
    _finish(layers, "gradient of a layer", "depth (1: the last layer)", r"$\|\nabla L\|_2$")
    _finish(parts, "its sublayers, in order: full, paler, palest", "depth (1: the last layer)", r"$\|\nabla L\|_2$")
    for axes in (layers, parts):
        axes.set_yscale("log")


def _coverage(figure: Figure, document: Document) -> None:
    single, rolled = figure.subplots(1, 2)
    index = 0
    for label, runs in _stacks(document):
        for name in runs[0]:
            full = f"{label}, {name}" if len(runs[0]) > 1 else label
            found = [run[name] for run in runs]
            heads = np.array([values["heads"] for values in found], float)
            passed = np.arange(1, heads.shape[1] + 1) * heads.shape[2]
            _band(single, index, full, passed, heads.mean(axis=2))
            if heads.shape[2] > 1:
                layers = np.mean([values["layers"] for values in found], axis=0)
                single.plot(passed, layers, color=curve_style(index).color, linewidth=0.8)
            if "rollout" in found[0]:
                _band(rolled, index, full, passed, [values["rollout"] for values in found])
                rolled.axhline(found[0]["visible"], color="#7F7F7F", linestyle=":", linewidth=1.2)
            index += 1
    _finish(single, "a head, on average (thin: its layer)", "heads passed", "effective number of positions")
    _finish(rolled, "rollout through the stack (dotted: visible)", "heads passed", "effective number of positions")
    for axes in (single, rolled):
        axes.set_ylim(bottom=0)


def _similarity(figure: Figure, document: Document) -> None:
    panels = figure.subplots(1, 2)
    titles = ("linear CKA of the stream", "cosine of a token's stream, mean")
    for axes, key, title in zip(panels, ("cka", "cosine"), titles, strict=True):
        for index, (label, runs) in enumerate(_stacks(document)):
            _band(axes, index, label, _depth(len(runs[0][key])), [values[key] for values in runs])
        _finish(axes, title, "depth (1: the last layer)", "before and after a layer (1: the same)" if axes is panels[0] else "")


def _ablation(figure: Figure, document: Document) -> None:
    panels = figure.subplots(1, 3)
    for index, (label, runs) in enumerate(_stacks(document)):
        depth = len(runs[0]["skipped"])
        counts = np.array([int(count) for count in runs[0]["without_last"]])
        _band(panels[0], index, label, _depth(depth), _of_seeds(runs, "skipped"))
        _band(panels[1], index, label, np.arange(1, depth) / depth, _of_seeds(runs, "swapped"))
        _band(panels[2], index, label, counts / depth, _of_seeds(runs, "without_last"))
    titles = ("one layer skipped", "two neighbours swapped", "the last layers left out")
    places = ("depth (1: the last layer)", "depth", "share of the layers")
    for axes, title, place in zip(panels, titles, places, strict=True):
        _finish(axes, title, place, f"more loss, nats (linear to {_LINEAR_BELOW})" if axes is panels[0] else "")
        # A layer costs 2 nats in a stack of one and 0.001 in one of 24, or less than nothing.
        axes.set_yscale("symlog", linthresh=_LINEAR_BELOW)


def _of_seeds(runs: Sequence[dict[str, Any]], name: str) -> np.ndarray:
    """How much the changes `name` add to the loss: by seed, or by batch where there is one seed."""
    if len(runs) == 1:
        return _more_loss(runs[0], name)
    return np.stack([_more_loss(run, name).mean(axis=0) for run in runs])


def _amplification(figure: Figure, document: Document) -> None:
    axes = figure.subplots(1, 1)
    axes.set_xscale("log", base=2)
    ticks = _draw_schemes(axes, document["schemes"])
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_yscale("log")
    title = "change of the normalised output when all weights change a little"
    _finish(axes, title, "sublayers $n$ of a fresh stack", r"$E\,\|f(w) - f(w + \delta)\|^2$")


def _draw_schemes(axes: Axes, schemes: Sequence[dict[str, Any]]) -> list[int]:
    """Returns the places of the points."""
    ticks: set[int] = set()
    for index, scheme in enumerate(schemes):
        points = [point for point in scheme["points"] if point["mean"]]
        if not points:
            continue
        n = np.array([point["sublayers"] for point in points])
        ticks |= set(n.tolist())
        fitted = f"$n^{{{scheme['growth']['exponent']:.2f}}}$, " if scheme["growth"] else ""
        theory = scheme["theory"].replace("log n", r"\log n")
        _line(axes, index, f"{_SCHEME_NAMES[scheme['scheme']]}: {fitted}theory ${theory}$", n, [point["mean"] for point in points])
        if any(point["low"] is None for point in points):
            continue  # one draw has no interval
        # A logarithm has no place for an interval's end below 0.
        bounds = np.array([[max(point["low"], 1e-3 * point["mean"]), point["high"]] for point in points])
        axes.fill_between(n, bounds[:, 0], bounds[:, 1], color=curve_style(index).color, alpha=0.15, linewidth=0)
    return sorted(ticks)


_KINDS: dict[str, Callable[[Figure, Document], None]] = {
    "dependency": _dependency,
    "amplification": _amplification,
    "gradients": _gradients,
    "coverage": _coverage,
    "similarity": _similarity,
    "ablation": _ablation,
}
