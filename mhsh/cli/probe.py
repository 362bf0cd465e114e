"""mhsh probe: what the layers of a model do, on one batch: a table, a JSON with all figures, and a
picture of them.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from mhsh.config.resolve import from_dict
from mhsh.config.schema import Config, MeshConfig, to_dict
from mhsh.data.corpus import Corpus
from mhsh.data.load import load_corpus
from mhsh.errors import UserError
from mhsh.files import check_new_file, write_new
from mhsh.models.build import build_model
from mhsh.models.types import Batch
from mhsh.probes.amplification import SCHEMES, fresh_amplification, layer_amplification, plain_deviations
from mhsh.probes.coverage import coverage
from mhsh.probes.dependency import dependency
from mhsh.probes.gradient_flow import gradient_flow
from mhsh.probes.growth import growth, mean_interval
from mhsh.probes.similarity import similarity
from mhsh.report.probes.plots import picture
from mhsh.report.render.outputs import write as write_bytes
from mhsh.run_folder import RunFolder
from mhsh.training.environment import environment
from mhsh.training.restore import load_for_inference, load_recorded_corpus
from mhsh.training.sharding import make_mesh
from mhsh.training.state import create_state

FORMAT = 1  # of the JSON
PICTURES = ("png", "svg")
_SEED = 0  # of the noise
_WIDTH = 120  # of a table, at least


class Source(NamedTuple):
    """A model to be looked at, and the batch it is looked at with."""

    name: str
    step: int | None  # of the checkpoint; None: a fresh model
    config: Config
    params: Any
    batch: Batch


def run(
    kind: str,
    folders: Sequence[str],
    config_fields: dict[str, Any] | None,
    against_fields: dict[str, Any] | None,
    step: int | None,
    rows: int,
    out: str | None,
    **options: Any,
) -> int:
    """Looks at the runs in `folders` (checkpoint `step`, or the newest), or at fresh models of the
    configs; prints a table, and writes `out` and the pictures beside it.

    Args:
      kind: a name in `_PROBES`, or amplification, whose `options` are depths, schemes, draws and
        noise.
      rows: of the batch, which is the first that training draws at this size.

    Raises:
      UserError: neither runs nor a config are given, or both; a run has no such checkpoint; a file
        is there already.
    """
    configs = {name: from_dict(fields) for name, fields in (("config", config_fields), ("against", against_fields)) if fields}
    _check(folders, configs, rows, step, options)
    out = out or f"probe-{kind}.json"
    check_new_file(out)
    drawn = {suffix: Path(out).with_suffix(f".{suffix}") for suffix in PICTURES}
    for path in drawn.values():
        if os.path.lexists(path):
            raise UserError(f"{path} exists, and nothing is overwritten; choose another --out")
    settings = {"rows": rows, **options}
    if kind == "amplification" and configs:
        found: dict[str, Any] = {"config": to_dict(configs["config"]), "schemes": _fresh_schemes(configs["config"], rows, options)}
    else:
        sources = (_of_run(folder, step, rows) for folder in folders) if folders else _fresh_sources(configs, rows)
        probe = _PROBES.get(kind) or (lambda source: _layer_changes(source, options))
        found = {"models": [_entry(source, probe(source)) for source in sources]}
    document = {"format": FORMAT, "kind": kind, "environment": environment(), "settings": settings, **found}
    write_new(out, json.dumps(document, indent=1) + "\n")
    for suffix, path in drawn.items():
        write_bytes(path, picture(document, suffix))
    _TABLES[kind](document)
    return 0


def _check(folders: Sequence[str], configs: dict[str, Config], rows: int, step: int | None, options: dict[str, Any]) -> None:
    if not folders and "config" not in configs:
        raise UserError("mhsh probe needs RUN folders, or --config=FILE.py:VARIANT for a fresh model")
    if folders and configs:
        raise UserError(f"give either runs ({folders[0]}) or --config, not both")
    if configs and step is not None:
        raise UserError("--step goes with RUN: a fresh model has no checkpoints")
    if options and "against" in configs:
        raise UserError("--against does not go with amplification: give --schemes and --depths")
    if options and not folders and not math.isfinite(options["noise"]):
        raise UserError(f"--noise={options['noise']}: give a number above 0")
    for name, value in (("rows", rows), ("draws", options.get("draws", 1)), ("noise", options.get("noise", 1))):
        if not value > 0:
            raise UserError(f"--{name}={value}: give a number above 0")
    for name, config in configs.items():
        if config.train.start_from:
            raise UserError(f"{name}: train.start_from = {config.train.start_from!r} makes no fresh model; probe that run itself")


def _of_run(folder: str, step: int | None, rows: int) -> Source:
    run_folder = RunFolder(folder)
    config = run_folder.read_config()
    _, params = load_for_inference(run_folder, config, step, 1)
    _check_finite(folder, params)
    batch = _batch(load_recorded_corpus(run_folder, config), rows)
    return Source(Path(folder).name or folder, step if step is not None else run_folder.newest_checkpoint(), config, params, batch)


def _check_finite(folder: str, params: Any) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not bool(jnp.isfinite(leaf).all()):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise UserError(f"{folder}: {name} is not finite at this checkpoint; probe an earlier one with --step")


def _fresh_sources(configs: dict[str, Config], rows: int) -> list[Source]:
    return [_fresh(name, config, rows) for name, config in configs.items()]


def _fresh(name: str, config: Config, rows: int) -> Source:
    """The model as training starts it, but that Admin's omega is profiled on the probe's batch."""
    batch = _batch(load_corpus(config, None), rows)
    here = _here(config, rows)
    state = create_state(here, build_model(config.model), optax.identity(), make_mesh(here, jax.devices()[:1]), batch)
    return Source(f"{name}: {_shape(config)} {config.model.residual}, fresh", None, config, state.params, batch)


def _here(config: Config, rows: int) -> Config:
    """On one device, with batches of `rows`."""
    train = replace(config.train, batch_size=rows, accumulation_steps=1)
    return replace(config, train=train, mesh=MeshConfig(data=1, fsdp=1, tensor=1))


def _batch(corpus: Corpus, rows: int) -> Batch:
    if corpus.num_train_examples < rows:
        raise UserError(f"--rows={rows} is more than the {corpus.num_train_examples} training rows of data.source; lower --rows")
    first = corpus.train_steps(rows)[0]
    assert first is not None
    return first


def _shape(config: Config) -> str:
    model = config.model
    decoder = f"-{model.num_decoder_layers}L" if model.num_decoder_layers else ""
    return f"{model.num_layers}L{decoder}{model.num_heads}H"


def _entry(source: Source, result: dict[str, Any]) -> dict[str, Any]:
    return {"name": source.name, "step": source.step, "config": to_dict(source.config), "result": result}


def _fresh_schemes(config: Config, rows: int, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Every scheme on stacks of every depth, with the growth of the change with the number of
    sublayers.
    """
    depths = _whole_numbers("--depths", options["depths"])
    chosen = [name.strip() for name in options["schemes"].split(",")] if options["schemes"] else list(SCHEMES)
    for name in chosen:
        if name not in SCHEMES:
            raise UserError(f"--schemes: there is no {name!r}; allowed: {', '.join(SCHEMES)}")
    batch = _batch(load_corpus(config, None), rows)
    scales = plain_deviations(config.model, batch)
    found = []
    for name in chosen:
        scheme, points = SCHEMES[name], []
        for depth in depths:
            model = replace(
                config.model, residual=scheme.residual, admin_omega=scheme.admin_omega, num_layers=depth, remat_policy="none"
            )
            draws = fresh_amplification(model, batch, scales, num_draws=options["draws"], noise=options["noise"], seed=_SEED)
            print(f"mhsh probe: {name}, {depth} layers: {draws.mean():.3g}", file=sys.stderr, flush=True)
            points.append({"layers": depth, "sublayers": 2 * depth, **_summary(draws)})
        fitted = growth([point["sublayers"] for point in points], [point["mean"] or math.nan for point in points])
        found.append(
            {
                "scheme": name,
                "theory": scheme.theory,
                "source": scheme.source,
                "growth": None if fitted is None else fitted._asdict(),
                "points": points,
            }
        )
    return found


def _summary(draws: np.ndarray) -> dict[str, Any]:
    """Mean and interval, null where not finite, and the draws."""
    figures = dict(zip(("mean", "low", "high"), mean_interval(draws), strict=True))
    return {name: _finite(value) for name, value in figures.items()} | {"draws": [_finite(value) for value in draws]}


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _layer_changes(source: Source, options: dict[str, Any]) -> dict[str, Any]:
    model = source.config.model
    scales = plain_deviations(model, source.batch)
    changes = layer_amplification(
        model, source.params, source.batch, scales, num_draws=options["draws"], noise=options["noise"], seed=_SEED
    )
    means = changes.mean(axis=0)
    fitted = growth([2 * layer for layer in range(1, len(means) + 1)], means)
    return {
        "means": [_finite(mean) for mean in means],
        "draws": [[_finite(value) for value in draw] for draw in changes],
        "growth": None if fitted is None else fitted._asdict(),
    }


def _whole_numbers(flag: str, text: str) -> list[int]:
    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        numbers = [0]
    if numbers[0] < 1:
        raise UserError(f"{flag}={text}: give whole numbers of at least 1, with commas between")
    return numbers


_PROBES: dict[str, Callable[[Source], dict[str, Any]]] = {
    "dependency": lambda source: dependency(source.config.model, source.params, source.batch),
    "gradients": lambda source: gradient_flow(source.config.model, source.params, source.batch),
    "coverage": lambda source: coverage(source.config.model, source.params, source.batch),
    "similarity": lambda source: similarity(source.config.model, source.params, source.batch),
}


def _print(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    table = Table(*columns, title=title, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(cell if isinstance(cell, str) else f"{cell:.4g}" for cell in row))
    # Wide enough for figures in one line each, also where the output goes to a file.
    Console(markup=False, width=max(_WIDTH, Console().width)).print(table)


def _dependency_table(document: dict[str, Any]) -> None:
    rows = [
        [model["name"], stack, figures["input"], *(sum(figures[name]) for name in names), figures["biases"], _half(figures, names)]
        for model in document["models"]
        for stack, figures in model["result"].items()
        for names in [[name for name in figures if name not in ("input", "biases")]]
    ]
    width = max(len(row) for row in rows)
    parts = ["attention", "feed-forward"] if width == 7 else ["sublayers", "in", "order"]
    rows = [row[:3] + row[3:-2] + [""] * (width - len(row)) + row[-2:] for row in rows]
    _print("shares of the final residual stream", ["model", "stack", "input", *parts, "biases", "second half of the layers"], rows)


def _half(figures: dict[str, Any], names: Sequence[str]) -> float:
    return sum(sum(figures[name][len(figures[name]) // 2 :]) for name in names)


def _gradients_table(document: dict[str, Any]) -> None:
    rows = [
        [
            model["name"],
            stack,
            model["result"]["loss"],
            figures["layer"][0],
            figures["layer"][-1],
            max(figures["layer"]),
            min(figures["layer"]),
        ]
        for model in document["models"]
        for stack, figures in model["result"]["stacks"].items()
    ]
    _print("gradient norms of the layers", ["model", "stack", "loss", "first", "last", "largest", "smallest"], rows)


def _coverage_table(document: dict[str, Any]) -> None:
    rows = [
        [
            model["name"],
            f"{stack} {name}",
            str(sum(len(heads) for heads in figures["heads"])),
            figures["visible"],
            float(np.mean(figures["heads"])),
            float(np.mean(figures["layers"])),
            figures["rollout"][-1] if "rollout" in figures else "",
            figures["rollout_without_residual"][-1] if "rollout" in figures else "",
        ]
        for model in document["models"]
        for stack, sublayers in model["result"].items()
        for name, figures in sublayers.items()
    ]
    columns = ["model", "sublayer", "heads", "may see", "a head", "a layer", "whole stack", "whole stack, no residual"]
    _print("effective number of positions that a token draws on", columns, rows)


def _similarity_table(document: dict[str, Any]) -> None:
    rows = [
        [model["name"], stack, *(f(figures[key]) for key in ("cka", "cosine") for f in (np.mean, min))]
        for model in document["models"]
        for stack, figures in model["result"].items()
    ]
    columns = ["model", "stack", "CKA, mean", "CKA, least", "cosine, mean", "cosine, least"]
    _print("the residual stream before and after a layer", columns, rows)


def _amplification_table(document: dict[str, Any]) -> None:
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
        _print("E|f(w) - f(w + delta)|^2, fresh", ["scheme", "theory", "exponent", "95 %", "best law", *ends], rows)
        return
    rows = [
        [model["name"], *_growth_cells(model["result"]["growth"]), model["result"]["means"][-1] or math.nan]
        for model in document["models"]
    ]
    _print("E|f(w) - f(w + delta)|^2 along the layers", ["model", "exponent", "95 %", "best law", "at the end"], rows)


def _growth_cells(fitted: dict[str, Any] | None) -> list[str]:
    if fitted is None:
        return ["", "", ""]
    return [f"{fitted['exponent']:.2f}", f"{fitted['low']:.2f} to {fitted['high']:.2f}", fitted["law"]]


_TABLES: dict[str, Callable[[dict[str, Any]], None]] = {
    "dependency": _dependency_table,
    "amplification": _amplification_table,
    "gradients": _gradients_table,
    "coverage": _coverage_table,
    "similarity": _similarity_table,
}
