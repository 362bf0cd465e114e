"""The activations that a step saves, counted in the step as it is traced."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
from flax import linen as nn
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh
from msgspec.structs import replace

from mhsh.config.schema import Config, MeshConfig, OptimizerConfig, TrainConfig
from mhsh.models.build import boxed_parameters, build_model, forward
from mhsh.models.losses import compute_metrics, loss_weights, total_loss
from mhsh.models.transformer import GROUP_POLICIES, layer_groups
from mhsh.models.types import SUBLAYERS, encoder_stack
from mhsh.training.state import example_batch

# What is traced on it is what a GPU computes: CPUs choose no policy by memory.
_A_GPU = AbstractMesh((1,), ("data",), abstract_device=AbstractDevice(device_kind="", num_cores=None, platform="gpu"))


def replace_policy(config: Config, policy: str, **fields: Any) -> Config:
    """The config with this remat policy, and with other `fields` of the model."""
    return replace(config, model=replace(config.model, remat_policy=policy, **fields))


def array_bytes(array: Any) -> int:
    """Bytes of an array, which may be abstract."""
    return math.prod(array.shape) * array.dtype.itemsize


def saved_activations(config: Config, rows: int) -> int:
    """Bytes saved for the backward pass of `rows` rows, without parameters and inputs.

    These are the residuals of `jax.vjp`; XLA may fuse some of them away.
    """
    train = TrainConfig(label_smoothing=config.train.label_smoothing)
    data = replace(config.data, source="", vocab_path="", seed=0)
    return _saved_activations(Config(config.model, data, OptimizerConfig(), train, MeshConfig()), rows)


@functools.cache  # tracing takes a second; most configs differ in what does not matter here
def _saved_activations(config: Config, rows: int) -> int:
    model = build_model(config.model)
    params = nn.unbox(boxed_parameters(config.model))
    # With `groups`, layer parameters are read in another shape; that is not a copy.
    stacked = jax.tree.leaves([params.get(stack, {}).get("layers", {}) for stack in SUBLAYERS])
    views = {
        (*layer_groups(config.model, leaf.shape[0]), *leaf.shape[1:])
        for leaf in stacked
        if config.model.remat_policy in GROUP_POLICIES
    }
    saved = 0

    def trace(params: Any, batch: Any, key: jax.Array) -> None:
        nonlocal saved

        def loss(params: Any) -> jax.Array:
            sums = compute_metrics(forward(model, params, batch, key), batch, config.train.label_smoothing)
            return total_loss(sums, loss_weights(batch))

        _, backward = jax.vjp(loss, params)
        known = {id(leaf) for leaf in jax.tree.leaves((params, batch))}
        residuals = {id(leaf): leaf for leaf in jax.tree.leaves(backward) if id(leaf) not in known and leaf.shape not in views}
        saved = sum(array_bytes(leaf) for leaf in residuals.values())

    with use_abstract_mesh(_A_GPU):
        jax.eval_shape(trace, params, example_batch(config, rows), jax.eval_shape(lambda: jax.random.key(0)))
    return saved


def recomputed_activations(config: Config, rows: int) -> int:
    """Bytes that the backward pass of `rows` rows recomputes at once: one layer, and with `groups`
    the streams within a group of the deepest stack.
    """
    model = config.model
    if model.remat_policy in ("auto", "none"):
        return 0

    def layer_bytes(count: int) -> int:
        layers = {"num_layers": count, "num_decoder_layers": count if model.num_decoder_layers else 0, "loops": 1}
        return saved_activations(replace_policy(config, "none", **layers), rows)

    layer = layer_bytes(2) - layer_bytes(1)
    if model.remat_policy not in GROUP_POLICIES:
        return layer
    return layer + layer_groups(model, max(model.num_layers, model.num_decoder_layers))[1] * _stream_bytes(config, rows)


def _stream_bytes(config: Config, rows: int) -> int:
    """The bytes that one layer hands to the next."""
    model, length = config.model, config.data.sequence_length
    x = jax.ShapeDtypeStruct((rows, length, model.embed_dim), model.residual_dtype)
    start = functools.partial(build_model(model).residual.start, model, encoder_stack(model))
    return sum(map(array_bytes, jax.tree.leaves(jax.eval_shape(start, x, jax.ShapeDtypeStruct((rows, length), bool)))))
