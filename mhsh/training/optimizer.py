"""AdamW, RAdam, LAMB and Muon with warm-up and decay, built from optax, and the table of parameters
that have weight decay.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from mhsh.config.schema import Config, OptimizerConfig, TrainConfig
from mhsh.models.costs import NEWTON_SCHULZ_STEPS
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

# Muon's matrices by the last name of a parameter's path: the axes that are contracted, and the axes
# of the output, counted from the last one. The other axes, layers first, number the matrices.
_FEED_FORWARD = dict.fromkeys(("up_kernel", "gate_kernel", "down_kernel"), MuonDimensionNumbers((-2,), (-1,)))  # [D,F], [F,D]
_QUERY_KEY_VALUE, _OUT = ("query_kernel", "key_kernel", "value_kernel"), "out_kernel"  # [D,N,H] and [N,H,D]
MUON_MATRICES: Mapping[str, Mapping[str, MuonDimensionNumbers]] = {  # by optimizer.muon_heads
    "joined": {
        **dict.fromkeys(_QUERY_KEY_VALUE, MuonDimensionNumbers((-3,), (-2, -1))),
        _OUT: MuonDimensionNumbers((-3, -2), (-1,)),
        **_FEED_FORWARD,
    },
    "each": {
        **dict.fromkeys(_QUERY_KEY_VALUE, MuonDimensionNumbers((-3,), (-1,))),
        _OUT: MuonDimensionNumbers((-2,), (-1,)),
        **_FEED_FORWARD,
    },
}

# The root mean square of AdamW's updates, to which Muon's are scaled (arXiv 2502.16982, section
# 2.2), so that AdamW's learning rate and weight decay carry over.
MUON_RMS = 0.2

Scalar = float | jax.Array


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
    return functools.partial(rate_of_step, rates(optimizer, train), optimizer.schedule, optimizer.decay_shape)


def rate_of_step(numbers: Rates, schedule: str, decay_shape: str, step: Any) -> Any:
    """The learning rate of a step. It rises linearly from 0 during the warm-up. Then it, by
    `schedule`,

      - falls to the end rate after the last step, linearly or as half a cosine (Loshchilov and
        Hutter 2017, arXiv 1608.03983, eq. 5);
      - stays constant;
      - falls with the inverse square root of the step (Vaswani et al. 2017, section 5.3, but from
        the peak);
      - stays constant until the last optimizer.decay_steps and then falls to the end rate, linearly
        or with 1 - sqrt(share of the decay) (wsd: Hägele et al. 2024, arXiv 2405.18392).
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
    if schedule == "cosine":
        left = 0.5 * (1.0 + jnp.cos(jnp.pi * share))
    else:
        left = 1.0 - (jnp.sqrt(share) if schedule == "wsd" and decay_shape == "one_minus_sqrt" else share)
    return jnp.where(count > falls_after, end + (peak - end) * left, rising)


def build_optimizer(config: Config) -> optax.GradientTransformationExtraArgs:
    """Clipping by global norm, Adam moments (for radam rectified: Liu et al. 2020, arXiv
    1908.03265; for muon orthogonal updates of the layers' kernels instead), decoupled weight decay,
    for lamb the trust ratio, then the learning rate.

    With CompleteP, the layers' epsilon is multiplied by m^-a and their rate by m^(a-1), where m =
    L / L0 and a is model.depth_exponent (arXiv 2505.01618, table 1). A smaller epsilon is the same
    as a larger gradient.

    `update` takes the keywords `learning_rate`, that of the step, and `grad_norm`, the gradients'
    global norm.
    """
    optimizer, model = config.optimizer, config.model
    scale_by_moments = optax.scale_by_radam if optimizer.name == "radam" else optax.scale_by_adam
    moments = scale_by_moments(optimizer.beta1, optimizer.beta2, optimizer.epsilon)
    chain: list[optax.GradientTransformation] = [clip_by_global_norm(optimizer.clip_norm)] if optimizer.clip_norm else []
    if model.residual == "completep":
        chain.append(scale_layers(depth_multiple(model) ** model.depth_exponent))
    chain.append(by_matrix(moments, optimizer) if optimizer.name == "muon" else moments)
    chain.append(optax.add_decayed_weights(optimizer.weight_decay, mask=decay_mask))
    if optimizer.name == "lamb":
        chain.append(optax.masked(scale_by_layer_trust_ratio(), decay_mask))
    if model.residual == "completep":
        chain.append(scale_layers(depth_multiple(model) ** (model.depth_exponent - 1)))
    return optax.chain(*chain, scale_by_learning_rate())


def by_matrix(moments: optax.GradientTransformation, optimizer: OptimizerConfig) -> optax.GradientTransformation:
    """Muon for the layers' kernels (Jordan et al. 2024, kellerjordan.github.io/posts/muon): the
    Nesterov momentum of a matrix, orthogonalised by five Newton-Schulz iterations and scaled to a
    root mean square of MUON_RMS. All other parameters, also the heads' kernels, have `moments`.

    A stacked kernel is a matrix for each layer: of all heads, or of one head (muon_heads = each).
    """
    by_name = MUON_MATRICES[optimizer.muon_heads]

    def matrix(path: tuple[Any, ...], leaf: Any) -> MuonDimensionNumbers | None:
        *parents, name = parameter_path(path).split("/")
        return by_name[name] if STACKED in parents and name in by_name else None

    def matrices(updates: Any) -> Any:
        return jax.tree_util.tree_map_with_path(matrix, updates)

    def rule(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(lambda *leaf: "moments" if matrix(*leaf) is None else "muon", params)

    def scaled(path: tuple[Any, ...], update: jax.Array) -> jax.Array:
        axes = matrix(path, update)
        assert axes is not None, "only kernels are here"
        sides = (np.take(update.shape, side).prod() for side in (axes.reduction_axis, axes.output_axis))
        return MUON_RMS * math.sqrt(max(sides)) * update

    scale = optax.stateless(lambda updates, params: jax.tree_util.tree_map_with_path(scaled, updates))
    orthogonalize = scale_by_muon(ns_steps=NEWTON_SCHULZ_STEPS, beta=optimizer.momentum, weight_dimension_numbers=matrices)
    return optax.partition({"muon": optax.chain(orthogonalize, scale), "moments": moments}, rule)


def global_norm(tree: Any) -> jax.Array:
    """The Euclidean norm of all leaves together, in fp32.

    It is computed by dot products. XLA would share a square with Adam's second moment, and its CPU
    backend would then write the square to memory.
    """
    leaves = (jnp.atleast_1d(leaf.astype(jnp.float32)) for leaf in jax.tree.leaves(tree))
    return jnp.sqrt(sum(jnp.sum(jnp.einsum("...c,...c->...", leaf, leaf, precision="highest")) for leaf in leaves))


def clip_by_global_norm(max_norm: float) -> optax.GradientTransformationExtraArgs:
    """Scales all gradients down to `max_norm` if the keyword argument `grad_norm`, their norm, is
    larger (Pascanu et al. 2013).

    It multiplies by one factor. optax's own selects and divides element by element, which writes
    all gradients to memory once more.
    """

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        del params
        factor = max_norm / jnp.maximum(extra["grad_norm"], max_norm)
        return jax.tree.map(lambda leaf: factor.astype(leaf.dtype) * leaf, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def scale_layers(factor: float) -> optax.GradientTransformation:
    """Multiplies the updates of all parameters that are stacked over layers."""

    def scale(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        return factor * leaf if STACKED in parameter_path(path).split("/") else leaf

    return optax.stateless(lambda updates, params: jax.tree_util.tree_map_with_path(scale, updates))


def scale_by_learning_rate() -> optax.GradientTransformationExtraArgs:
    """Multiplies by minus the keyword argument `learning_rate`."""

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        del params
        rate = -jnp.asarray(extra["learning_rate"], jnp.float32)
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
