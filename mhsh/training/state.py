"""The training state: its shapes, its sharding, and its initial values."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax.sharding import Mesh
from jaxtyping import Array, Int32

from mhsh.config.schema import Config, DataConfig, ModelConfig, TranslationDataConfig
from mhsh.models.admin import is_profiled, profile_omega, set_omega
from mhsh.models.build import Model, boxed_parameters
from mhsh.models.parameters import parameter_path
from mhsh.models.types import Batch
from mhsh.training.sharding import axis_rules, batch_sharding, named_shardings, replicate_parameters, shardings_of


class TrainState(NamedTuple):
    """Everything that a step changes. `step` counts the batches used."""

    params: Any
    opt_state: Any
    step: Int32[Array, ""]


def example_batch(config: Config, rows: int) -> dict[str, np.ndarray]:
    """A batch of zeros with the shapes and dtypes of a real one, for tracing and compiling."""
    length = config.data.sequence_length
    keys = ["inputs", "inputs_position", "inputs_segmentation"]
    if config.model.num_token_types:
        keys.append("token_types")
    if isinstance(config.data, TranslationDataConfig):
        keys += ["decoder_inputs", "targets_position", "targets_segmentation"]
    batch: dict[str, np.ndarray] = {key: np.zeros((rows, length), np.int32) for key in keys}
    targets = (rows, length)
    if isinstance(config.data, DataConfig) and config.model.objective == "mlm":
        targets = (rows, config.data.max_predictions)
        batch["targets_position"] = np.zeros(targets, np.int32)
    elif config.model.objective == "classification":
        targets = (rows,)
    elif config.model.objective == "span":
        targets = (rows, 2)
    batch["targets"] = np.zeros(targets, np.float32 if config.model.num_classes == 1 else np.int32)
    batch["weights"] = np.zeros(targets, np.float32)
    if config.model.next_sentence:
        batch["next_sentence"] = np.zeros((rows,), np.int32)
        batch["row_weights"] = np.zeros((rows,), np.float32)
    return batch


def boxed_state(config: Config, optimizer: optax.GradientTransformation) -> TrainState:
    """The state's shapes and dtypes, boxed with their logical axis names. Allocates nothing.

    What an optimizer keeps in another shape than the parameter's, such as the mean of a row, has no
    axis names: every device has it.
    """
    params = boxed_parameters(config.model)
    shapes = jax.eval_shape(functools.partial(_start, optimizer), nn.unbox(params))
    leaves = jax.tree_util.tree_leaves_with_path(params, is_leaf=lambda node: isinstance(node, nn.meta.AxisMetadata))
    boxes = {parameter_path(path): box for path, box in leaves if isinstance(box, nn.meta.AxisMetadata)}

    def box(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> Any:
        names = parameter_path(path).split("/")  # of an optimizer's own, then those of the parameter
        tails = ("/".join(names[start:]) for start in range(len(names)))
        own = next((boxes[tail] for tail in tails if tail in boxes), None)
        return leaf if own is None or nn.unbox(own).shape != leaf.shape else own.replace_boxed(leaf)

    return jax.tree_util.tree_map_with_path(box, shapes)


def abstract_state(config: Config, optimizer: optax.GradientTransformation, mesh: Mesh) -> TrainState:
    """The shapes, dtypes and shardings of the state: a restore asks for them."""
    return unbox_state(boxed_state(config, optimizer), mesh, config.model)


def unbox_state(boxed: TrainState, mesh: Mesh, model: ModelConfig) -> TrainState:
    """A state's shapes, dtypes and shardings from those that are boxed with logical axis names."""
    shardings = named_shardings(boxed, mesh, model)
    return jax.tree.map(lambda s, sharding: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding), nn.unbox(boxed), shardings)


def create_state(
    config: Config, model: Model, optimizer: optax.GradientTransformation, mesh: Mesh, first_batch: Batch
) -> TrainState:
    """A fresh state, made sharded as it will be used. For profiled Admin, omega is measured on
    `first_batch`.
    """
    shardings = shardings_of(abstract_state(config, optimizer, mesh))

    def fresh(seed: Array) -> TrainState:
        return _start(optimizer, nn.unbox(model.init(jax.random.key(seed), example_batch(config, 1), None)["params"]))

    with jax.set_mesh(mesh), nn.logical_axis_rules(axis_rules(config.model)):
        # The seed is an input, so that the runs of a sweep share the compiled program.
        state = jax.jit(fresh, out_shardings=shardings)(np.uint32(config.train.seed))
        # The parameters of another run include omega.
        if is_profiled(config.model) and not config.train.start_from:
            profile = jax.jit(
                lambda params, batch: set_omega(
                    params, profile_omega(config.model, replicate_parameters(params, mesh, config.model), batch)
                ),
                in_shardings=(shardings.params, dict.fromkeys(first_batch, batch_sharding(mesh))),
                out_shardings=shardings.params,
            )
            state = state._replace(params=profile(state.params, dict(first_batch)))
    return state


def _start(optimizer: optax.GradientTransformation, params: Any) -> TrainState:
    return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32))
