"""AdamW, RAdam and LAMB with warm-up and decay, built from optax, and the table of parameters that
have weight decay.
"""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import optax

from mhsh.config.schema import Config, OptimizerConfig, TrainConfig
from mhsh.models.residual import depth_multiple

# The first matching row decides, on paths such as encoder/layers/attention/query_kernel. A
# parameter without a row is an error.
DECAYED_PARAMETERS: tuple[tuple[str, bool], ...] = (
    (r"(^|/)(omega|alpha)$", False),
    (r"norm/(scale|bias)$", False),
    (r"bias$", False),
    (r"kernel$", True),
    (r"^embeddings/(token|position|token_type|source_position|target_position)$", True),
)

# Parameters below this name are stacked over the layers on axis 0.
STACKED = "layers"


def parameter_path(path: tuple[Any, ...]) -> str:
    """encoder/layers/... for a key path of jax.tree_util, without the boxes around parameters."""
    return "/".join(str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey))


def decay_mask(params: Any) -> Any:
    """A tree of bools: True where weight decay (and LAMB's trust ratio) applies.

    Raises:
      KeyError: a parameter that DECAYED_PARAMETERS does not cover.
    """

    def decays(path: tuple[Any, ...], _: Any) -> bool:
        name = parameter_path(path)
        for pattern, decayed in DECAYED_PARAMETERS:
            if re.search(pattern, name):
                return decayed
        raise KeyError(f"no row of DECAYED_PARAMETERS covers the parameter {name}; add one")

    return jax.tree_util.tree_map_with_path(decays, params)


def decayed_count(params: Any) -> int:
    """The number of scalar parameters with weight decay."""
    sizes = jax.tree.map(lambda leaf, decayed: leaf.size if decayed else 0, params, decay_mask(params))
    return sum(jax.tree.leaves(sizes))


def learning_rate(optimizer: OptimizerConfig, train: TrainConfig) -> optax.Schedule:
    """Step -> learning rate. It rises linearly from 0 during the warm-up. Then it falls linearly to
    optimizer.end_learning_rate after the last step, stays constant, or falls with the inverse
    square root of the step (Vaswani et al. 2017, section 5.3, but from optimizer.learning_rate).
    """
    peak, warmup = optimizer.learning_rate, optimizer.warmup_steps
    if optimizer.schedule == "inverse_sqrt":
        return lambda step: peak * jnp.minimum((step + 1) / warmup, jnp.sqrt(warmup / (step + 1)))
    end = {"linear": optimizer.end_learning_rate, "constant": peak}[optimizer.schedule]
    # Step k (from 0) uses the rate of k + 1, and the decay ends one step after the last: no update
    # has a rate of zero.
    schedule = optax.join_schedules(
        [optax.linear_schedule(0.0, peak, warmup), optax.linear_schedule(peak, end, train.num_steps - warmup + 1)], [warmup]
    )
    return lambda step: schedule(step + 1)


def build_optimizer(config: Config) -> optax.GradientTransformationExtraArgs:
    """Clipping by global norm, Adam moments (for radam rectified: Liu et al. 2020, arXiv
    1908.03265), decoupled weight decay, for lamb the trust ratio, then the learning rate.

    With CompleteP, the layers' epsilon is multiplied by m^-a and their rate by m^(a-1), where m =
    L / L0 and a is model.depth_exponent (arXiv 2505.01618, table 1). A smaller epsilon is the same
    as a larger gradient.

    `update` takes the keyword `step`: the rate depends on it alone, also after skipped steps.
    """
    optimizer, model = config.optimizer, config.model
    moments = optax.scale_by_radam if optimizer.name == "radam" else optax.scale_by_adam
    chain = [clip_by_global_norm(optimizer.clip_norm)] if optimizer.clip_norm else []
    if model.residual == "completep":
        chain.append(scale_layers(depth_multiple(model) ** model.depth_exponent))
    chain.append(moments(optimizer.beta1, optimizer.beta2, optimizer.epsilon))
    chain.append(optax.add_decayed_weights(optimizer.weight_decay, mask=decay_mask))
    if optimizer.name == "lamb":
        chain.append(optax.masked(scale_by_layer_trust_ratio(), decay_mask))
    if model.residual == "completep":
        chain.append(scale_layers(depth_multiple(model) ** (model.depth_exponent - 1)))
    return optax.chain(*chain, scale_by_step_rate(learning_rate(optimizer, config.train)))


def global_norm(tree: Any) -> jax.Array:
    """The Euclidean norm of all leaves together, in fp32.

    It is computed by dot products. XLA would share a square with Adam's second moment, and its CPU
    backend would then write the square to memory.
    """
    leaves = (jnp.atleast_1d(leaf.astype(jnp.float32)) for leaf in jax.tree.leaves(tree))
    return jnp.sqrt(sum(jnp.sum(jnp.einsum("...c,...c->...", leaf, leaf, precision="highest")) for leaf in leaves))


def clip_by_global_norm(max_norm: float) -> optax.GradientTransformation:
    """Scales all gradients down to `max_norm` if their norm is larger (Pascanu et al. 2013).

    It multiplies by one factor. optax's own selects and divides element by element, which writes
    all gradients to memory once more.
    """

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        factor = max_norm / jnp.maximum(global_norm(updates), max_norm)
        return jax.tree.map(lambda leaf: factor.astype(leaf.dtype) * leaf, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def scale_layers(factor: float) -> optax.GradientTransformation:
    """Multiplies the updates of all parameters that are stacked over layers."""

    def scale(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        return factor * leaf if STACKED in parameter_path(path).split("/") else leaf

    return optax.stateless(lambda updates, params: jax.tree_util.tree_map_with_path(scale, updates))


def scale_by_step_rate(schedule: optax.Schedule) -> optax.GradientTransformationExtraArgs:
    """Multiplies by minus the schedule's rate at the keyword argument `step`; keeps no count."""

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        del params
        rate = -jnp.asarray(schedule(extra["step"]), jnp.float32)
        return jax.tree.map(lambda leaf: rate * leaf, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def scale_by_layer_trust_ratio() -> optax.GradientTransformation:
    """LAMB's |w| / |update| (You et al. 2020, arXiv 1904.00962), with one ratio for each layer.

    A stacked parameter holds all layers in one array; one norm of it would couple the layers.
    """
    plain = optax.scale_by_trust_ratio()

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        def scale(path: tuple[Any, ...], update: jax.Array, param: jax.Array) -> Any:
            def one(u: jax.Array, p: jax.Array) -> Any:
                return plain.update(u, state, p)[0]

            return jax.vmap(one)(update, param) if STACKED in parameter_path(path).split("/") else one(update, param)

        return jax.tree_util.tree_map_with_path(scale, updates, params), state

    return optax.GradientTransformation(plain.init, update)
