"""States and compiled steps of tiny models. Each is made once and kept: most of a test's time would
be tracing and compiling.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import optax
from jax.sharding import AxisType, Mesh
from msgspec.structs import replace

from mhsh.config.schema import Config
from mhsh.models.build import build_model
from mhsh.training.optimizer import build_optimizer
from mhsh.training.sharding import MESH_AXES, put_batch
from mhsh.training.state import TrainState, abstract_state, boxed_state, create_state
from mhsh.training.step import compile_train_step, run_inputs
from tests.training.batches import random_batch

Shape = tuple[int, int, int]  # data, fsdp, tensor
ONE: Shape = (1, 1, 1)


def mesh_of(data: int, fsdp: int, tensor: int) -> Mesh:
    devices = jax.devices()[: data * fsdp * tensor]
    return jax.make_mesh((data, fsdp, tensor), MESH_AXES, axis_types=(AxisType.Auto,) * 3, devices=devices)


@functools.cache
def optimizer_of(config: Config, sgd: bool = False) -> optax.GradientTransformationExtraArgs:
    """The config's, or plain gradient descent: the parameters after a step show the gradients."""
    return optax.with_extra_args_support(optax.sgd(0.1)) if sgd else build_optimizer(config)


@functools.cache
def abstract_of(config: Config, shape: Shape = ONE, sgd: bool = False) -> TrainState:
    return abstract_state(config, optimizer_of(config, sgd), mesh_of(*shape))


def boxed_of(config: Config) -> TrainState:
    """The state's shapes, boxed with their logical axis names."""
    return boxed_state(config, build_optimizer(config))


def _starting_alike(config: Config) -> Config:
    """Without what does not matter to a fresh state, so that it is made once for many tests."""
    model = replace(config.model, hidden_dropout=0.0, attention_dropout=0.0, mlp_dropout=0.0, embedding_dropout=0.0)
    optimizer = replace(config.optimizer, learning_rate=1e-3)
    return replace(config, model=model, optimizer=optimizer, train=replace(config.train, accumulation_steps=1))


@functools.cache
def _created(config: Config, sgd: bool) -> Any:
    mesh = mesh_of(*ONE)
    batch = put_batch(random_batch(config, config.train.batch_size), mesh)
    return jax.device_get(create_state(config, build_model(config.model), optimizer_of(config, sgd), mesh, batch))


def fresh_state(config: Config, shape: Shape = ONE, *, sgd: bool = False) -> TrainState:
    """A state that may be donated. It is made on one device."""
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract_of(config, shape, sgd))
    return jax.device_put(_created(_starting_alike(config), sgd), shardings)


@functools.cache
def train_step_of(config: Config, shape: Shape = ONE, sgd: bool = False) -> functools.partial[Any]:
    """The compiled step, a function of the state and the batch."""
    model, optimizer, mesh = build_model(config.model), optimizer_of(config, sgd), mesh_of(*shape)
    return functools.partial(
        compile_train_step(config, model, optimizer, mesh, abstract_of(config, shape, sgd)), run_inputs(config, mesh)
    )
