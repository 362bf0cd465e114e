"""A run's model for inference, its parameters on one device, whatever mesh they were trained on;
and the data it was trained on.
"""

from __future__ import annotations

from typing import Any

import jax
import optax
from msgspec.structs import replace

from mhsh.config.schema import Config, MeshConfig
from mhsh.data.corpus import Corpus
from mhsh.data.load import load_corpus
from mhsh.errors import UserError
from mhsh.models.build import Model, build_model
from mhsh.run_folder import RunFolder
from mhsh.training.checkpoint import Checkpoints
from mhsh.training.checkpoint_average import average, newest_steps
from mhsh.training.sharding import make_mesh
from mhsh.training.state import abstract_state


def restored_model(folder: RunFolder, config: Config, step: int | None, num_averaged: int) -> tuple[Model, Any]:
    """The model and the parameters of `step` (None: the newest), or the mean of `num_averaged`
    checkpoints up to it.

    Raises:
      UserError: there are no such checkpoints, or they are damaged.
    """
    checkpoints = Checkpoints.of_run(folder, config.train)
    steps = newest_steps(checkpoints, num_averaged, step)
    config = replace(config, mesh=MeshConfig(data=1, fsdp=1, tensor=1))
    model = build_model(config.model)
    # Whatever the optimiser, the parameters are the same.
    abstract = abstract_state(config, model, optax.identity(), make_mesh(config, jax.devices()[:1])).params
    params = average(checkpoints, steps, abstract)
    checkpoints.close()
    return model, params


def recorded_corpus(folder: RunFolder, config: Config) -> Corpus:
    """The rows that the run was trained on.

    Raises:
      UserError: data.source has become something else since, or is not here.
    """
    corpus = load_corpus(config, folder.path)
    # An imported checkpoint was trained on data that nobody recorded.
    recorded = folder.read_run()["data"]["fingerprint"] if folder.has_run_record() else corpus.fingerprint
    if corpus.fingerprint != recorded:
        raise UserError(f"{folder.path} was trained on other data (fingerprint {recorded[:12]}, here {corpus.fingerprint[:12]})")
    return corpus
