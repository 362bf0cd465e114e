"""mhsh probe: what the layers of a model do on one batch, as a table, a JSON and a picture."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from cyclopts import Parameter
from msgspec.structs import replace

from mhsh.cli.flags import AgainstFlag, ConfigFlag, StepFlag
from mhsh.config.schema import Config, MeshConfig, to_dict
from mhsh.config.shapes import SCHEMES, shape_name
from mhsh.configs import CONFIG, LIST
from mhsh.errors import UserError
from mhsh.files import check_new_file, write_new
from mhsh.probes.growth import growth, mean_interval
from mhsh.report.files import write as write_bytes
from mhsh.report.markdown import to_markdown
from mhsh.report.probes import picture, print_tables, tables
from mhsh.run_folder import RunFolder

FORMAT = 1  # of the JSON
PICTURES = ("png", "svg")
_SEED = 0  # of the noise


class Source(NamedTuple):
    """A model to be looked at, and the batch it is looked at with."""

    name: str
    step: int | None  # of the checkpoint; None: a fresh model
    config: Config
    params: Any
    batch: Mapping[str, Any]
    corpus: Any


EXAMPLES = (
    "mhsh probe dependency runs/2l8h runs/16l1h",
    "mhsh probe amplification --config=bert:2l8h --depths=6,12",
)
# The options that only one kind has, with their defaults.
_OPTIONS: dict[str, dict[str, Any]] = {
    "amplification": {"depths": "6,12,24,48,96,192,384", "schemes": None, "draws": 8, "noise": 0.001},
    "ablation": {"batches": 4},
}


def run(
    kind: Annotated[
        Literal["dependency", "amplification", "gradients", "coverage", "similarity", "ablation"], Parameter(name="KIND")
    ],
    /,
    *folders: Annotated[str, Parameter(name="RUN")],
    config: ConfigFlag | None = None,
    against: AgainstFlag | None = None,
    step: StepFlag = None,
    rows: int = 8,
    out: str | None = None,
    batches: int | None = None,
    depths: str | None = None,
    schemes: str | None = None,
    draws: int | None = None,
    noise: float | None = None,
) -> int:
    """Measures what the layers of trained runs, or of a fresh model, do on one batch.

    Prints tables, and writes a JSON file, and the tables as Markdown and pictures beside it.

    - dependency: the share that each sublayer has in the final residual stream
    - amplification: how much the output changes with the weights, against depth
    - gradients: the gradient's norm in every layer and sublayer
    - coverage: how many positions a token draws on: in a head, in a layer, through the stack
    - similarity: how alike the residual stream is before and after each layer
    - ablation: the loss without a layer, with two swapped, and without the last ones

    Args:
      kind: which of these
      folders: trained runs, side by side
      rows: of the batch, the first that training draws at this size; of ablation, of each
        validation batch
      out: a new file for the JSON; probe-KIND.json by default
      batches: of ablation: validation batches; 4 by default
      depths: of amplification, with --config: numbers of layers; 6,12,24,48,96,192,384 by default
      schemes: of amplification, with --config: some residual schemes; all by default
      draws: of amplification: random changes that are averaged; 8 by default
      noise: of amplification: their deviation over that of a fresh weight; 0.001 by default

    Raises:
      UserError: neither runs nor a config are given, or both; a run has no such checkpoint; a file
        is there already.
    """
    from mhsh.training.environment import environment

    configs = {name: each for name, each in (("config", config), ("against", against)) if each is not None}
    own = {"batches": batches, "depths": depths, "schemes": schemes, "draws": draws, "noise": noise}
    options = _options(kind, {name: value for name, value in own.items() if value is not None})
    _check(folders, configs, rows, step, options)
    out = out or f"probe-{kind}.json"
    drawn = {suffix: Path(out).with_suffix(f".{suffix}") for suffix in PICTURES}
    page = Path(out).with_suffix(".md")
    for path in (out, *drawn.values(), page):
        check_new_file("--out", path)
    settings = {"rows": rows, **options}
    if kind == "amplification" and configs:
        found: dict[str, Any] = {"config": to_dict(configs["config"]), "schemes": _fresh_schemes(configs["config"], rows, options)}
    else:
        sources = (_of_run(folder, step, rows) for folder in folders) if folders else _fresh_sources(configs, rows)
        found = {"models": [_entry(source, _probe(kind, source, options)) for source in _tell(sources)]}
    document = {"format": FORMAT, "kind": kind, "environment": environment(), "settings": settings, **found}
    write_new(out, json.dumps(document, indent=1) + "\n")
    for suffix, path in drawn.items():
        write_bytes(path, picture(document, suffix))
    found_tables = tables(document)
    write_bytes(page, to_markdown([], {drawn["png"].name: f"mhsh probe {kind}"}, found_tables, "written by mhsh probe"))
    print_tables(found_tables)
    print(f"\nWritten: {out} and {page.name}\nPictures: {', '.join(map(str, drawn.values()))}")
    return 0


def _options(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a kind, those not given at their defaults."""
    for name in given:
        [owner] = (owner for owner, options in _OPTIONS.items() if name in options)
        if owner != kind:
            raise UserError(f"--{name} is of mhsh probe {owner}, not of {kind}; leave it away")
    return _OPTIONS.get(kind, {}) | dict(given)


def _tell(sources: Iterable[Source]) -> Iterator[Source]:
    """The same, each named when its turn comes."""
    for source in sources:
        print(f"mhsh probe: {source.name}", file=sys.stderr, flush=True)
        yield source


def _check(folders: Sequence[str], configs: dict[str, Config], rows: int, step: int | None, options: dict[str, Any]) -> None:
    if not folders and "config" not in configs:
        raise UserError(f"mhsh probe needs RUN folders, or --config={CONFIG} for a fresh model; {LIST}")
    if folders and configs:
        raise UserError(f"give either runs ({folders[0]}) or --config, not both")
    if configs and step is not None:
        raise UserError("--step goes with RUN: a fresh model has no checkpoints")
    if "noise" in options and "against" in configs:
        raise UserError("--against does not go with amplification: give --schemes and --depths")
    for name, value in {"rows": rows, **{name: options[name] for name in ("batches", "draws", "noise") if name in options}}.items():
        if not 0 < value < math.inf:
            raise UserError(f"--{name}={value}: give a number above 0")
    for name, config in configs.items():
        if config.train.start_from:
            raise UserError(f"{name}: train.start_from = {config.train.start_from!r} makes no fresh model; probe that run itself")


def _of_run(folder: str, step: int | None, rows: int) -> Source:
    from mhsh.training.checkpoints.restore import load_for_inference, load_recorded_corpus

    run_folder = RunFolder(folder)
    config = run_folder.read_config()
    _, params = load_for_inference(run_folder, config, step, 1)
    _check_finite(folder, params)
    corpus = load_recorded_corpus(run_folder, config)
    at = step if step is not None else run_folder.newest_checkpoint()
    return Source(Path(folder).name or folder, at, config, params, _batch(corpus, rows), corpus)


def _check_finite(folder: str, params: Any) -> None:
    import jax
    import jax.numpy as jnp

    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not bool(jnp.isfinite(leaf).all()):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise UserError(f"{folder}: {name} is not finite at this checkpoint; probe an earlier one with --step")


def _fresh_sources(configs: dict[str, Config], rows: int) -> list[Source]:
    return [_fresh(name, config, rows) for name, config in configs.items()]


def _fresh(name: str, config: Config, rows: int) -> Source:
    """The model as training starts it, but that Admin's omega is profiled on the probe's batch."""
    import jax
    import optax

    from mhsh.data.load import load_corpus
    from mhsh.models.build import build_model
    from mhsh.training.sharding import make_mesh
    from mhsh.training.state import create_state

    corpus = load_corpus(config, None)
    batch, here = _batch(corpus, rows), _here(config, rows)
    state = create_state(here, build_model(config.model), optax.identity(), make_mesh(here, jax.devices()[:1]), batch)
    return Source(f"{name}: {shape_name(config.model)} {config.model.residual}, fresh", None, config, state.params, batch, corpus)


def _here(config: Config, rows: int) -> Config:
    """On one device, with batches of `rows`."""
    train = replace(config.train, batch_size=rows, accumulation_steps=1)
    return replace(config, train=train, mesh=MeshConfig(data=1, fsdp=1, tensor=1))


def _batch(corpus: Any, rows: int) -> Mapping[str, Any]:
    if len(corpus.train) < rows:
        raise UserError(f"--rows={rows} is more than the {len(corpus.train)} training rows of data.source; lower --rows")
    first = corpus.train_steps(rows)[0]
    assert first is not None
    return first


def _validation(corpus: Any, count: int, rows: int) -> list[Mapping[str, Any]]:
    """The first `count` batches of validation rows, none of them filled up."""
    if len(corpus.validation) < count * rows:
        raise UserError(
            f"--batches={count} of --rows={rows} are more than the {len(corpus.validation)} validation rows; lower one of them"
        )
    batches = corpus.validation_batches(rows)
    return [batches[index] for index in range(count)]


def _entry(source: Source, result: dict[str, Any]) -> dict[str, Any]:
    return {"name": source.name, "step": source.step, "config": to_dict(source.config), "result": result}


def _fresh_schemes(config: Config, rows: int, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Every scheme on stacks of every depth, with the growth of the change with the number of
    sublayers.
    """
    from mhsh.data.load import load_corpus
    from mhsh.probes.amplification import THEORY, fresh_amplification, plain_deviations

    depths = _whole_numbers("--depths", options["depths"])
    chosen = [name.strip() for name in options["schemes"].split(",")] if options["schemes"] else list(SCHEMES)
    for name in chosen:
        if name not in SCHEMES:
            raise UserError(f"--schemes: there is no {name!r}; allowed: {', '.join(SCHEMES)}")
    batch = _batch(load_corpus(config, None), rows)
    scales = plain_deviations(config.model, batch)
    found = []
    for name in chosen:
        points = []
        for depth in depths:
            model = replace(config.model, num_layers=depth, remat_policy="none", **SCHEMES[name])
            draws = fresh_amplification(model, batch, scales, num_draws=options["draws"], noise=options["noise"], seed=_SEED)
            print(f"mhsh probe: {name}, {depth} layers: {draws.mean():.3g}", file=sys.stderr, flush=True)
            points.append({"layers": depth, "sublayers": 2 * depth, **_summary(draws)})
        fitted = growth([point["sublayers"] for point in points], [point["mean"] or math.nan for point in points])
        found.append(
            {
                "scheme": name,
                "theory": THEORY[name].growth,
                "source": THEORY[name].source,
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
    from mhsh.probes.amplification import layer_amplification, plain_deviations

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
        # Without its interval, which holds for independent values: the layers of a model are not.
        "growth": None if fitted is None else {"exponent": fitted.exponent, "deviations": fitted.deviations, "law": fitted.law},
    }


def _whole_numbers(flag: str, text: str) -> list[int]:
    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        numbers = [0]
    if numbers[0] < 1:
        raise UserError(f"{flag}={text}: give whole numbers of at least 1, with commas between")
    return numbers


def _probe(kind: str, source: Source, options: dict[str, Any]) -> dict[str, Any]:
    """What the probe `kind` finds in a model."""
    if kind == "amplification":
        return _layer_changes(source, options)
    from mhsh.probes.ablation import ablation

    if kind == "ablation":
        return ablation(
            source.config.model, source.params, _validation(source.corpus, options["batches"], len(source.batch["inputs"]))
        )
    from mhsh.probes.coverage import coverage
    from mhsh.probes.dependency import dependency
    from mhsh.probes.gradient_flow import gradient_flow
    from mhsh.probes.similarity import similarity

    probes = {"dependency": dependency, "gradients": gradient_flow, "coverage": coverage, "similarity": similarity}
    return probes[kind](source.config.model, source.params, source.batch)
