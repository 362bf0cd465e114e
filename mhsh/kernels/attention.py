"""Softmax attention in one kernel: neither scores nor probabilities leave the chip, nor is a mask
ever written.

Written here because what jax ships has no dropout on the probabilities by a mask of the caller's:
flash_attention and splash_attention (TPU) have none, jax.nn.dot_product_attention neither, and
cuDNN's draws its own.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float, Float32, Int, Int32, Key

from mhsh.kernels.dropout import Seed, dropout, seed_of
from mhsh.kernels.gpu import attention as gpu
from mhsh.kernels.residual_norm import dropped
from mhsh.kernels.rows import MIB, ONCHIP_BYTES, KernelTarget, VmemBudget, mask_of, only, over_shards, product
from mhsh.kernels.settings import MASK_VALUE, AttentionSettings


def attend_plain(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S N H"],
    value: Float[Array, "B S N H"],
    segments: Int[Array, "B T"],
    source_segments: Int[Array, "B S"],
    dropout_key: Key[Array, ""] | None,
    settings: AttentionSettings,
) -> Float[Array, "B T N H"]:
    """Dropout(softmax(query key^T)) value a head, the definition; `query` has been divided by
    sqrt(H).

    A query may look at the keys of its segment, but for segment 0, which is padding: where it may
    look nowhere it looks everywhere.
    """
    mask = (segments[:, :, None] == source_segments[:, None, :]) & (source_segments > 0)[:, None, :]
    if settings.causal:
        mask = mask & jnp.tril(jnp.ones(mask.shape[1:], bool))
    scores = jnp.einsum("BTNH,BSNH->BNTS", query, key).astype(jnp.float32)
    probabilities = jax.nn.softmax(jnp.where(mask[:, None], scores, MASK_VALUE), axis=-1).astype(query.dtype)
    return jnp.einsum("BSNH,BNTS->BTNH", value, dropout(probabilities, settings.rate, dropout_key))


def attend(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S N H"],
    value: Float[Array, "B S N H"],
    segments: Int[Array, "B T"],
    source_segments: Int[Array, "B S"],
    dropout_key: Key[Array, ""] | None,
    settings: AttentionSettings,
    place: KernelTarget,
) -> Float[Array, "B T N H"]:
    """`attend_plain` in one kernel, with the same probabilities dropped for the same key, on any
    mesh.

    The backward pass is one kernel as well: it keeps the operands and computes the probabilities
    again.
    """
    if dropout_key is None:
        settings = dataclasses.replace(settings, rate=0.0)
    seed = jnp.zeros((2,), jnp.uint32) if dropout_key is None else seed_of(dropout_key)
    if place.target == "gpu":
        return gpu.attend(query, key, value, segments, source_segments, seed, settings, place)
    flat = [each.reshape(*each.shape[:2], -1) for each in (query, key, value)]
    rows = [each.astype(jnp.int32)[:, None] for each in (segments, source_segments)]
    return _fused(*flat, *rows, seed, settings, place).reshape(query.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7))
def _fused(
    query: Float[Array, "B T C"],
    key: Float[Array, "B S C"],
    value: Float[Array, "B S C"],
    segments: Int32[Array, "B 1 T"],
    source_segments: Int32[Array, "B 1 S"],
    seed: Seed,
    settings: AttentionSettings,
    place: KernelTarget,
) -> Float[Array, "B T C"]:
    operands = (query, key, value, segments, source_segments)
    return _call(_forward_kernel, (query,), operands, seed, settings, place, name="attend", num_products=2)[0]


def _forward(
    query: Float[Array, "B T C"],
    key: Float[Array, "B S C"],
    value: Float[Array, "B S C"],
    segments: Int32[Array, "B 1 T"],
    source_segments: Int32[Array, "B 1 S"],
    seed: Seed,
    settings: AttentionSettings,
    place: KernelTarget,
) -> tuple[Float[Array, "B T C"], tuple[Array, ...]]:
    operands = (query, key, value, segments, source_segments, seed)
    return _fused(*operands, settings, place), operands


def _backward(
    settings: AttentionSettings, place: KernelTarget, saved: tuple[Array, ...], gradient: Float[Array, "B T C"]
) -> tuple[Array | None, ...]:
    *operands, seed = saved
    like, operands = tuple(operands[:3]), (*operands, gradient)
    by_operands = _call(_backward_kernel, like, operands, seed, settings, place, name="attend_backward", num_products=5)
    return *by_operands, None, None, None


_fused.defvjp(_forward, _backward)


@dataclasses.dataclass(frozen=True)
class _Tile:
    """The scores that a kernel has on the chip at once: a block of queries against all keys, of one
    head.
    """

    num_queries: int  # in the block
    length: int  # T; the last block may reach beyond
    source_length: int  # S
    settings: AttentionSettings

    def first_query(self) -> Array:
        return pl.program_id(1) * self.num_queries

    def valid(self) -> Bool[Array, "Q 1"] | None:
        """Which queries exist; None where all do."""
        if self.length % self.num_queries == 0:
            return None
        return jax.lax.broadcasted_iota(jnp.int32, (self.num_queries, 1), 0) < self.length - self.first_query()

    def visible(self, segments: Any, source_segments: Any) -> Bool[Array, "Q S"]:
        """Where a query may look, of references to a row of the segments of the queries and of the
        keys.
        """
        source = source_segments[...]
        mask = (segments[...].reshape(self.num_queries, 1) == source) & (source > 0)
        if not self.settings.causal:
            return mask
        queries = self.first_query() + jax.lax.broadcasted_iota(jnp.int32, (self.num_queries, 1), 0)
        return mask & (jax.lax.broadcasted_iota(jnp.int32, (1, self.source_length), 1) <= queries)

    def kept(self, scalars: Any, head: int) -> Bool[Array, "Q S"] | None:
        """The dropout mask of one head; None where nothing is dropped. Rows are counted over B, N
        and T.
        """
        if self.settings.rate == 0.0:
            return None
        row = (scalars[2] * jnp.uint32(pl.num_programs(0)) + jnp.uint32(pl.program_id(0))) * jnp.uint32(self.settings.num_heads)
        first = (row + jnp.uint32(head)) * jnp.uint32(self.length) + jnp.uint32(self.first_query())
        return mask_of((scalars[0], scalars[1]), first, (self.num_queries, self.source_length), self.settings.rate)

    def heads(self, width: int) -> list[tuple[int, slice]]:
        """The heads and their columns in arrays [*,C]."""
        head_dim = width // self.settings.num_heads
        return [(head, slice(head * head_dim, (head + 1) * head_dim)) for head in range(self.settings.num_heads)]


def onchip(source_length: int, width: int, dtype: Any) -> VmemBudget:
    """What the backward pass takes, which is more than the forward pass does: a query's operands
    and results twice and its fp32 scores, probabilities and their gradients; besides, keys and
    values with their gradients and sums.
    """
    factor, padded = jnp.dtype(dtype).itemsize, -(-width // 128) * 128
    return VmemBudget(6 * padded * factor + 32 * source_length, source_length * padded * (8 * factor + 8) + 4 * MIB)


def _call(
    kernel: Any,
    like: tuple[Array, ...],
    operands: tuple[Array, ...],
    seed: Seed,
    settings: AttentionSettings,
    place: KernelTarget,
    *,
    name: str,
    num_products: int,
) -> tuple[Array, ...]:
    """Runs a kernel for each row of the batch and block of queries; the results are as `like`."""

    def local(scalars: Array, operands: tuple[Array, ...], whole: tuple[Array, ...]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        batch, length, width = operands[0].shape
        source_length = operands[1].shape[1]
        fitting = onchip(source_length, width, operands[0].dtype).block_rows() // 128 * 128
        tile = _Tile(length if length <= fitting else fitting, length, source_length, settings)
        block = pl.BlockSpec((None, tile.num_queries, width), lambda row, step: (row, step, 0))
        keys = pl.BlockSpec((None, source_length, width), lambda row, step: (row, 0, 0))
        asking = pl.BlockSpec((None, 1, tile.num_queries), lambda row, step: (row, 0, step))
        answering = pl.BlockSpec((None, 1, source_length), lambda row, step: (row, 0, 0))
        specs = [block, keys, keys, asking, answering, block]
        shapes = [jax.ShapeDtypeStruct((batch, *each.shape[1:]), each.dtype) for each in like]
        results = pl.pallas_call(
            functools.partial(kernel, tile),
            out_shape=shapes,
            grid=(batch, pl.cdiv(length, tile.num_queries)),
            in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), *specs[: len(operands)]],
            out_specs=specs[: len(shapes)],
            scratch_shapes=[pltpu.VMEM((source_length, width), jnp.float32)] * (len(shapes) - 1),
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=ONCHIP_BYTES),
            cost_estimate=pl.CostEstimate(
                flops=2 * num_products * batch * length * source_length * width,
                transcendentals=batch * settings.num_heads * length * source_length,
                bytes_accessed=sum(math.prod(each.shape) * each.dtype.itemsize for each in (*operands, *shapes)),
            ),
            interpret=place.interpret,
            name=name,
        )(scalars, *operands)
        return tuple(results), ()

    return over_shards(local, place, seed, operands, ())[0]


def _probabilities(query: Array, key: Array, visible: Array) -> Float32[Array, "Q S"]:
    scores = jnp.where(visible, product("QH,SH->QS", query, key), MASK_VALUE)
    powers = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    return powers / jnp.sum(powers, axis=-1, keepdims=True)


def _forward_kernel(
    tile: _Tile, scalars: Any, query: Any, key: Any, value: Any, segments: Any, source_segments: Any, out: Any
) -> None:
    visible = tile.visible(segments, source_segments)
    for head, columns in tile.heads(out.shape[-1]):
        probabilities = _probabilities(query[:, columns], key[:, columns], visible)
        weights = dropped(probabilities, tile.kept(scalars, head), tile.settings.rate).astype(value.dtype)
        out[:, columns] = product("QS,SH->QH", weights, value[:, columns]).astype(out.dtype)


def _backward_kernel(
    tile: _Tile,
    scalars: Any,
    query_ref: Any,
    key: Any,
    value: Any,
    segments: Any,
    source_segments: Any,
    gradient_ref: Any,
    by_query: Any,
    by_key: Any,
    by_value: Any,
    key_sum: Any,
    value_sum: Any,
) -> None:
    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        key_sum[...] = jnp.zeros_like(key_sum)
        value_sum[...] = jnp.zeros_like(value_sum)

    valid, visible = tile.valid(), tile.visible(segments, source_segments)
    for head, columns in tile.heads(by_query.shape[-1]):
        query, gradient = only(query_ref[:, columns], valid), only(gradient_ref[:, columns], valid)
        probabilities = _probabilities(query, key[:, columns], visible)
        kept = tile.kept(scalars, head)
        weights = dropped(probabilities, kept, tile.settings.rate).astype(gradient.dtype)
        value_sum[:, columns] += product("QS,QH->SH", weights, gradient)
        by_probabilities = dropped(product("QH,SH->QS", gradient, value[:, columns]), kept, tile.settings.rate)
        along = jnp.sum(by_probabilities * probabilities, axis=-1, keepdims=True)
        by_scores = jnp.where(visible, probabilities * (by_probabilities - along), 0.0).astype(query.dtype)
        by_query[:, columns] = product("QS,SH->QH", by_scores, key[:, columns]).astype(by_query.dtype)
        key_sum[:, columns] += product("QS,QH->SH", by_scores, query)

    @pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
    def _() -> None:
        by_key[...] = key_sum[...].astype(by_key.dtype)
        by_value[...] = value_sum[...].astype(by_value.dtype)
