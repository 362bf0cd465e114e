"""Training that starts from the parameters of another run (train.start_from)."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from etils import epath
from jax.sharding import Mesh

from mhsh.config.schema import Config
from mhsh.data.corpus import Corpus
from mhsh.errors import UserError
from mhsh.models.types import SUBLAYERS
from mhsh.run_folder import RunFolder, vocab_file
from mhsh.training.checkpoints.checkpoint import StoredCheckpoints
from mhsh.training.checkpoints.manifest import compare_manifests, flatten, manifest
from mhsh.training.optimizer import build_optimizer
from mhsh.training.state import TrainState, abstract_state

# Only heads may start fresh; these may not.
_NEEDED = ("embeddings", *SUBLAYERS)


def init_from_run(config: Config, fresh: TrainState, mesh: Mesh) -> tuple[TrainState, dict[str, Any]]:
    """The `fresh` state of `config` with parameters of the newest checkpoint of train.start_from:
    all embeddings and stacks, and the heads that both have. A learned position table may be longer
    than the other run's; its new rows start fresh.

    With train.keep_moments, Adam's moments and their count are taken too; fresh parts have moments
    of zero. The step is always 0, and the schedule is that of `config`.

    Returns:
      the state, and for run.json: the folder, its step, the names of the parts that were taken,
      started fresh and left, and the runs before it (RunFolder.lineage).

    Raises:
      UserError: the folder holds no good checkpoint, its embeddings or stacks have other shapes, or
        its moments are another optimiser's.
    """
    folder = RunFolder(config.train.start_from)
    there = folder.read_config()
    checkpoints = StoredCheckpoints(folder.checkpoints_path)
    step = checkpoints.existing_step(None)
    abstract = abstract_state(there, build_optimizer(there), mesh)
    if config.train.keep_moments:
        if there.optimizer.name != config.optimizer.name:
            raise UserError(
                f"train.keep_moments = True, but {config.train.start_from!r} has the moments of {there.optimizer.name}; allowed "
                f"with optimizer.name = {config.optimizer.name!r}: False"
            )
        saved = checkpoints.restore(step, abstract)
    else:
        saved = fresh._replace(params=checkpoints.restore_params(step, abstract.params))
    checkpoints.close()
    names = [name for name in fresh.params if name in saved.params]
    missing = [name for name in fresh.params if name in _NEEDED and name not in names]
    if missing:
        raise UserError(f"train.start_from = {config.train.start_from!r} has no {missing[0]}; start from a run of the same kind")
    params = _taken(names, saved.params, fresh.params)
    compare_manifests(
        manifest(flatten({name: params[name] for name in names})),
        manifest(flatten({name: fresh.params[name] for name in names})),
        folder.checkpoints_path / str(step),
    )
    report = {
        "folder": config.train.start_from,
        "step": step,
        "taken": names,
        "fresh": [name for name in fresh.params if name not in names],
        "left": [name for name in saved.params if name not in names],
        "moments": config.train.keep_moments,
        "lineage": folder.lineage(step),
    }
    opt_state = _with_moments(names, saved.opt_state, fresh.opt_state) if config.train.keep_moments else fresh.opt_state
    return fresh._replace(params=params, opt_state=opt_state), report


def check_same_vocabulary(config: Config, corpus: Corpus) -> None:
    """Raises UserError if the run of train.start_from has not the vocabulary of the data."""
    there = RunFolder(config.train.start_from).path / vocab_file(config)
    with tempfile.TemporaryDirectory() as folder:
        corpus.save_vocab(epath.Path(folder))
        here = (epath.Path(folder) / vocab_file(config)).read_bytes()
    if not there.exists() or there.read_bytes() != here:
        raise UserError(
            f"train.start_from = {config.train.start_from!r} was trained with another vocabulary than the data's; prepare the data "
            f"with --config.data.vocab_path={there}, or start from another run"
        )


def _with_moments(names: Sequence[str], saved: Any, fresh: Any) -> Any:
    """The fresh optimiser state with the saved moments of those parts, and the saved count."""
    moments = {key: _taken(names, optax.tree.get(saved, key), optax.tree.get(fresh, key)) for key in ("mu", "nu")}
    return optax.tree.set(fresh, count=optax.tree.get(saved, "count"), **moments)


def _taken(names: Sequence[str], saved: Any, fresh: Any) -> Any:
    """The fresh parameters (or moments), replaced by the saved ones for those parts."""
    embeddings = {"embeddings": _extended(saved["embeddings"], fresh["embeddings"])}
    return fresh | {name: (saved | embeddings)[name] for name in names}


def _extended(saved: Any, fresh: Any) -> Any:
    """The saved embeddings. Their position tables are extended by the further rows of the fresh
    tables.
    """
    tables = {
        name: jax.jit(lambda old, new: jnp.concatenate([old, new[len(old) :]]), out_shardings=fresh[name].sharding)(
            saved[name], fresh[name]
        )
        for name in saved
        if name.endswith("position") and name in fresh and len(saved[name]) < len(fresh[name])
    }
    return saved | tables
