"""One training step and one evaluation step: pure functions, compiled for a mesh."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, UInt32
from msgspec.structs import replace

from mhsh.config.entries import UPDATE_RULES
from mhsh.config.schema import Config
from mhsh.models.build import Model, forward
from mhsh.models.devices import current_platform, shard_index
from mhsh.models.losses import WeightedSum, WeightedSums, compute_metrics, loss_weights, total_loss
from mhsh.models.types import Batch
from mhsh.training.checkpoints.verify import checksum
from mhsh.training.optimizer import Rates, global_norm, rate_of_step, rates
from mhsh.training.sharding import axis_rules, batch_sharding, put_replicated, replicated_sharding, shapes_of, shardings_of
from mhsh.training.shards import manual_specs, map_shards, psum_batch, psum_gradients
from mhsh.training.state import TrainState, example_batch


class StepMetrics(NamedTuple):
    """The metrics that a step returns beside the new state."""

    sums: WeightedSums  # (sum, weight) pairs
    is_finite: Bool[Array, ""]  # False: the loss or a gradient was not, and parameters and moments stayed the same
    batch: UInt32[Array, 2]  # checksum of the global batch


class RunInputs(NamedTuple):
    """The inputs of a compiled step that are equal in all steps of a run. Runs that differ in their
    seed and their rates alone, as most of a sweep do, share one compiled program.
    """

    seed: UInt32[Array, ""]  # train.seed
    rates: Rates


def run_inputs(config: Config, mesh: Mesh) -> RunInputs:
    """The inputs of a config's run, on every device of the mesh."""
    return jax.tree.map(functools.partial(put_replicated, mesh=mesh), _inputs(config))


def _inputs(config: Config) -> RunInputs:
    return RunInputs(jnp.uint32(config.train.seed), jax.tree.map(jnp.float32, rates(config.optimizer, config.train)))


def shared_program(config: Config) -> Config:
    """The config without what is an input of its steps or of its first state: configs for which
    this is the same share a compiled program.
    """
    optimizer, train = config.optimizer, replace(config.train, seed=0, start_from="")
    if not UPDATE_RULES.files(optimizer.name):  # a user's may be built of its rates
        optimizer = replace(optimizer, learning_rate=1.0, end_learning_rate=0.0, warmup_steps=0)
    return replace(config, data=replace(config.data, seed=0), optimizer=optimizer, train=train)


def train_step(
    run: RunInputs,
    state: TrainState,
    batch: Batch,
    *,
    config: Config,
    model: Model,
    optimizer: optax.GradientTransformationExtraArgs,
) -> tuple[TrainState, StepMetrics]:
    """The state after one update, and the metrics of the step.

    The batch is split into `train.accumulation_steps` micro-batches. Each loss is divided by the
    weight of the whole batch, so that the split changes only the memory. Dropout is keyed by
    (train.seed, step, micro-batch). An update that is not finite is skipped; the step still
    counts, because its batch is used up.
    """
    step_key = jax.random.fold_in(jax.random.key(run.seed), state.step)
    compute = functools.partial(_gradients, config=config, model=model)
    out_specs = manual_specs(config.model), PartitionSpec()
    compute = map_shards(compute, config.model, out_specs, config.train.gradient_dtype)
    gradients, (sums, loss, batch_sums) = compute(state.params, batch, step_key)

    with jax.named_scope("optimizer"):
        grad_norm = global_norm(gradients)
        is_finite = jnp.isfinite(grad_norm) & jnp.isfinite(loss)
        # By the step alone, also after skipped updates.
        rate = rate_of_step(run.rates, config.optimizer.schedule, state.step)

        def update() -> tuple[Any, Any]:
            updates, opt_state = optimizer.update(gradients, state.opt_state, state.params, learning_rate=rate, grad_norm=grad_norm)
            return optax.apply_updates(state.params, updates), opt_state

        params, opt_state = _select_finite(is_finite, update, (state.params, state.opt_state))
    sums |= {name: WeightedSum(figure, jnp.ones(())) for name, figure in {"grad_norm": grad_norm, "learning_rate": rate}.items()}
    return TrainState(params, opt_state, state.step + 1), StepMetrics(sums, is_finite, batch_sums)


def _select_finite(is_finite: Bool[Array, ""], update: Callable[[], Any], before: Any) -> Any:
    """The result of `update`; or `before`, where the loss or a gradient is not finite."""
    if current_platform() == "cpu":
        # XLA's CPU backend would copy the moments before it selects: 7 % of a step of 12l12h.
        return jax.lax.cond(is_finite, update, lambda: before)
    return jax.tree.map(functools.partial(jnp.where, is_finite), update(), before)


def _gradients(
    params: Any, batch: Batch, step_key: Array, *, config: Config, model: Model
) -> tuple[Any, tuple[WeightedSums, Float[Array, ""], UInt32[Array, 2]]]:
    """The gradients of the loss of the whole batch, sharded as the parameters; and the metrics of
    the batch, that loss, and its checksum. `params` are whole; `batch` is this device's part (see
    `map_shards`).
    """
    weights = psum_batch(loss_weights(batch))

    def loss(params: Any, micro_batch: Batch, key: Array) -> tuple[Float[Array, ""], WeightedSums]:
        outputs = forward(model, params, micro_batch, key)
        with jax.named_scope("loss"):
            sums = compute_metrics(outputs, micro_batch, config.train.label_smoothing)
            return total_loss(sums, weights), sums

    def micro_batch_gradients(index: int | Array, micro_batch: Batch) -> tuple[Any, WeightedSums]:
        key = jax.random.fold_in(step_key, index)
        (_, sums), gradients = jax.value_and_grad(loss, has_aux=True)(params, micro_batch, key)
        return optax.tree.cast(gradients, jnp.float32), sums

    def accumulate(sum_before: tuple[Any, WeightedSums], part: tuple[Array, Batch]) -> tuple[tuple[Any, WeightedSums], None]:
        return jax.tree.map(jnp.add, sum_before, micro_batch_gradients(*part)), None

    count = config.train.accumulation_steps
    parts = micro_batches(batch, count)
    # The sum does not start from zeros: adding to them is a pass over all parameters, which
    # is slow on a CPU.
    first = micro_batch_gradients(0, {key: rows[0] for key, rows in parts.items()})
    others = (jnp.arange(1, count), {key: rows[1:] for key, rows in parts.items()})
    (gradients, sums), _ = jax.lax.scan(accumulate, first, others) if count > 1 else (first, None)
    sums, tokens = psum_batch((sums, num_non_padding(batch)))
    gradients = psum_gradients(gradients, config.model, config.train.gradient_dtype)
    metrics = sums | {"tokens": WeightedSum(tokens, jnp.ones(()))}
    return gradients, (metrics, total_loss(sums, weights), psum_batch(batch_checksum(batch)))


def num_non_padding(batch: Batch) -> Float[Array, ""]:
    """The number of tokens that are not padding; in translation, of both sides."""
    sides = [batch[key] for key in ("inputs_segmentation", "targets_segmentation") if key in batch]
    return sum((jnp.sum(side > 0, dtype=jnp.float32) for side in sides), start=jnp.zeros(()))


def micro_batches(batch: Batch, count: int) -> Batch:
    """[B, ...] -> [count, B / count, ...]. Rows are dealt out in turn, so that each device keeps
    its rows.
    """
    return {key: rows.reshape(-1, count, *rows.shape[1:]).swapaxes(0, 1) for key, rows in batch.items()}


def batch_checksum(batch: Batch) -> UInt32[Array, 2]:
    """One checksum of all arrays of a batch; those of its shards add up to it."""
    parts = []
    for number, key in enumerate(sorted(batch)):
        rows = jnp.asarray(batch[key])
        parts.append(checksum(rows, shard_index() * jnp.uint32(len(rows))) * jnp.uint32(2 * number + 1))
    return jnp.sum(jnp.stack(parts), axis=0, dtype=jnp.uint32)


def eval_step(params: Any, batch: Batch, *, model: Model, count: int = 1) -> WeightedSums:
    """The metrics of one batch, without dropout, in `count` micro-batches."""
    return predict_step(params, batch, model=model, count=count)[0]


def predict_step(params: Any, batch: Batch, *, model: Model, count: int = 1) -> tuple[WeightedSums, Float[Array, "B ..."]]:
    """The metrics of `eval_step`, and the logits of every row."""

    def predict(rows: Batch) -> tuple[WeightedSums, Array]:
        outputs = forward(model, params, rows, None)
        return compute_metrics(outputs, rows), outputs.logits

    sums, logits = jax.lax.map(predict, micro_batches(batch, count))
    sums = psum_batch(jax.tree.map(functools.partial(jnp.sum, axis=0), sums))
    return sums, logits.swapaxes(0, 1).reshape(-1, *logits.shape[2:])  # in the order of the batch


def compile_train_step(
    config: Config,
    model: Model,
    optimizer: optax.GradientTransformationExtraArgs,
    mesh: Mesh,
    state: TrainState,
    runs: int = 1,
) -> jax.stages.Compiled:
    """The train step, compiled for this mesh with explicit shardings: a function of `run_inputs`,
    the state and the batch. It donates the old state. `state` may be abstract (shapes, dtypes and
    shardings). The step of several `runs` is mapped over a first axis of all of these, on a mesh of
    one device.
    """
    batch = example_batch(config, config.train.batch_size)
    step = functools.partial(train_step, config=config, model=model, optimizer=optimizer)
    inputs = jax.eval_shape(functools.partial(_inputs, config))  # the mesh may have no real devices
    arguments: tuple[Any, ...] = inputs, shapes_of(state), shapes_of(batch)
    shardings, rows = shardings_of(state), batch_sharding(mesh)
    if runs > 1:

        def add_run_axis(array: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((runs, *array.shape), array.dtype)

        step, shardings, rows = jax.vmap(step), replicated_sharding(mesh), replicated_sharding(mesh)
        arguments = jax.tree.map(add_run_axis, arguments)
    jitted = jax.jit(
        step,
        in_shardings=(replicated_sharding(mesh), shardings, dict.fromkeys(batch, rows)),
        out_shardings=(shardings, replicated_sharding(mesh)),
        donate_argnums=1,
    )
    with jax.set_mesh(mesh), nn.logical_axis_rules(axis_rules(config.model)):
        return jitted.lower(*arguments).compile()


def compile_eval_step(
    step: Callable[..., Any], out_specs: Any, config: Config, model: Model, mesh: Mesh, params: Any
) -> jax.stages.Compiled:
    """`eval_step` or `predict_step`, compiled for this mesh. For `out_specs` see `map_shards`;
    `params` may be abstract.
    """
    batch = example_batch(config, config.train.batch_size)
    jitted = jax.jit(
        map_shards(functools.partial(step, model=model), config.model, out_specs),
        in_shardings=(shardings_of(params), dict.fromkeys(batch, batch_sharding(mesh))),
        out_shardings=replicated_sharding(mesh),
    )
    with jax.set_mesh(mesh), nn.logical_axis_rules(axis_rules(config.model)):
        return jitted.lower(shapes_of(params), shapes_of(batch)).compile()
