"""The uses of another run's checkpoints: a model for inference, whose parameters may be an average,
and the start of a new run (train.start_from).
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array
from msgspec.structs import replace

from mhsh.config.entries import SCHEMES, SOURCES, UPDATE_RULES, check_recorded
from mhsh.config.registry import Registry
from mhsh.config.schema import ClassificationDataConfig, Config
from mhsh.data.corpus import Corpus
from mhsh.data.glue import find_task
from mhsh.data.load import load_corpus, load_tokenizer
from mhsh.data.wordpiece import WordPieceTokenizer
from mhsh.errors import UserError
from mhsh.models.build import Model, build_model, xla_config
from mhsh.models.parameters import parameter_path
from mhsh.models.types import SUBLAYERS
from mhsh.storage.run_folder import RunFolder, vocab_file
from mhsh.training.checkpoints.checkpoint import StoredCheckpoints
from mhsh.training.checkpoints.verify import compare_manifests, flatten, manifest
from mhsh.training.memory import replace_policy
from mhsh.training.mesh import make_mesh
from mhsh.training.optimizer import build_optimizer
from mhsh.training.sharding import MESH_AXES, check_divisibility, division_problems
from mhsh.training.state import TrainState, abstract_state

# Only heads may start fresh; these may not.
_NEEDED = ("embeddings", *SUBLAYERS)


def load_for_inference(
    folder: RunFolder, config: Config, step: int | None, num_averaged: int, mesh: Mesh | None = None
) -> tuple[Model, Any]:
    """The model, and its parameters at `step` (None: the newest), or their mean over the
    `num_averaged` newest checkpoints up to it, on `mesh` (None: on one device). Raises UserError
    where there are no such checkpoints, or they are damaged.
    """
    note_other_file(folder, config, SCHEMES)
    checkpoints = StoredCheckpoints(folder.checkpoints_path)
    steps = newest_steps(checkpoints, num_averaged, step)
    mesh = inference_mesh(config, {}) if mesh is None else mesh
    model = build_model(xla_config(config.model))
    # The parameters do not depend on the optimiser.
    abstract = abstract_state(config, optax.identity(), mesh).params
    params = average(checkpoints, steps, abstract)
    checkpoints.close()
    return model, params


def note_other_file(folder: RunFolder, config: Config, needed: Registry[Any]) -> None:
    """Says on standard error where the run's entry of that registry is of another file than the one
    that is loaded. Raises UserError where the entry is not loaded.
    """
    differing = check_recorded(config, folder.run_record(), folder.path, [needed])
    if differing:
        print(f"mhsh: {differing}: the loaded one is used", file=sys.stderr)


def inference_mesh(config: Config, axes: Mapping[str, int]) -> Mesh:
    """A mesh with so many devices on the axes that are named, and one on the others. Raises
    UserError where there is no such axis, there are fewer devices, or they do not divide the model.
    """
    for axis, size in axes.items():
        if axis not in MESH_AXES or size < 1:
            raise UserError(f"mesh = {dict(axes)}; allowed: how many devices, 1 or more, for any of {', '.join(MESH_AXES)}")
    shape = dict.fromkeys(MESH_AXES, 1) | dict(axes)
    count, devices = math.prod(shape.values()), jax.devices()
    if count > len(devices):
        raise UserError(f"mesh = {dict(axes)} takes {count} devices, and there are {len(devices)}")
    rows = shape["data"] * shape["fsdp"]  # which no row of the data must fit
    train = replace(config.train, batch_size=rows, accumulation_steps=1)
    check_divisibility(config.model, train, shape)
    return make_mesh(shape, devices[:count])


def load_recorded_corpus(folder: RunFolder, config: Config) -> Corpus:
    """The data of a run: what it was trained on, if it has been. Raises UserError where data.source
    has changed since, or does not exist on this machine.
    """
    note_other_file(folder, config, SOURCES)
    corpus = load_corpus(config, folder.vocabulary(config))
    # A run that begins has no record, and the data of an imported checkpoint was never recorded.
    recorded = folder.read_run().get("data", {}).get("fingerprint") if folder.has_run_record() else corpus.fingerprint
    if corpus.fingerprint != recorded:
        raise UserError(
            f"{folder.path} was trained on other data (fingerprint {str(recorded)[:12]}, here {corpus.fingerprint[:12]}); "
            "restore the text files (or, for the source stdlib, the same Python), name their place by --config.data.source=PLACE, "
            "or start again in another --workdir"
        )
    return corpus


def newest_steps(checkpoints: StoredCheckpoints, count: int, step: int | None) -> list[int]:
    """The newest `count` saved steps, newest first; with `step`, that one and those before it.
    Raises UserError where fewer are saved, or `step` is not among them.
    """
    newest = checkpoints.existing_step(step)
    candidates = [saved for saved in checkpoints.steps() if saved <= newest]
    if not 1 <= count <= len(candidates):
        named = ", ".join(map(str, sorted(candidates)))
        raise UserError(
            f"{count} checkpoints cannot be averaged: up to step {newest} there are {len(candidates)} ({named}); "
            f"average 1 to {len(candidates)}, or train with a larger train.keep_checkpoints"
        )
    return candidates[:count]


def average(checkpoints: StoredCheckpoints, steps: Sequence[int], abstract_params: Any) -> Any:
    """The mean of the parameters at `steps`, with the dtypes and shardings of `abstract_params`
    (Vaswani et al. 2017, section 6.1).

    It is a running mean in fp32: only one checkpoint is in memory beside it. Raises UserError as
    `StoredCheckpoints.restore_params`.
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


def init_from_run(config: Config, fresh: TrainState, mesh: Mesh) -> tuple[TrainState, dict[str, Any]]:
    """The `fresh` state of `config` with parameters of the newest checkpoint of train.start_from:
    all embeddings and stacks, and the heads that both have, but for the classes of another task. A
    learned position table may be longer than the other run's; its new rows start fresh.

    With train.keep_moments, Adam's moments and their count are taken too; fresh parts have moments
    of zero. The step is always 0, and the schedule is that of `config`.

    Returns:
      the state, and for run.json: the folder, its step, the names of the parts that were taken,
      started fresh and left, and the runs before it (RunFolder.lineage).

    Raises UserError where the folder holds no good checkpoint, its embeddings or stacks have other
    shapes, or its moments are another optimiser's.
    """
    folder = RunFolder(config.train.start_from)
    other = folder.read_config()
    note_other_file(folder, other, SCHEMES)
    problem = next(division_problems(other.model, config.train, mesh.shape), None)
    if problem:  # which would read like damage to its checkpoint
        raise UserError(f"the model of train.start_from = {config.train.start_from!r} does not fit this mesh: {problem}")
    checkpoints = StoredCheckpoints(folder.checkpoints_path)
    step = checkpoints.existing_step(None)
    optimizer = build_optimizer(other) if config.train.keep_moments else optax.identity()
    # Sharded as this run's state, which its remat policy decides too.
    abstract = abstract_state(replace_policy(other, config.model.remat_policy), optimizer, mesh)
    if config.train.keep_moments:
        if other.optimizer.name != config.optimizer.name:
            raise UserError(
                f"train.keep_moments = True, but {config.train.start_from!r} has the moments of {other.optimizer.name}; allowed "
                f"with optimizer.name = {config.optimizer.name!r}: False"
            )
        note_other_file(folder, other, UPDATE_RULES)  # which may keep others
        saved = checkpoints.restore(step, abstract)
    else:
        saved = fresh._replace(params=checkpoints.restore_params(step, abstract.params))
    checkpoints.close()
    tasks = {find_task(each.data.task).name for each in (other, config) if isinstance(each.data, ClassificationDataConfig)}
    others = {"classification"} if len(tasks) > 1 else set()
    names = [name for name in fresh.params if name in saved.params and name not in others]
    missing = [name for name in fresh.params if name in _NEEDED and name not in names]
    if missing:
        raise UserError(f"train.start_from = {config.train.start_from!r} has no {missing[0]}; start from a run of the same kind")
    params = _take_parameters(names, saved.params, fresh.params)
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
    opt_state = _take_moments(names, saved, fresh) if config.train.keep_moments else fresh.opt_state
    return fresh._replace(params=params, opt_state=opt_state), report


def check_same_vocabulary(config: Config, corpus: Corpus) -> None:
    """Raises UserError if the run of train.start_from makes other tokens of a text than the data's
    vocabulary, or has not the one that it began with.
    """
    other, what = RunFolder(config.train.start_from), f"train.start_from = {config.train.start_from!r} was trained"
    before = other.read_config()
    there, here = load_tokenizer(other, before), corpus.tokenizer
    if type(there) is not type(here):
        raise UserError(f"{what} on {before.data.tokenizer} tokens, not {config.data.tokenizer}; start from another run")
    if there.fingerprint != here.fingerprint:
        case = f" and --config.data.lowercase={there.lowercase}" if isinstance(there, WordPieceTokenizer) else ""
        raise UserError(
            f"{what} with another vocabulary than the data's; prepare the data with "
            f"--config.data.vocab_path={other.path / vocab_file(before)}{case}, or start from another run"
        )


def _take_moments(names: Sequence[str], saved: TrainState, fresh: TrainState) -> Any:
    """The fresh optimiser state with all that was saved of those parts, and the saved count."""
    # Without the place in the chain of updates, which other runs' clipping or scheme may move.
    saved_leaves = {jax.tree_util.keystr(path[1:]): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(saved.opt_state)}

    def take(path: tuple[Any, ...], leaf: Array) -> Array:
        part = next((name for name in parameter_path(path).split("/") if name in fresh.params), None)
        if part is not None and part not in names:
            return leaf
        name = jax.tree_util.keystr(path[1:])
        if name not in saved_leaves:  # a user's optimizer may keep what its fields say
            raise UserError(f"train.keep_moments = True, but the optimizer of the run before kept no {name}; allowed: False")
        old = saved_leaves[name]
        return old if old.shape == leaf.shape else _extend_table(old, leaf)  # of a position table

    return jax.tree_util.tree_map_with_path(take, fresh.opt_state)


def _take_parameters(names: Sequence[str], saved: Any, fresh: Any) -> Any:
    """The fresh parameters, replaced by the saved ones for those parts."""
    old, new = saved["embeddings"], fresh["embeddings"]
    positions = [name for name in old if name.endswith("position") and name in new and len(old[name]) < len(new[name])]
    embeddings = {"embeddings": old | {name: _extend_table(old[name], new[name]) for name in positions}}
    return fresh | {name: (saved | embeddings)[name] for name in names}


def _extend_table(saved: Array, fresh: Array) -> Array:
    """The saved table [S,D] with the further rows of the fresh one [T,D]."""
    extend = jax.jit(lambda old, new: jnp.concatenate([old, new[len(old) :]]), out_shardings=fresh.sharding)
    return extend(saved, fresh)
