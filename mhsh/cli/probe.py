"""mhsh probe: what the layers of a model do on one batch, as a table, a JSON and a picture."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from cyclopts import Parameter

from mhsh.cli.parser import NO_CHANGES, ConfigOrChangesFlag, Count, StepFlag
from mhsh.config.entries import variant, variants
from mhsh.config.recorded import to_record
from mhsh.config.schema import Config
from mhsh.config.shapes import shape_name
from mhsh.configs import CONFIG, LIST
from mhsh.errors import UserError
from mhsh.storage.files import absolute, check_new_file, check_suffix, write_new
from mhsh.storage.run_folder import RunFolder
from mhsh.text import to_json, whole_numbers
from mhsh.verdict.runs import distinct_names

FORMAT = 1  # of the JSON
PICTURES = (".png", ".svg")


class ProbedModel(NamedTuple):
    """A model to be looked at, and the batch it is looked at with."""

    name: str
    step: int | None  # of the checkpoint; None: a fresh model
    config: Config
    params: Any
    batch: Mapping[str, Any]
    corpus: Any


EXAMPLES = (
    "mhsh probe dependency runs/3l4h runs/12l1h",
    "mhsh probe amplification --config=bert:3l4h --depths=6,12",
)
# The options that only one kind has, with their defaults.
_OPTIONS: dict[str, dict[str, Any]] = {
    "amplification": {"depths": "6,12,24,48,96,192,384", "schemes": "", "draws": 8},
    "ablation": {"batches": 4},
}


def run(
    kind: Annotated[
        Literal["dependency", "amplification", "gradients", "coverage", "similarity", "ablation"], Parameter(name="KIND")
    ],
    /,
    *folders: Annotated[str, Parameter(name="RUN")],
    given: ConfigOrChangesFlag = NO_CHANGES,
    step: StepFlag = None,
    rows: Count = 8,
    out: str | None = None,
    batches: Count | None = None,
    depths: str | None = None,
    schemes: str | None = None,
    draws: Count | None = None,
) -> int:
    """Measures what the layers of trained runs, or of a fresh model, do on one batch.

    Prints tables, and writes a JSON file, and the tables as Markdown and pictures beside it.

    - dependency: the share that each sublayer has in the final residual stream
    - amplification: how much a fresh output changes with the weights, against depth
    - gradients: the gradient's norm in every layer and sublayer
    - coverage: how many positions a token draws on: in a head, in a layer, through the stack; and
      the share of those it sees that have the largest weight of some head
    - similarity: how alike the residual stream is before and after each layer
    - ablation: the loss without a layer, with two swapped, and without the last ones

    --config.data.source=PLACE says where the data of RUN is now, which must be the same.

    Args:
      kind: which of these
      folders: trained runs, side by side
      rows: of the batch; of ablation, of each validation batch
      out: a new file for the JSON; probe-KIND.json by default
      batches: of ablation: validation batches; 4 by default
      depths: of amplification: numbers of layers; 6,12,24,48,96,192,384 by default
      schemes: of amplification: some residual schemes; all by default
      draws: of amplification: random changes that are averaged; 8 by default
    """
    options = _options(kind, {name: value for name, value in locals().items() if value is not None})
    config = given.config
    _check(kind, folders, config, step)
    out = f"probe-{kind}.json" if out is None else out
    check_suffix("--out", out, "this is the JSON, and .md, .png and .svg are written beside it", ".json")
    for suffix in (".json", ".md", *PICTURES):
        check_new_file("--out", Path(out).with_suffix(suffix))
    from mhsh.training.environment import environment

    if kind == "amplification" and config is not None:
        results: dict[str, Any] = {"config": to_record(config), "schemes": _schemes(config, rows, **options)}
    else:
        named = zip(distinct_names(list(map(absolute, folders))), folders, strict=True)
        sources = [_fresh(config, rows)] if config is not None else (_load_run(*each, given.changes, step, rows) for each in named)
        results = {"models": [_result(kind, source, options) for source in sources]}
    document = {"format": FORMAT, "kind": kind, "environment": environment(), "settings": {"rows": rows, **options}, **results}
    _write(document, Path(out))
    return 0


def _write(document: dict[str, Any], out: Path) -> None:
    """Writes the JSON, and the tables and pictures beside it, and prints the tables."""
    # What draws takes a second to import; `mhsh probe --help` does not need it.
    from mhsh.report.markdown import to_markdown
    from mhsh.report.probes import AUTHOR, picture, print_tables, tables

    write_new(out, to_json(document, indent=1) + "\n")
    page, pictures, shown = out.with_suffix(".md"), [out.with_suffix(suffix) for suffix in PICTURES], tables(document)
    for path in pictures:
        write_new(path, picture(document, path.suffix[1:]))
    write_new(page, to_markdown([], {pictures[0].name: f"mhsh probe {document['kind']}"}, shown, AUTHOR))
    print_tables(shown)
    print(f"\nWritten: {out} and {page.name}\nPictures: {', '.join(map(str, pictures))}")


def _options(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a kind, those not given at their defaults."""
    for owner, defaults in _OPTIONS.items():
        for name in defaults.keys() & given.keys():
            if owner != kind:
                raise UserError(f"--{name} is of mhsh probe {owner}, not of {kind}; leave it out")
    return {name: given.get(name, default) for name, default in _OPTIONS.get(kind, {}).items()}


def _check(kind: str, folders: Sequence[str], config: Config | None, step: int | None) -> None:
    if kind == "amplification" and folders:
        raise UserError(f"mhsh probe amplification looks at fresh models alone: give --config={CONFIG} instead of {folders[0]}")
    if bool(folders) == (config is not None):
        raise UserError(f"mhsh probe needs RUN folders, or else --config={CONFIG} for a fresh model; {LIST}")
    if config is not None and step is not None:
        raise UserError("--step goes with RUN: a fresh model has no checkpoints")
    if config is not None and config.train.start_from:
        raise UserError(f"train.start_from = {config.train.start_from!r} makes no fresh model; probe that run itself")


def _load_run(name: str, folder: str, changes: Sequence[tuple[str, Any]], step: int | None, rows: int) -> ProbedModel:
    from mhsh.training.checkpoints.restore import load_for_inference, load_recorded_corpus

    run_folder = RunFolder(folder)
    config = run_folder.read_config(changes)
    _, params = load_for_inference(run_folder, config, step, 1)
    corpus = load_recorded_corpus(run_folder, config)
    at = step if step is not None else run_folder.newest_checkpoint()
    return ProbedModel(name, at, config, params, _batch(corpus, rows), corpus)


def _fresh(config: Config, rows: int) -> ProbedModel:
    """The model as training starts it, but that Admin's omega is profiled on the probe's batch."""
    import optax

    from mhsh.data.load import load_corpus
    from mhsh.models.build import build_model
    from mhsh.training.mesh import first_device
    from mhsh.training.state import create_state

    corpus = load_corpus(config, None)
    batch = _batch(corpus, rows)
    state = create_state(config, build_model(config.model), optax.identity(), first_device(), batch)
    return ProbedModel(f"{shape_name(config.model)} {config.model.residual}, fresh", None, config, state.params, batch, corpus)


def _batch(corpus: Any, rows: int) -> Mapping[str, Any]:
    if len(corpus.train) < rows:
        raise UserError(f"--rows={rows} is more than the {len(corpus.train)} training rows of data.source; lower --rows")
    return corpus.train_steps(rows)[0]


def _validation(corpus: Any, count: int, rows: int) -> list[Mapping[str, Any]]:
    """The first `count` batches of validation rows, none of them filled up."""
    if len(corpus.validation) < count * rows:
        raise UserError(
            f"--batches={count} of --rows={rows} are more than the {len(corpus.validation)} validation rows; lower one of them"
        )
    batches = corpus.validation_batches(rows)
    return [batches[index] for index in range(count)]


def _result(kind: str, source: ProbedModel, options: Mapping[str, Any]) -> dict[str, Any]:
    """The result of the probe `kind` on a model, with its name and config."""
    from mhsh.probes.ablation import ablation
    from mhsh.probes.coverage import coverage
    from mhsh.probes.dependency import dependency
    from mhsh.probes.gradient_flow import gradient_flow
    from mhsh.probes.similarity import similarity

    _say(source.name)
    model, params, batch = source.config.model, source.params, source.batch
    if kind == "ablation":
        result = ablation(model, params, _validation(source.corpus, options["batches"], len(batch["inputs"])))
    else:
        probes = {"dependency": dependency, "gradients": gradient_flow, "coverage": coverage, "similarity": similarity}
        result = probes[kind](model, params, batch)
    return {"name": source.name, "step": source.step, "config": to_record(source.config), "result": result}


def _schemes(config: Config, rows: int, *, depths: str, schemes: str, draws: int) -> list[dict[str, Any]]:
    """The amplification by every scheme on fresh stacks of every depth."""
    from mhsh.data.load import load_corpus
    from mhsh.probes.amplification import scheme_amplification

    layers = sorted(whole_numbers("--depths=", depths))
    names = [name.strip() for name in schemes.split(",")] if schemes else list(variants())
    for name in names:
        variant(name)
    batch = _batch(load_corpus(config, None), rows)
    return [scheme_amplification(config.model, name, layers, batch, num_draws=draws, note=_say) for name in names]


def _say(text: str) -> None:
    print(f"mhsh probe: {text}", file=sys.stderr, flush=True)
