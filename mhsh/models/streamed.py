"""Groups of layers one after the other, of which each is gathered while the one before computes.

A scan of jax would keep the gathered weights of all groups for the backward pass. Here only the
streams between groups are kept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

# Whole parameters of a group, the stream, what is stacked by group, and what is not -> the stream.
Group = Callable[[Any, Any, Any, Any], Any]


def stream_groups(group: Any) -> Any:
    """The module class of `group` over stacked parameters, which may be boxed shards: where flax
    unboxes them, they become whole.

    It is called with the stream, an argument that is stacked as the parameters are, and one that is
    not, and returns the stream and None, as an nn.scan does.
    """

    class Streamed(nn.Module):
        config: Any
        residual: Any
        stack: Any

        @nn.compact
        def __call__(self, stream: Any, stacked: Any, context: Any) -> tuple[Any, None]:
            def apply(params: Any, *arguments: Any) -> Any:
                return group(self.config, self.residual, self.stack, parent=None).apply({"params": params}, *arguments)[0]

            return _apply_groups(apply, self.variables["params"], stream, stacked, context), None

    return Streamed


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _apply_groups(group: Group, params: Any, stream: Any, stacked: Any, context: Any) -> Any:
    return _forward(group, params, stream, stacked, context)[0]


def _forward(group: Group, params: Any, stream: Any, stacked: Any, context: Any) -> tuple[Any, Any]:
    count = len(jax.tree.leaves(params)[0])

    def body(carry: tuple[Any, Any], inputs: tuple[Any, Any]) -> tuple[tuple[Any, Any], Any]:
        (stream, whole), (index, part) = carry, inputs
        following = _gather_group(params, (index + 1) % count)
        return (group(whole, stream, part, context), following), stream

    (last, _), streams = jax.lax.scan(body, (stream, _gather_group(params, 0)), (jnp.arange(count), stacked))
    return last, (params, streams, stacked, context)


def _backward(group: Group, residuals: Any, gradient: Any) -> tuple[Any, Any, None, Any]:
    params, streams, stacked, context = residuals
    count = len(jax.tree.leaves(params)[0])
    leaves, structure = jax.tree.flatten(context)
    is_real = [jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in leaves]  # masks have no gradient

    def restore_context(real: Any) -> Any:
        parts = iter(real)
        return structure.unflatten(next(parts) if one else leaf for leaf, one in zip(leaves, is_real, strict=True))

    real = [leaf for leaf, one in zip(leaves, is_real, strict=True) if one]

    def body(carry: tuple[Any, Any, Any], inputs: tuple[Any, Any, Any]) -> tuple[tuple[Any, Any, Any], Any]:
        (gradient, whole, sums), (index, stream, part) = carry, inputs
        preceding = _gather_group(params, (index - 1) % count)
        _, pull = jax.vjp(lambda whole, stream, real: group(whole, stream, part, restore_context(real)), whole, stream, real)
        d_whole, gradient, d_real = pull(gradient)
        _, scatter = jax.vjp(nn.unbox, _slice_group(params, index))
        return (gradient, preceding, jax.tree.map(jnp.add, sums, d_real)), scatter(d_whole)[0]

    start = (gradient, _gather_group(params, count - 1), jax.tree.map(jnp.zeros_like, real))
    (gradient, _, sums), d_params = jax.lax.scan(body, start, (jnp.arange(count), streams, stacked), reverse=True)
    parts = iter(sums)
    return d_params, gradient, None, structure.unflatten(next(parts) if one else None for one in is_real)


_apply_groups.defvjp(_forward, _backward)


def _slice_group(params: Any, index: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False), params)


def _gather_group(params: Any, index: Any) -> Any:
    """The whole parameters of a group."""
    return nn.unbox(_slice_group(params, index))
