"""The optimizer of a run, built from optax: AdamW, LAMB, RAdam, or another entry, between clipping
and weight decay; the schedule; and which parameters have weight decay.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct

from mhsh.config.entries import SCHEMES, UPDATE_RULES, add_optimizer, check_entries
from mhsh.config.schema import Config, OptimizerConfig, TrainConfig
from mhsh.errors import UserError
from mhsh.models.parameters import STACKED, has_decay, parameter_path

Scalar = float | jax.Array


def decay_mask(residual: str, params: Any) -> Any:
    """A tree of bools: True where weight decay (and LAMB's trust ratio) applies to the parameters
    of a model with this residual scheme. Raises UserError where neither DECAYED_PARAMETERS nor the
    scheme decides about a parameter.
    """
    scheme = SCHEMES[residual].residual

    def decays(path: tuple[Any, ...], _: Any) -> bool:
        name = parameter_path(path)
        if (decayed := has_decay(name, scheme.decayed)) is not None:
            return decayed
        raise UserError(
            f"nothing says whether the parameter {name} has weight decay; where it is one of {scheme.__name__}, add "
            f'decayed = {{"{name.rpartition("/")[2]}": False}} to the class, or True'
        )

    return jax.tree_util.tree_map_with_path(decays, params)


def count_decayed(residual: str, params: Any) -> int:
    """The number of scalar parameters with weight decay."""
    sizes = jax.tree.map(lambda leaf, decayed: leaf.size if decayed else 0, params, decay_mask(residual, params))
    return sum(jax.tree.leaves(sizes))


class Rates(NamedTuple):
    """The numbers of a schedule: of Python, or inputs of a compiled step, which runs that differ in
    them share.
    """

    peak: Scalar  # optimizer.learning_rate
    end: Scalar  # optimizer.end_learning_rate
    warmup: Scalar  # steps
    falls_after: Scalar  # the last step before the rate falls
    steps_of_fall: Scalar


def rates(optimizer: OptimizerConfig, train: TrainConfig) -> Rates:
    """The numbers of a config's schedule."""
    falls_after = train.num_steps - optimizer.decay_steps if optimizer.schedule == "wsd" else optimizer.warmup_steps
    fall = train.num_steps - falls_after
    return Rates(optimizer.learning_rate, optimizer.end_learning_rate, optimizer.warmup_steps, falls_after, fall)


def learning_rate(optimizer: OptimizerConfig, train: TrainConfig) -> optax.Schedule:
    """Step -> learning rate, as `rate_of_step` has it."""
    return functools.partial(rate_of_step, rates(optimizer, train), optimizer.schedule)


def rate_of_step(numbers: Rates, schedule: str, step: Any) -> Any:
    """The learning rate of a step. It rises linearly from 0 during the warm-up. Then it, by
    `schedule`,

      - falls to the end rate after the last step, linearly or as half a cosine (Loshchilov and
        Hutter 2017, arXiv 1608.03983, eq. 5);
      - stays constant;
      - falls with the inverse square root of the step (Vaswani et al. 2017, section 5.3, but from
        the peak);
      - stays constant until the last optimizer.decay_steps and then falls linearly to the end rate
        (wsd: Hägele et al. 2024, arXiv 2405.18392).
    """
    # Step k (from 0) uses the rate of k + 1, and a fall ends one step after the last: no update has
    # a rate of zero.
    count = step + 1
    peak, end, warmup, falls_after, steps_of_fall = numbers
    if schedule == "inverse_sqrt":
        return peak * jnp.minimum(count / warmup, jnp.sqrt(warmup / count))
    # Before the fall the rate is one product, so that those of runs of several lengths are equal
    # (mhsh/training/branch.py).
    rising = peak * jnp.minimum(count / jnp.maximum(warmup, 1), 1.0)
    if schedule == "constant":
        return rising
    share = jnp.clip((count - falls_after) / (steps_of_fall + 1), 0.0, 1.0)
    remaining = 0.5 * (1.0 + jnp.cos(jnp.pi * share)) if schedule == "cosine" else 1.0 - share
    return jnp.where(count > falls_after, end + (peak - end) * remaining, rising)


@add_optimizer("lamb", source="You et al. 2020, arXiv 1904.00962", trust_ratio=True, scales_with_depth=True)
@add_optimizer("adamw", source="Loshchilov and Hutter 2019, arXiv 1711.05101", scales_with_depth=True)
def adam(optimizer: OptimizerConfig) -> optax.GradientTransformation:
    """Adam's moments (Kingma and Ba 2015, arXiv 1412.6980)."""
    return optax.scale_by_adam(optimizer.beta1, optimizer.beta2, optimizer.epsilon)


# Its first updates are as large as the gradients, which CompleteP scales.
@add_optimizer("radam", source="Liu et al. 2020, arXiv 1908.03265")
def rectified_adam(optimizer: OptimizerConfig) -> optax.GradientTransformation:
    """Adam's moments, rectified."""
    return optax.scale_by_radam(optimizer.beta1, optimizer.beta2, optimizer.epsilon)


def build_optimizer(config: Config) -> optax.GradientTransformationExtraArgs:
    """Clipping by global norm, what the entry of optimizer.name makes of a gradient, decoupled
    weight decay, the trust ratio where the entry has it, then the learning rate. A residual scheme
    may scale the layers' gradients and updates.

    `update` takes the keywords `learning_rate`, that of the step, and `grad_norm`, the gradients'
    global norm. Raises UserError where there is no such entry or scheme, where they do not go
    together, or where the entry does not return a transformation of optax.
    """
    check_entries(config)
    optimizer, model = config.optimizer, config.model
    rule, scales = UPDATE_RULES[optimizer.name], SCHEMES[model.residual].residual.layer_scales(model)
    mask = functools.partial(decay_mask, model.residual)
    chain: list[optax.GradientTransformation] = []
    if most := optimizer.clip_norm:
        # Pascanu et al. 2013, by one factor: optax selects and divides element by element, which
        # writes all gradients to memory once more.
        chain.append(scale_by(lambda grad_norm, **_: most / jnp.maximum(grad_norm, most)))
    if scales is not None:
        chain.append(scale_layers(scales[0]))
    update = rule.build(optimizer)
    if not isinstance(update, optax.GradientTransformation):
        kind = type(update).__name__
        raise UserError(f"optimizer.name = {optimizer.name!r} returns a {kind}; return an optax.GradientTransformation")
    chain.append(store_keys(update))
    chain.append(optax.add_decayed_weights(optimizer.weight_decay, mask=mask))
    if rule.trust_ratio:
        chain.append(optax.masked(scale_by_layer_trust_ratio(), mask))
    if scales is not None:
        chain.append(scale_layers(scales[1]))
    return optax.chain(*chain, scale_by(lambda learning_rate, **_: -jnp.asarray(learning_rate, jnp.float32)))


@struct.dataclass
class KeyData:
    """A random key in the state of an optimizer, as the numbers that a checkpoint holds."""

    data: jax.Array
    kind: Any = struct.field(pytree_node=False)

    @classmethod
    def of(cls, leaf: Any) -> Any:
        """The leaf of a state, if it is a key as its data."""
        is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return cls(jax.random.key_data(leaf), jax.random.key_impl(leaf)) if is_key else leaf

    @staticmethod
    def key_of(leaf: Any) -> Any:
        """The leaf again."""
        return jax.random.wrap_key_data(leaf.data, impl=leaf.kind) if isinstance(leaf, KeyData) else leaf


def store_keys(update: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """The same, but random keys in its state (optax.add_noise has one) are KeyData."""
    update = optax.with_extra_args_support(update)

    def apply(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        state = jax.tree.map(KeyData.key_of, state, is_leaf=lambda leaf: isinstance(leaf, KeyData))
        updates, state = update.update(updates, state, params, **extra)
        return updates, jax.tree.map(KeyData.of, state)

    return optax.GradientTransformationExtraArgs(lambda params: jax.tree.map(KeyData.of, update.init(params)), apply)


def global_norm(tree: Any) -> jax.Array:
    """The Euclidean norm of all leaves together, in fp32.

    It is computed by dot products. XLA would share a square with Adam's second moment, and its CPU
    backend would then write the square to memory.
    """
    leaves = (jnp.atleast_1d(leaf.astype(jnp.float32)) for leaf in jax.tree.leaves(tree))
    return jnp.sqrt(sum(jnp.sum(jnp.einsum("...c,...c->...", leaf, leaf, precision="highest")) for leaf in leaves))


def scale_by(factor: Callable[..., jax.Array]) -> optax.GradientTransformationExtraArgs:
    """Multiplies all updates by a `factor` of the keywords of `update`."""

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        number = factor(**extra)
        return jax.tree.map(lambda leaf: number.astype(leaf.dtype) * leaf, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def scale_layers(factor: float) -> optax.GradientTransformation:
    """Multiplies the updates of all parameters that are stacked over layers."""

    def scale(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        return factor * leaf if STACKED in parameter_path(path).split("/") else leaf

    return optax.stateless(lambda updates, params: jax.tree_util.tree_map_with_path(scale, updates))


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
