"""Attention coverage: how many positions a token draws on, in one head, in one layer, and through
the whole stack.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from mhsh.config.schema import ModelConfig
from mhsh.models.attention import MultiHeadAttention, attention_mask, cross_attention_mask
from mhsh.models.stack import in_stack_order
from mhsh.models.types import Batch
from mhsh.probes.interceptors import PROBE, num_non_padding, over_rows, watch, watchable

# The sublayers that attend within one stack, which is what can be rolled out.
_SELF = ("attention", "self_attention")
# Of each step of a rollout, the share that is the residual stream's own: Abnar and Zuidema's, and
# none.
RESIDUAL_SHARES = {"rollout": 0.5, "rollout_without_residual": 0.0}


def effective_number(rows: Float[Array, "*rows S"]) -> Float[Array, "*rows"]:
    """exp(entropy) of each row of weights, which are divided by their sum first: the number of
    equally weighted positions that are as spread out. 1 of one position, k of k equal ones.
    """
    weights = rows / rows.sum(axis=-1, keepdims=True)
    return jnp.exp(jax.scipy.special.entr(weights).sum(axis=-1))


def support(rows: Float[Array, "*rows S"]) -> Int[Array, "*rows"]:
    """How many positions have any weight at all. A softmax gives some to every position that may be
    seen: this is for matrices that hold exact zeros.
    """
    return (rows > 0).sum(axis=-1)


def rollout(attention: Float[Array, "L T T"], residual_share: float) -> Float[Array, "L T T"]:
    """What each position is made of after layer l, by attention alone: R_l = (r I + (1 - r) A_l)
    R_{l-1}, R_0 = I.

    A_l is the mean over the heads of a layer. r = 1/2 is attention rollout (Abnar and Zuidema 2020,
    arXiv 2005.00928, section 3), in which the residual stream counts as much as what attention adds
    to it; r = 0 follows attention alone.

    Two things to know before stacks of unlike depth are compared: r is the same in every layer,
    though a layer of a deep stack adds less to its stream; and under a causal mask a long product
    gathers at the first position, which sees itself alone, so that the number falls again with
    depth whatever the model has learnt.
    """
    identity = jnp.eye(attention.shape[-1], dtype=attention.dtype)

    def step(before: Float[Array, "T T"], layer: Float[Array, "T T"]) -> tuple[Float[Array, "T T"], Float[Array, "T T"]]:
        mixed = residual_share * identity + (1 - residual_share) * layer
        after = jnp.einsum("TS,SU->TU", mixed, before, precision="highest")
        return after, after

    return jax.lax.scan(step, identity, attention)[1]


def coverage(config: ModelConfig, params: Any, batch: Batch) -> dict[str, dict[str, dict[str, Any]]]:
    """By stack and attention sublayer, effective numbers of positions, averaged over all real
    queries of the batch (padding asks nothing, and nothing sees it). Rows are looked at one at a
    time: L T T weights are kept, not B times as many.

    Returns, for each sublayer: `visible`, how many positions a query may look at, which no figure
    exceeds; `heads` [L][N], of each head; `layers` [L], of the mean over a layer's heads; and,
    where a stack attends to itself, `rollout` and `rollout_without_residual` [L], of the rollout
    through all layers up to this one.
    """
    model = watchable(config)

    def of_row(params: Any, row: Batch) -> dict[str, Any]:
        left = watch(model, params, row, functools.partial(_look, row))
        sums: dict[str, Any] = {}
        for stack, found in left.items():
            real = num_non_padding(row, stack)
            sums[stack] = {
                name: _sums(name, {key: value[0] for key, value in each.items()}, real[0])
                | {"visible": _visible(config, row, name)}
                for name, each in found["layers"].items()
            } | {"queries": real.sum()}
        return sums

    over_batch = jax.jit(lambda params, batch: over_rows(lambda row: of_row(params, row), batch))
    totals = jax.tree.map(lambda rows: np.asarray(rows, np.float64).sum(axis=0), jax.device_get(over_batch(params, dict(batch))))
    result: dict[str, dict[str, dict[str, Any]]] = {}
    for stack, sublayers in in_stack_order(totals).items():
        queries = sublayers.pop("queries")
        result[stack] = {name: {key: (value / queries).tolist() for key, value in each.items()} for name, each in sublayers.items()}
    return result


def _look(row: Batch, module: nn.Module, method: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    result = call(*args)
    if isinstance(module, MultiHeadAttention) and method == "_softmax":
        # Once more, in fp32: what the model goes on with may be rounded.
        weights = jax.nn.softmax(args[0], axis=-1)
        real = num_non_padding(row, module.path[0])
        mean = weights.mean(axis=1)
        module.sow(PROBE, "heads", _over_queries(effective_number(weights), real[:, None]))
        module.sow(PROBE, "layers", _over_queries(effective_number(mean), real))
        if module.name in _SELF:
            module.sow(PROBE, "mean", mean[0])
    return result


def _over_queries(figures: Float[Array, "1 *heads T"], real: Bool[Array, "1 *ones T"]) -> Float[Array, "*heads"]:
    """The sum over the real queries of the one row."""
    return jnp.sum(figures, axis=-1, where=real)[0]


def _sums(name: str, found: dict[str, Array], real: Bool[Array, " T"]) -> dict[str, Array]:
    sums = {key: found[key] for key in ("heads", "layers")}
    if name not in _SELF:
        return sums
    rolled = {key: effective_number(rollout(found["mean"], share)) for key, share in RESIDUAL_SHARES.items()}
    return sums | {key: jnp.sum(figures, axis=-1, where=real) for key, figures in rolled.items()}


def _visible(config: ModelConfig, row: Batch, name: str) -> Int[Array, ""]:
    """Over the queries of a row, the positions that they may look at; padding may look at none."""
    sources = jnp.asarray(row["inputs_segmentation"])
    if name == "attention":
        return attention_mask(sources, causal=config.objective == "clm").sum()
    targets = jnp.asarray(row["targets_segmentation"])
    if name == "self_attention":
        return attention_mask(targets, causal=True).sum()
    return cross_attention_mask(targets, sources).sum()
