"""Softmax attention on a GPU, block of queries by block of keys: neither scores nor probabilities
leave the chip.

As in FlashAttention (Dao 2023, arXiv 2307.08691): forward, the sum over keys is rescaled whenever a
larger score turns up; backward, the probabilities are computed again from the highest score and the
sum of a row, once for the queries and once for the keys and values.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Bool, Float, Float32, Int, UInt32

from mhsh.kernels.dropout import Seed
from mhsh.kernels.gpu.tiles import Span, launch, load, most_rows, product, side, store
from mhsh.kernels.residual_norm import dropped
from mhsh.kernels.rows import KernelTarget, mask_of, over_shards
from mhsh.kernels.settings import MASK_VALUE, AttentionSettings

# The widest head of which blocks of queries, keys and values fit the registers.
WIDEST_HEAD = 128


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7))
def attend(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S N H"],
    value: Float[Array, "B S N H"],
    segments: Int[Array, "B T"],
    source_segments: Int[Array, "B S"],
    seed: Seed,
    settings: AttentionSettings,
    place: KernelTarget,
) -> Float[Array, "B T N H"]:
    """Dropout(softmax(query key^T)) value within segments."""
    return _forward(query, key, value, segments, source_segments, seed, settings, place)[0]


def _forward(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S N H"],
    value: Float[Array, "B S N H"],
    segments: Int[Array, "B T"],
    source_segments: Int[Array, "B S"],
    seed: Seed,
    settings: AttentionSettings,
    place: KernelTarget,
) -> tuple[Float[Array, "B T N H"], tuple[Array, ...]]:
    operands = (query, key, value, segments, source_segments)

    def local(scalars: Array, operands: tuple[Array, ...], whole: tuple[Array, ...]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        blocks, query = _blocks(operands, settings), operands[0]
        column = (query.shape[0], settings.num_heads, query.shape[1], 1)
        shapes = [
            jax.ShapeDtypeStruct(query.shape, query.dtype),
            *[jax.ShapeDtypeStruct(column, jnp.float32)] * 2,
        ]
        return _run(_forward_kernel, blocks, scalars, operands, (), shapes, place, blocks.query_blocks, name="attend"), ()

    (out, highest, inverse), _ = over_shards(local, place, seed, operands, ())
    return out, (*operands, seed, out, highest, inverse)


def _backward(
    settings: AttentionSettings, place: KernelTarget, saved: tuple[Array, ...], gradient: Float[Array, "B T N H"]
) -> tuple[Array | None, ...]:
    *operands, seed, out, highest, inverse = saved
    # What a row of probabilities times its gradient sums up to, dropped or not: the result times
    # its own gradient.
    along = jnp.sum(out.astype(jnp.float32) * gradient.astype(jnp.float32), axis=-1).transpose(0, 2, 1)[..., None]

    def local(scalars: Array, rows: tuple[Array, ...], whole: tuple[Array, ...]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        operands, more = rows[:5], rows[5:]
        blocks = _blocks(operands, settings)
        like = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in operands[:3]]
        by_query = _run(
            _query_kernel, blocks, scalars, operands, more, like[:1], place, blocks.query_blocks, name="attend_by_query"
        )
        by_keys = _run(_key_kernel, blocks, scalars, operands, more, like[1:], place, blocks.key_blocks, name="attend_by_keys")
        return (*by_query, *by_keys), ()

    gradients, _ = over_shards(local, place, seed, (*operands, gradient, highest, inverse, along), ())
    return *gradients, None, None, None


attend.defvjp(_forward, _backward)


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """How one head of one row of the batch is cut."""

    batch: int
    length: int  # T
    source_length: int  # S
    head_dim: int
    size: int  # of a block, of queries as of keys
    settings: AttentionSettings

    @property
    def query_blocks(self) -> int:
        """In a row."""
        return pl.cdiv(self.length, self.size)

    @property
    def key_blocks(self) -> int:
        """In a row."""
        return pl.cdiv(self.source_length, self.size)

    def queries(self, step: Any) -> Span:
        """Those of a block."""
        return Span(step * self.size, self.size, self.length)

    def keys(self, step: Any) -> Span:
        """Those of a block."""
        return Span(step * self.size, self.size, self.source_length)

    def head(self) -> Span:
        """The columns of a head."""
        return Span(0, side(self.head_dim), self.head_dim)

    def scores(
        self, query: Array, key: Array, asking: Array, answering: Array, queries: Span, keys: Span
    ) -> tuple[Float32[Array, "Q S"], Bool[Array, "Q S"]]:
        """Scores, the least where a query may not look, and where it may; `asking` and `answering`
        are segments.
        """
        visible = (asking == answering) & (answering > 0)
        if self.settings.causal:
            visible = visible & (keys.places()[None, :] <= queries.places()[:, None])
        scores, inside = jnp.where(visible, product("QH,SH->QS", query, key), MASK_VALUE), keys.inside()
        # A row that may look nowhere looks everywhere, but not beyond the last key.
        return scores if inside is None else jnp.where(inside[None, :], scores, -jnp.inf), visible

    def mask(self, scalars: Any) -> Callable[[Span, Span], Bool[Array, "Q S"] | None]:
        """The dropout mask of this program's head, by queries and keys; to be asked for outside of
        loops.
        """
        row = (scalars[2] * jnp.uint32(self.batch) + _number(2)) * jnp.uint32(self.settings.num_heads) + _number(1)
        start = row * jnp.uint32(self.length)

        def kept(queries: Span, keys: Span) -> Bool[Array, "Q S"] | None:
            if self.settings.rate == 0.0:
                return None
            first, column = (jnp.asarray(each.first).astype(jnp.uint32) for each in (queries, keys))
            return mask_of((scalars[0], scalars[1]), start + first, (self.size, self.size), self.settings.rate, column)

        return kept


def _blocks(operands: tuple[Array, ...], settings: AttentionSettings) -> _Blocks:
    (batch, length, _, head_dim), source_length = operands[0].shape, operands[1].shape[1]
    return _Blocks(batch, length, source_length, head_dim, side(max(length, source_length), most_rows(operands[0].dtype)), settings)


def _number(axis: int) -> UInt32[Array, ""]:
    return pl.program_id(axis).astype(jnp.uint32)


def _run(
    kernel: Callable[..., None],
    blocks: _Blocks,
    scalars: Array,
    operands: tuple[Array, ...],
    more: tuple[Array, ...],
    results: list[jax.ShapeDtypeStruct],
    place: KernelTarget,
    num_blocks: int,
    *,
    name: str,
) -> tuple[Array, ...]:
    """Runs a kernel for each block of each head of each row of the batch; it sees that head of that
    row alone.
    """
    query, key, value, segments, source_segments = operands
    arrays = (query, key, value, segments.astype(jnp.int32)[..., None], source_segments.astype(jnp.int32)[:, None], *more)
    return launch(
        functools.partial(kernel, blocks),
        place,
        (scalars, *arrays),
        results,
        specs=([pl.BlockSpec(scalars.shape, lambda *_: (0,)), *map(_one_head, arrays)], [_one_head(each) for each in results]),
        grid=(num_blocks, blocks.settings.num_heads, blocks.batch),
        name=name,
        num_warps=4,
        num_stages=2,
    )


def _one_head(array: Any) -> pl.BlockSpec:
    """What a program sees of [B,T,N,H], of a figure a query [B,N,T,1], or of segments [B,T,1] or
    [B,1,S].
    """
    if array.ndim == 3:
        return pl.BlockSpec((None, *array.shape[1:]), lambda _, head, row: (row, 0, 0))
    if array.shape[3] == 1 and array.dtype == jnp.float32:
        return pl.BlockSpec((None, None, *array.shape[2:]), lambda _, head, row: (row, head, 0, 0))
    return pl.BlockSpec((None, array.shape[1], None, array.shape[3]), lambda _, head, row: (row, 0, head, 0))


def _forward_kernel(
    blocks: _Blocks,
    scalars: Any,
    query_ref: Any,
    key_ref: Any,
    value_ref: Any,
    segments: Any,
    source_segments: Any,
    out: Any,
    highest_ref: Any,
    inverse_ref: Any,
) -> None:
    queries, head, kept = blocks.queries(pl.program_id(0)), blocks.head(), blocks.mask(scalars)
    query, asking = load(query_ref, queries, head), load(segments, queries, Span.at(0))

    def add(step: Any, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        highest, total, values = carry
        keys = blocks.keys(step)
        answering = load(source_segments, Span.at(0), keys)
        scores, _ = blocks.scores(query, load(key_ref, keys, head), asking, answering, queries, keys)
        higher = jnp.maximum(highest, jnp.max(scores, axis=1, keepdims=True))
        powers, shrunk = jnp.exp(scores - higher), jnp.exp(highest - higher)
        weights = dropped(powers, kept(queries, keys), blocks.settings.rate).astype(value_ref.dtype)
        here = product("QS,SH->QH", weights, load(value_ref, keys, head))
        return higher, total * shrunk + jnp.sum(powers, axis=1, keepdims=True), values * shrunk + here

    column = jnp.zeros((blocks.size, 1), jnp.float32)
    start = (column - jnp.inf, column, jnp.zeros((blocks.size, head.size), jnp.float32))
    highest, total, values = jax.lax.fori_loop(0, blocks.key_blocks, add, start)
    store(out, queries, head, values / total)
    store(highest_ref, queries, Span.at(0), highest)
    store(inverse_ref, queries, Span.at(0), 1.0 / total)


def _query_kernel(
    blocks: _Blocks,
    scalars: Any,
    query_ref: Any,
    key_ref: Any,
    value_ref: Any,
    segments: Any,
    source_segments: Any,
    gradient_ref: Any,
    highest_ref: Any,
    inverse_ref: Any,
    along_ref: Any,
    by_query: Any,
) -> None:
    queries, head, kept = blocks.queries(pl.program_id(0)), blocks.head(), blocks.mask(scalars)
    query, gradient = (load(each, queries, head) for each in (query_ref, gradient_ref))
    asking, highest, inverse, along = (load(each, queries, Span.at(0)) for each in (segments, highest_ref, inverse_ref, along_ref))

    def add(step: Any, total: Array) -> Array:
        keys = blocks.keys(step)
        key, value = (load(each, keys, head) for each in (key_ref, value_ref))
        scores, visible = blocks.scores(query, key, asking, load(source_segments, Span.at(0), keys), queries, keys)
        by_weights = dropped(product("QH,SH->QS", gradient, value), kept(queries, keys), blocks.settings.rate)
        probabilities = jnp.exp(scores - highest) * inverse
        by_scores = jnp.where(visible, probabilities * (by_weights - along), 0.0).astype(key.dtype)
        return total + product("QS,SH->QH", by_scores, key)

    zeros = jnp.zeros((blocks.size, head.size), jnp.float32)
    store(by_query, queries, head, jax.lax.fori_loop(0, blocks.key_blocks, add, zeros))


def _key_kernel(
    blocks: _Blocks,
    scalars: Any,
    query_ref: Any,
    key_ref: Any,
    value_ref: Any,
    segments: Any,
    source_segments: Any,
    gradient_ref: Any,
    highest_ref: Any,
    inverse_ref: Any,
    along_ref: Any,
    by_key: Any,
    by_value: Any,
) -> None:
    keys, head, kept = blocks.keys(pl.program_id(0)), blocks.head(), blocks.mask(scalars)
    key, value = (load(each, keys, head) for each in (key_ref, value_ref))
    answering = load(source_segments, Span.at(0), keys)

    def add(step: Any, totals: tuple[Array, Array]) -> tuple[Array, Array]:
        # Beyond the last query all that is read is 0, `inverse` with the rest, and nothing is
        # added.
        queries = blocks.queries(step)
        query, gradient = (load(each, queries, head) for each in (query_ref, gradient_ref))
        asking, highest, inverse, along = (
            load(each, queries, Span.at(0)) for each in (segments, highest_ref, inverse_ref, along_ref)
        )
        scores, visible = blocks.scores(query, key, asking, answering, queries, keys)
        probabilities, mask = jnp.exp(scores - highest) * inverse, kept(queries, keys)
        weights = dropped(probabilities, mask, blocks.settings.rate).astype(gradient.dtype)
        by_weights = dropped(product("QH,SH->QS", gradient, value), mask, blocks.settings.rate)
        by_scores = jnp.where(visible, probabilities * (by_weights - along), 0.0).astype(query.dtype)
        return totals[0] + product("QS,QH->SH", by_scores, query), totals[1] + product("QS,QH->SH", weights, gradient)

    zeros = jnp.zeros((blocks.size, head.size), jnp.float32)
    key_total, value_total = jax.lax.fori_loop(0, blocks.query_blocks, add, (zeros, zeros))
    store(by_key, keys, head, key_total)
    store(by_value, keys, head, value_total)
