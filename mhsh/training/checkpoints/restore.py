"""A run restored for inference: its parameters on one device, possibly averaged over checkpoints,
and its data.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from msgspec.structs import replace

from mhsh.config.schema import Config, MeshConfig
from mhsh.data.corpus import Corpus
from mhsh.data.load import load_corpus
from mhsh.errors import UserError
from mhsh.models.build import Model, build_model
from mhsh.run_folder import RunFolder
from mhsh.training.checkpoints.checkpoint import StoredCheckpoints
from mhsh.training.sharding import MESH_AXES, make_mesh
from mhsh.training.state import abstract_state


def load_for_inference(
    folder: RunFolder, config: Config, step: int | None, num_averaged: int, mesh: Mesh | None = None
) -> tuple[Model, Any]:
    """The model, and its parameters at `step` (None: the newest), or their mean over the
    `num_averaged` newest checkpoints up to it, on `mesh` (None: on one device).

    Raises:
      UserError: there are no such checkpoints, or they are damaged.
    """
    checkpoints = StoredCheckpoints(folder.checkpoints_path)
    steps = newest_steps(checkpoints, num_averaged, step)
    mesh = inference_mesh(config, {}) if mesh is None else mesh
    # Only training uses cuDNN.
    model = build_model(replace(config.model, attention_implementation="xla"))
    # The parameters do not depend on the optimiser.
    abstract = abstract_state(config, optax.identity(), mesh).params
    params = average(checkpoints, steps, abstract)
    checkpoints.close()
    return model, params


def inference_mesh(config: Config, axes: Mapping[str, int]) -> Mesh:
    """A mesh with so many devices on the axes that are named, and one on the others.

    Raises:
      UserError: there is no such axis, there are fewer devices, or they do not divide the model.
    """
    for axis, size in axes.items():
        if axis not in MESH_AXES or size < 1:
            raise UserError(f"mesh = {dict(axes)}; allowed: how many devices, 1 or more, for any of {', '.join(MESH_AXES)}")
    shape = dict.fromkeys(MESH_AXES, 1) | dict(axes)
    count, there = math.prod(shape.values()), jax.devices()
    if count > len(there):
        raise UserError(f"mesh = {dict(axes)} takes {count} devices, and there are {len(there)}")
    rows = shape["data"] * shape["fsdp"]  # which no row of the data must fit
    train = replace(config.train, batch_size=rows, accumulation_steps=1)
    return make_mesh(replace(config, mesh=MeshConfig(**shape), train=train), there[:count])


def load_recorded_corpus(folder: RunFolder, config: Config) -> Corpus:
    """The data that the run was trained on.

    Raises:
      UserError: data.source has changed since, or does not exist on this machine.
    """
    corpus = load_corpus(config, folder.path)
    # The data of an imported checkpoint was never recorded.
    recorded = folder.read_run()["data"]["fingerprint"] if folder.has_run_record() else corpus.fingerprint
    if corpus.fingerprint != recorded:
        raise UserError(f"{folder.path} was trained on other data (fingerprint {recorded[:12]}, here {corpus.fingerprint[:12]})")
    return corpus


def newest_steps(checkpoints: StoredCheckpoints, count: int, step: int | None) -> list[int]:
    """The newest `count` saved steps, newest first; with `step`, that one and those before it.

    Raises:
      UserError: fewer are saved, or `step` is not among them.
    """
    newest = checkpoints.existing_step(step)
    kept = [each for each in checkpoints.steps() if each <= newest]
    if not 1 <= count <= len(kept):
        named = ", ".join(map(str, sorted(kept)))
        raise UserError(
            f"{count} checkpoints cannot be averaged: up to step {newest} there are {len(kept)} ({named}); "
            f"average 1 to {len(kept)}, or train with a larger train.keep_checkpoints"
        )
    return kept[:count]


def average(checkpoints: StoredCheckpoints, steps: Sequence[int], abstract_params: Any) -> Any:
    """The mean of the parameters at `steps`, with the dtypes and shardings of `abstract_params`
    (Vaswani et al. 2017, section 6.1).

    It is a running mean in fp32: only one checkpoint is in memory beside it.

    Raises:
      UserError: as `StoredCheckpoints.restore_params`.
    """
    first = checkpoints.restore_params(steps[0], abstract_params)
    mean = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), first)
    for number, step in enumerate(steps[1:], 2):
        mean = _running_mean(mean, checkpoints.restore_params(step, abstract_params), jnp.float32(number))
    return jax.tree.map(lambda leaf, wanted: leaf.astype(wanted.dtype), mean, abstract_params)


@functools.partial(jax.jit, donate_argnums=0)
def _running_mean(mean: Any, params: Any, number: jax.Array) -> Any:
    """The mean of `number` trees, from the mean of all but the last and the last."""
    return jax.tree.map(lambda m, leaf: m + (leaf.astype(jnp.float32) - m) / number, mean, params)
