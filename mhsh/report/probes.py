"""What `mhsh probe` found, out of its JSON: its tables, with means over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich.console import Console

from mhsh.config.resolve import from_dict
from mhsh.config.shapes import shape_name
from mhsh.report.report import Table
from mhsh.report.terminal import print_line, print_table
from mhsh.verdict.estimate import estimate
from mhsh.verdict.experiment import seed_groups, without_seeds

_WIDTH = 120  # of a table, at least

Model = dict[str, Any]  # an entry of a probe's JSON


def tables(document: dict[str, Any]) -> list[Table]:
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


def more_loss(figures: dict[str, Any], name: str) -> np.ndarray:
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


def _over_seeds(cells: Sequence[Any]) -> str:
    """One column of the runs of a group."""
    if any(isinstance(cell, str) for cell in cells):
        return str(cells[0]) if len(set(cells)) == 1 else ""
    mean = estimate(cells)
    return f"{mean.mean:.4g}" + (f" ({mean.low:.4g} to {mean.high:.4g})" if mean.has_interval else "")


def _dependency_table(document: dict[str, Any]) -> list[Table]:
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


def _gradients_table(document: dict[str, Any]) -> list[Table]:
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


def _coverage_table(document: dict[str, Any]) -> list[Table]:
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


def _similarity_table(document: dict[str, Any]) -> list[Table]:
    rows = [
        (model, [stack, *(f(figures[key]) for key in ("cka", "cosine") for f in (np.mean, min))])
        for model in document["models"]
        for stack, figures in model["result"].items()
    ]
    columns = ["stack", "CKA, mean", "CKA, least", "cosine, mean", "cosine, least"]
    return _of_models("the residual stream before and after a layer", columns, rows)


def _ablation_table(document: dict[str, Any]) -> list[Table]:
    rows = [
        (
            model,
            [
                stack,
                float(np.mean(figures["whole"])),
                float(more_loss(figures, "skipped").mean()),
                float(more_loss(figures, "skipped").mean(axis=0).max()),
                float(more_loss(figures, "swapped").mean()) if figures["swapped"] else "",
                *_without_half(figures),
                float(np.mean(figures["influence"])),
                float(np.mean(figures["later"])),
            ],
        )
        for model in document["models"]
        for stack, figures in model["result"].items()
    ]
    columns = ["stack", "loss", "+ a layer skipped", "most", "+ two swapped", "last left out", "+", "influence", "on later"]
    return _of_models("the loss without layers, and in another order; means over the layers", columns, rows)


def _without_half(figures: dict[str, Any]) -> list[Any]:
    """How many of the last layers are left out, at most half of them, and the increase."""
    depth = len(figures["skipped"])
    counts = [int(count) for count in figures["without_last"] if int(count) <= max(1, depth // 2)]
    losses = figures["without_last"][str(max(counts))]
    return [f"{max(counts)} of {depth}", float(np.mean(losses) - np.mean(figures["whole"]))]


def _amplification_table(document: dict[str, Any]) -> list[Table]:
    if "schemes" in document:
        rows = [
            [
                each["scheme"],
                each["theory"],
                *_growth_cells(each["growth"]),
                each["points"][0]["mean"] or 0.0,
                each["points"][-1]["mean"] or 0.0,
            ]
            for each in document["schemes"]
        ]
        ends = [f"{point['layers']} layers" for point in (document["schemes"][0]["points"][i] for i in (0, -1))]
        return [_table("E|f(w) - f(w + delta)|^2, fresh", ["scheme", "theory", "exponent", "95 %", "best law", *ends], rows)]
    rows = [
        [
            model["name"],
            *([f"{fitted['exponent']:.2f}", fitted["law"]] if (fitted := model["result"]["growth"]) else ["", ""]),
            model["result"]["means"][-1] or math.nan,
        ]
        for model in document["models"]
    ]
    return [_table("E|f(w) - f(w + delta)|^2 along the layers", ["model", "exponent", "best law", "at the end"], rows)]


def _growth_cells(fitted: dict[str, Any] | None) -> list[str]:
    if fitted is None:
        return ["", "", ""]
    return [f"{fitted['exponent']:.2f}", f"{fitted['low']:.2f} to {fitted['high']:.2f}", fitted["law"]]


_TABLES: dict[str, Callable[[dict[str, Any]], list[Table]]] = {
    "dependency": _dependency_table,
    "amplification": _amplification_table,
    "gradients": _gradients_table,
    "coverage": _coverage_table,
    "similarity": _similarity_table,
    "ablation": _ablation_table,
}
