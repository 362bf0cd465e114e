"""Training that starts from the parameters of another run: what is taken over, what starts fresh, and what stays behind."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from mhsh.config import Config
from mhsh.errors import UserError
from mhsh.models.model import build_model
from mhsh.models.stack import SUBLAYERS
from mhsh.run_folder import RunFolder
from mhsh.training.checkpoint import Checkpoints, compare_manifests, flatten, manifest
from mhsh.training.optimizer import build_optimizer
from mhsh.training.state import abstract_state

# What cannot start fresh where another run is started from: only heads can.
_NEEDED = ("embeddings", *SUBLAYERS)


def started_from(config: Config, fresh: Any, mesh: Mesh) -> tuple[Any, dict[str, Any]]:
    """The `fresh` parameters of `config`, with those of the newest checkpoint of train.start_from in their place wherever it has
    them: all of the embeddings and stacks, and the heads that both have. A learned position table may have more rows than the one
    it starts from; the rows that are new start fresh.

    Returns:
      the parameters, and for run.json: the folder, its step, and the names of the parts that were taken, started fresh and left.

    Raises:
      UserError: the folder holds no good checkpoint, or its embeddings or stacks have other shapes.
    """
    folder = RunFolder(config.train.start_from)
    there = folder.read_config()
    checkpoints = Checkpoints.of_run(folder, there.train)
    step = checkpoints.existing_step(None)
    abstract = abstract_state(there, build_model(there.model), build_optimizer(there.optimizer, there.train), mesh).params
    saved = checkpoints.restore_params(step, abstract)
    checkpoints.close()
    taken = [name for name in fresh if name in saved]
    missing = [name for name in fresh if name in _NEEDED and name not in taken]
    if missing:
        raise UserError(f"train.start_from = {config.train.start_from!r} has no {missing[0]}; start from a run of the same kind")
    saved["embeddings"] = _extended(saved["embeddings"], fresh["embeddings"])
    compare_manifests(
        manifest(flatten({name: saved[name] for name in taken})),
        manifest(flatten({name: fresh[name] for name in taken})),
        folder.checkpoints_path / str(step),
    )
    report = {
        "folder": config.train.start_from,
        "step": step,
        "taken": taken,
        "fresh": [name for name in fresh if name not in saved],
        "left": [name for name in saved if name not in fresh],
    }
    return fresh | {name: saved[name] for name in taken}, report


def _extended(saved: Any, fresh: Any) -> Any:
    """The saved embeddings, their position tables followed by the further rows of the fresh ones."""
    tables = {
        name: jax.jit(lambda old, new: jnp.concatenate([old, new[len(old) :]]), out_shardings=fresh[name].sharding)(
            saved[name], fresh[name]
        )
        for name in saved
        if name.endswith("position") and name in fresh and len(saved[name]) < len(fresh[name])
    }
    return saved | tables
