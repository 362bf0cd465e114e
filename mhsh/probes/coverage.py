"""Attention coverage: over how many positions a token spreads its attention, in one head, in one
layer, and through the whole stack; and to how many some head gives its largest weight.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from mhsh.config.schema import ModelConfig
from mhsh.models.attention import MultiHeadAttention, attention_mask, cross_attention_mask
from mhsh.models.types import Batch, sort_stacks
from mhsh.probes.interceptors import PROBE, map_examples, non_padding, plain_model, run_intercepted

# The sublayers that attend within one stack: only these can be rolled out.
_SELF = ("attention", "self_attention")
# The share of the residual stream in each step of a rollout: Abnar and Zuidema's, and none.
RESIDUAL_SHARES = {"rollout": 0.5, "rollout_without_residual": 0.0}


def effective_number(rows: Float[Array, "*rows S"]) -> Float[Array, "*rows"]:
    """exp(entropy) of each row of weights, after dividing it by its sum: 1 for one position, k for
    k positions of equal weight.
    """
    weights = rows / rows.sum(axis=-1, keepdims=True)
    return jnp.exp(jax.scipy.special.entr(weights).sum(axis=-1))


def rollout(attention: Float[Array, "L T T"], residual_share: float) -> Float[Array, "L T T"]:
    """The weights of the input positions in each position after layer l, by attention alone:
    R_l = (r I + (1 - r) A_l) R_{l-1}, R_0 = I. A_l is the mean over the heads of a layer.

    r = 1/2 is attention rollout (Abnar and Zuidema 2020, arXiv 2005.00928, section 3): the residual
    stream counts as much as attention. r = 0 follows attention alone.

    Two warnings about comparing stacks of different depth. r is the same in every layer, but a
    layer of a deep stack adds less to its stream. And under a causal mask a long product
    concentrates on the first position, which sees only itself: the number falls with depth for any
    model.
    """
    identity = jnp.eye(attention.shape[-1], dtype=attention.dtype)

    def step(before: Float[Array, "T T"], layer: Float[Array, "T T"]) -> tuple[Float[Array, "T T"], Float[Array, "T T"]]:
        mixed = residual_share * identity + (1 - residual_share) * layer
        after = jnp.einsum("TS,SU->TU", mixed, before, precision="highest")
        return after, after

    return jax.lax.scan(step, identity, attention)[1]


def argmax_numbers(is_largest: Bool[Array, "L T S"]) -> tuple[Int[Array, "L T"], Int[Array, "L T"]]:
    """The number of positions that have the largest weight of at least one head of a layer, and of
    at least one head of any layer up to this one, by layer and query.

    This counts a head as attending to one position, as the paper does (arXiv 2106.09650, p. 3: one
    weight of a softmax is typically much larger than the others).
    """
    return is_largest.sum(axis=-1), (jnp.cumsum(is_largest, axis=0) > 0).sum(axis=-1)


def coverage(config: ModelConfig, params: Any, batch: Batch) -> dict[str, dict[str, dict[str, Any]]]:
    """Effective numbers of positions, by stack and attention sublayer, averaged over all queries of
    the batch that are not padding. Only the weights of one example are in memory, [L, T, T].

    Returns, for each sublayer: `visible`, how many positions a query may attend to (an upper bound
    of all figures); `heads` [L, N], for each head; `layers` [L], for the mean over a layer's heads;
    and for self-attention `rollout` and `rollout_without_residual` [L], for the rollout through all
    layers up to this one. `argmax_layers` and `argmax_stack` [L] are those of argmax_numbers; where
    weights tie, the first position has the largest.
    """
    model = plain_model(config)

    def example_sums(params: Any, example: Batch) -> dict[str, Any]:
        _, sown = run_intercepted(model, params, example, functools.partial(_sow_figures, example))
        sums: dict[str, Any] = {}
        for stack, found in sown.items():
            real = non_padding(example, stack)
            sums[stack] = {
                name: _sums(name, {key: value[0] for key, value in each.items()}, real[0])
                | {"visible": _visible(config, example, name)}
                for name, each in found["layers"].items()
            } | {"queries": real.sum()}
        return sums

    batch_sums = jax.jit(lambda params, batch: map_examples(lambda example: example_sums(params, example), batch))
    totals = jax.tree.map(lambda rows: np.asarray(rows, np.float64).sum(axis=0), jax.device_get(batch_sums(params, dict(batch))))
    result: dict[str, dict[str, dict[str, Any]]] = {}
    for stack, sublayers in sort_stacks(totals).items():
        queries = sublayers.pop("queries")
        result[stack] = {name: {key: (value / queries).tolist() for key, value in each.items()} for name, each in sublayers.items()}
    return result


def _sow_figures(example: Batch, call: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any], context: Any) -> Any:
    result, module = call(*args, **keywords), context.module
    if isinstance(module, MultiHeadAttention) and context.method_name == "_softmax":
        # Computed again in fp32: the model's own weights may be rounded.
        weights = jax.nn.softmax(args[0], axis=-1)
        real = non_padding(example, module.path[0])
        mean = weights.mean(axis=1)
        module.sow(PROBE, "heads", _sum_over_queries(effective_number(weights), real[:, None]))
        module.sow(PROBE, "layers", _sum_over_queries(effective_number(mean), real))
        is_largest = jax.nn.one_hot(weights.argmax(axis=-1), weights.shape[-1], dtype=bool).any(axis=1)
        module.sow(PROBE, "is_largest", is_largest[0])
        if module.name in _SELF:
            module.sow(PROBE, "mean", mean[0])
    return result


def _sum_over_queries(figures: Float[Array, "1 *heads T"], real: Bool[Array, "1 *ones T"]) -> Float[Array, "*heads"]:
    """The sum over the queries of the one example."""
    return jnp.sum(figures, axis=-1, where=real)[0]


def _sums(name: str, sown: dict[str, Array], real: Bool[Array, " T"]) -> dict[str, Array]:
    query_figures = dict(zip(("argmax_layers", "argmax_stack"), argmax_numbers(sown["is_largest"]), strict=True))
    if name in _SELF:
        query_figures |= {key: effective_number(rollout(sown["mean"], share)) for key, share in RESIDUAL_SHARES.items()}
    sums = {key: jnp.sum(figures, axis=-1, where=real) for key, figures in query_figures.items()}
    return {key: sown[key] for key in ("heads", "layers")} | sums


def _visible(config: ModelConfig, example: Batch, name: str) -> Int[Array, ""]:
    """The number of (query, position) pairs that the masks allow; padding has none."""
    sources = jnp.asarray(example["inputs_segmentation"])
    if name == "attention":
        return attention_mask(sources, causal=config.objective == "clm").dense.sum()
    targets = jnp.asarray(example["targets_segmentation"])
    if name == "self_attention":
        return attention_mask(targets, causal=True).dense.sum()
    return cross_attention_mask(targets, sources).dense.sum()
