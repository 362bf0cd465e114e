"""The memory of a device in training: what a step needs by its shapes alone, activations too, and
the rematerialisation policy that fits (`model.remat_policy = auto`).
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from flax import linen as nn
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh
from msgspec.structs import replace

from mhsh.config.schema import Config, MeshConfig, ModelConfig, OptimizerConfig, TrainConfig
from mhsh.models.build import boxed_parameters, build_model, forward
from mhsh.models.costs import parameter_counts
from mhsh.models.devices import BATCH_AXES
from mhsh.models.losses import compute_metrics, loss_weights, total_loss
from mhsh.models.transformer import GROUP_POLICIES, layer_groups
from mhsh.models.types import SUBLAYERS, encoder_stack
from mhsh.training.sharding import DATA_AXIS, FSDP_AXIS, division_problems, partition_specs
from mhsh.training.shards import cast_kernels
from mhsh.training.state import TrainState, example_batch

# From the fastest to the one that needs least memory, by platform. Elementwise operations are
# recomputed faster than their results are loaded: measured on a CPU, by the compiler's count on
# TPUs and GPUs (docs/performance.md). Where layers are wide a CPU loads products faster than it
# recomputes them. On a GPU each array that is saved is also an operation more.
CANDIDATES = {
    "cpu": ("dots", "projections", "full", "groups"),
    "tpu": ("projections", "full", "groups"),
    "gpu": ("projections", "full", "groups"),
}

# The share of a device's memory that a footprint may take. The rest is for scratch memory, the
# program and alignment.
USABLE_SHARE = 0.8

# What is traced on it is what a GPU computes: CPUs choose no policy by memory.
_A_GPU = AbstractMesh((1,), ("data",), abstract_device=AbstractDevice(device_kind="", num_cores=None, platform="gpu"))


class Footprint(NamedTuple):
    """Bytes on one device."""

    parameters: int
    gathered: int  # where fsdp shards them: whole parameters that a step has at once
    gradients: int
    optimizer: int
    activations: int  # saved for the backward pass of one micro-batch under the remat policy
    recomputed: int  # recomputed in the backward pass and in memory at once

    @property
    def total(self) -> int:
        """The sum, without the scratch memory of a compiled step."""
        return sum(self)

    def __str__(self) -> str:
        parts = {
            "weights": self.parameters + self.gathered,
            "gradients": self.gradients,
            "moments": self.optimizer,
            "activations": self.activations + self.recomputed,
        }
        return ", ".join(f"{name} {size / 2**30:,.1f}" for name, size in parts.items() if size)


def footprint(config: Config, boxed: TrainState, mesh_shape: Mapping[str, int]) -> Footprint:
    """The footprint of a state that is boxed with its logical axis names, on a mesh of that shape
    (devices by axis). Activations are not divided by the `tensor` axis.
    """
    rows = config.train.batch_size // config.train.accumulation_steps // math.prod(mesh_shape[axis] for axis in BATCH_AXES)
    saved, recomputed = saved_activations(config, rows), recomputed_activations(config, rows)
    return state_footprint(config.model, boxed, mesh_shape)._replace(activations=saved, recomputed=recomputed)


def state_footprint(model: ModelConfig, boxed: TrainState, mesh_shape: Mapping[str, int]) -> Footprint:
    """The footprint without activations."""
    specs, parameters, moments = _state_bytes(model, boxed, mesh_shape)
    gathered, gradients = 0, parameters
    if mesh_shape[FSDP_AXIS] > 1:
        used = jax.eval_shape(functools.partial(cast_kernels, model), nn.unbox(boxed.params))
        whole_bytes = functools.partial(_sharded_bytes, mesh_shape={**mesh_shape, FSDP_AXIS: 1})
        gathered = gradients = whole_bytes(used, specs.params)
        if model.remat_policy == "gathered_groups":
            stacks = {name: whole_bytes(used[name]["layers"], specs.params[name]["layers"]) for name in SUBLAYERS if name in used}
            depths = {"encoder": model.num_layers, "decoder": model.num_decoder_layers}
            group = max(size // layer_groups(model, depths[name])[0] for name, size in stacks.items())
            gathered += 2 * group - sum(stacks.values())  # of one group the next is gathered meanwhile
            gradients = parameters + group
    return Footprint(parameters, gathered, gradients, moments, 0, 0)


def update_bytes(model: ModelConfig, boxed: TrainState, mesh_shape: Mapping[str, int]) -> int:
    """Bytes that the update of a step moves on one device: it reads and writes parameters and
    moments, and reads gradients.
    """
    _, parameters, moments = _state_bytes(model, boxed, mesh_shape)
    return 2 * (parameters + moments) + parameters


def describe_shortage(config: Config, boxed: TrainState, mesh_shape: Mapping[str, int], device_bytes: int, platform: str) -> str:
    """The parts of the memory of a config that needs too much, and the first change with which it
    fits the same devices.
    """
    needed, count = footprint(config, boxed, mesh_shape), parameter_counts(config.model)["total"]
    sizes = f"{needed.total / 2**30:,.1f} GiB of the {device_bytes / 2**30:,.1f} GiB of a device ({needed})"
    return f"out of memory: {count:,} parameters need {sizes}; {_leaner_fields(config, boxed, mesh_shape, device_bytes, platform)}"


def _leaner_fields(config: Config, boxed: TrainState, mesh_shape: Mapping[str, int], device_bytes: int, platform: str) -> str:
    devices = mesh_shape[DATA_AXIS] * mesh_shape[FSDP_AXIS]
    sharded = {**mesh_shape, DATA_AXIS: 1, FSDP_AXIS: devices}
    shapes = [mesh_shape] if any(division_problems(config.model, config.train, sharded)) else [mesh_shape, sharded]
    most = config.train.batch_size // devices  # micro-batches, each of a row a device
    for steps, shape in itertools.product((config.train.accumulation_steps, most), shapes):
        for policy in candidates(platform, shape)[-2:]:
            cut = replace(replace_policy(config, policy), train=replace(config.train, accumulation_steps=steps))
            if footprint(cut, boxed, shape).total <= device_bytes:
                changes = {
                    "model.remat_policy": (config.model.remat_policy, policy),
                    "mesh.data": (mesh_shape[DATA_AXIS], shape[DATA_AXIS]),
                    "mesh.fsdp": (mesh_shape[FSDP_AXIS], shape[FSDP_AXIS]),
                    "train.accumulation_steps": (config.train.accumulation_steps, steps),
                }
                return "take " + " ".join(f"--config.{name}={new}" for name, (old, new) in changes.items() if new != old)
    return "take more devices, or a smaller model"


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


class RematChoice(NamedTuple):
    """A policy, and the memory that it was chosen by."""

    policy: str
    needed_bytes: int  # per device, by the footprint
    device_bytes: int

    def __str__(self) -> str:
        needed, available = (f"{size / 2**30:.2f} GiB" for size in (self.needed_bytes, self.device_bytes))
        return f"remat_policy {self.policy}: needs about {needed} of {available} a device"


def candidates(platform: str, mesh_shape: Mapping[str, int]) -> tuple[str, ...]:
    """The policies that `auto` tries, in order: at last, where the weights are sharded, each group
    of layers is gathered by itself.
    """
    return CANDIDATES[platform] + (("gathered_groups",) if mesh_shape[FSDP_AXIS] > 1 else ())


def choose_remat(config: Config, boxed: TrainState, mesh_shape: Mapping[str, int], device_bytes: int, platform: str) -> RematChoice:
    """The policy that the config names; for `auto` the first of the candidates whose footprint
    fits. If none does it is the last, which may still fit.
    """

    def weigh(policy: str) -> RematChoice:
        return RematChoice(policy, footprint(replace_policy(config, policy), boxed, mesh_shape).total, device_bytes)

    named = config.model.remat_policy
    *preferred, last = candidates(platform, mesh_shape) if named == "auto" else (named,)
    fitting = (choice for choice in map(weigh, preferred) if choice.needed_bytes <= USABLE_SHARE * device_bytes)
    return next(fitting, None) or weigh(last)


def device_bytes(device: Any) -> int:
    """Memory of a device. CPUs and simulated devices share the machine's memory."""
    limit = (device.memory_stats() or {}).get("bytes_limit") if device.platform != "cpu" else None
    if limit:
        return int(limit)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // jax.local_device_count()


def _state_bytes(model: ModelConfig, boxed: TrainState, mesh_shape: Mapping[str, int]) -> tuple[TrainState, int, int]:
    """The state's PartitionSpecs, and the bytes of parameters and of moments on a device."""
    specs = partition_specs(boxed, mesh_shape, model)
    parameters = _sharded_bytes(boxed.params, specs.params, mesh_shape)
    return specs, parameters, _sharded_bytes(boxed.opt_state, specs.opt_state, mesh_shape)


def _sharded_bytes(tree: Any, specs: Any, mesh_shape: Mapping[str, int]) -> int:
    shards = jax.tree.map(lambda spec: math.prod(mesh_shape[axis] for axis in jax.tree.leaves(tuple(spec))), specs)
    return sum(jax.tree.leaves(jax.tree.map(lambda leaf, count: array_bytes(leaf) // count, nn.unbox(tree), shards)))
