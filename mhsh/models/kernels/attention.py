"""Attention in one kernel forward and one backward: no scores and no dropout mask in memory.

FlashAttention (Dao et al. 2022, arXiv 2205.14135; Dao 2023, arXiv 2307.08691) with the dropout of
`models.dropout` inside. The scores of a block of queries and a block of keys are in registers.
Where a row is one block, the backward pass needs only queries, keys and values; else it also reads
the output and each query's log-sum-exp. `d_x` is the gradient of x.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float, Int

from mhsh.config.schema import ModelConfig
from mhsh.models.devices import shard_index
from mhsh.models.dropout import Seed, keep_mask, kept_scale, row_states
from mhsh.models.kernels.select import is_interpreted
from mhsh.models.saved import mark_saved

# A score that is not attended to, and the lowest maximum of a row: their difference's exp is 0.
_HIDDEN = float(jnp.finfo(jnp.float32).min)
_LOWEST = _HIDDEN / 2

# Sides of blocks, by what the registers hold (tests/models/kernels/test_attention.py asks
# the compiler) and what tensor cores multiply.
_WHOLE = 128  # rows up to here are one block in the backward pass
_BLOCK = 64
_LEAST = 16
_LEAST_WIDTH = 64
_WIDEST = 128


def attention_obstacle(config: ModelConfig) -> str:
    """The reason why no kernel computes the attention of this model; empty: one does."""
    return f"model.head_dim = {config.head_dim} is above {_WIDEST}" if config.head_dim > _WIDEST else ""


def attention(
    heads: tuple[Float[Array, "B _ _ H"], ...],
    segments: tuple[Int[Array, "B T"], Int[Array, "B S"]],
    seed: Seed,
    *,
    rate: float = 0.0,
    causal: bool = False,
    scale: float = 1.0,
) -> Float[Array, "B T N H"]:
    """dropout(softmax(scale Q K^T)) V for each head, on NVIDIA GPUs; elsewhere in Pallas's
    interpreter.

    A query attends to the keys of its segment, but not to padding (segment 0) and, if `causal`, to
    none behind it. At padding the result is 0. The dropout mask is that of `models.dropout` for
    weights [B,N,T,S].

    Args:
      heads: queries [B,T,N,H], keys and values [B,S,G,H] of any G that divides N; or one array
        [B,T,3N,H] of all three in this order.
      segments: of the queries and of the keys.
      seed: of the dropout; None: nothing is dropped.
      rate: the share of the weights that is dropped.
      causal: only where queries and keys are of the same tokens.
      scale: of the scores.
    """
    joint = len(heads) == 1
    length, num_heads, head_dim = heads[0].shape[1:]
    num_heads = num_heads // 3 if joint else num_heads
    num_keys, kv_heads = (length, num_heads) if joint else heads[1].shape[1:3]
    rate = 0.0 if seed is None else rate
    form = _Form(num_heads, kv_heads, length, num_keys, head_dim, joint, causal, rate, scale)
    return _attention(heads, segments, jnp.zeros(2, jnp.uint32) if seed is None else seed, form)


class _Form(NamedTuple):
    """The shapes and options that all programs of a kernel share."""

    num_heads: int  # N, of queries
    kv_heads: int  # G
    num_queries: int  # T
    num_keys: int  # S
    head_dim: int  # H
    joint: bool  # queries, keys and values are in one array
    causal: bool
    rate: float
    scale: float
    most_queries: int = _BLOCK  # in one block

    @property
    def is_whole(self) -> bool:
        """Whether a program of the backward pass sees all that a head of keys takes part in."""
        fits = max(self.num_queries, self.num_keys) <= _WHOLE and self.width == _LEAST_WIDTH
        return fits and self.num_heads == self.kv_heads

    @property
    def query_block(self) -> int:
        return min(self.most_queries, _block_side(self.num_queries))

    @property
    def key_block(self) -> int:
        return min(_WHOLE if self.is_whole else _BLOCK, _block_side(self.num_keys))

    @property
    def width(self) -> int:
        """Columns of a head in registers."""
        return max(_LEAST_WIDTH, _block_side(self.head_dim))

    @property
    def num_readers(self) -> int:
        """Heads of queries that read one head of keys."""
        return self.num_heads // self.kv_heads

    @property
    def num_operands(self) -> int:
        """Arrays that all kernels read."""
        return 5 if self.joint else 7

    @property
    def query_blocks(self) -> int:
        return pl.cdiv(self.num_queries, self.query_block)

    @property
    def key_blocks(self) -> int:
        return pl.cdiv(self.num_keys, self.key_block)


def _block_side(side: int) -> int:
    return max(_LEAST, pl.next_power_of_2(side))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _attention(heads: Any, segments: Any, seed: Array, form: _Form) -> Array:
    return _forward(heads, segments, seed, form)[0]


def _forward(heads: Any, segments: Any, seed: Array, form: _Form) -> tuple[Array, Any]:
    rows = heads[0].shape[0]
    shapes = [jax.ShapeDtypeStruct((rows, form.num_queries, form.num_heads, form.head_dim), heads[0].dtype)]
    if not form.is_whole:
        shapes.append(jax.ShapeDtypeStruct((rows, form.num_heads, form.num_queries), jnp.float32))
    results = _call(_forward_kernel, form, (rows, form.num_heads, form.query_blocks), shapes, (*heads, *segments, seed))
    # Here, so that policies of rematerialisation save what `_backward` reads (REMAT_POLICIES).
    results = [mark_saved(result, "context") for result in results]
    return results[0], (heads, segments, seed, () if form.is_whole else results)


def _backward(form: _Form, saved: Any, gradient: Array) -> tuple[Any, None, None]:
    heads, segments, seed, results = saved
    shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in heads]
    operands, rows = (*heads, *segments, seed, gradient), gradient.shape[0]
    if form.is_whole:
        form = form._replace(most_queries=_WHOLE)
        return tuple(_call(_whole_kernel, form, (rows, form.num_heads, 1), shapes, operands, num_warps=8)), None, None
    out, log_sums = results
    means = jnp.einsum("BTNH,BTNH->BNT", gradient, out, preferred_element_type=jnp.float32)
    form = form._replace(most_queries=_BLOCK if form.width == _LEAST_WIDTH else _BLOCK // 2)
    grid = (rows, form.kv_heads, max(form.query_blocks, form.key_blocks))
    return tuple(_call(_blocks_kernel, form, grid, shapes, (*operands, log_sums, means))), None, None


_attention.defvjp(_forward, _backward)


def _call(
    kernel: Any, form: _Form, grid: tuple[int, ...], shapes: list[Any], operands: tuple[Array, ...], num_warps: int = 4
) -> Any:
    """`kernel` for each row, head and block. A program has all arrays whole, and takes its part."""
    first_row = shard_index() * jnp.uint32(grid[0] * form.num_heads * form.num_queries)
    return pl.pallas_call(
        functools.partial(kernel, form),
        grid=grid,
        out_shape=shapes,
        interpret=is_interpreted(),
        # A second stage of the backward pass does not fit into the registers.
        compiler_params=triton.CompilerParams(num_warps=num_warps, num_stages=2 if kernel is _forward_kernel else 1),
        name=f"attention{kernel.__name__.removesuffix('_kernel')}",
    )(first_row[None], *operands)


class _Queries(NamedTuple):
    """A block of queries of one head."""

    rows: _Place
    states: tuple[Array, Array]  # of their weights' dropout
    query: Array


class _Keys(NamedTuple):
    """A block of keys of one head."""

    columns: _Place
    key: Array
    value: Array


class _Row:
    """The queries, keys and values that the programs of one row of the batch read, by blocks."""

    def __init__(self, form: _Form, refs: tuple[Any, ...]) -> None:
        self.form, self.row = form, pl.program_id(0)
        self.first_row, *heads, self.query_segments, self.key_segments, self.seed = refs
        self.query, self.key, self.value = _heads(form, heads)

    def queries(self, number: Array, head: Array) -> _Queries:
        form = self.form
        rows = _place(self.row, number, form.query_block, form.num_queries, self.query_segments)
        # Of the rows of the weights [B,N,T,S].
        numbers = (self.row * form.num_heads + head) * form.num_queries + rows.places
        states = row_states((self.seed[0], self.seed[1]), self.first_row[0] + numbers.astype(jnp.uint32))
        return _Queries(rows, states, self.query.load(form, self.row, head, rows))

    def keys(self, number: Array, head: Array) -> _Keys:
        form = self.form
        columns = _place(self.row, number, form.key_block, form.num_keys, self.key_segments)
        return _Keys(columns, self.key.load(form, self.row, head, columns), self.value.load(form, self.row, head, columns))


def _forward_kernel(form: _Form, *refs: Any) -> None:
    """A block of queries of a head: its output and, for `_blocks_kernel`, its log-sum-exps."""
    count = form.num_operands
    row, (out, *log_sums) = _Row(form, refs[:count]), refs[count:]
    head, number = pl.program_id(1), pl.program_id(2)
    queries = row.queries(number, head)
    shared = jax.lax.div(head, form.num_readers)

    def add(number: Array, sums: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        top, total, mean = sums
        keys = row.keys(number, shared)
        scores = _scores(form, queries, keys, 1)
        new_top = jnp.maximum(top, jnp.max(scores, axis=1))
        weights = jnp.exp2(scores - new_top[:, None])
        shrunk = jnp.exp2(top - new_top)
        total = shrunk * total + jnp.sum(weights, axis=1)
        kept = jnp.maximum(_sign_by_dropout(form, queries, keys, weights, 1), 0.0).astype(keys.value.dtype)
        return new_top, total, shrunk[:, None] * mean + triton.dot(kept, keys.value)

    zeros = jnp.zeros(form.query_block, jnp.float32)
    start = (zeros + _LOWEST, zeros, jnp.zeros((form.query_block, form.width), jnp.float32))
    end = pl.cdiv((number + 1) * form.query_block, form.key_block) if form.causal else form.key_blocks
    top, total, mean = jax.lax.fori_loop(0, end, add, start)
    total = _divisor(total)
    _Heads(out).store(form, row.row, head, queries.rows, mean * (kept_scale(form.rate) / total)[:, None])
    if log_sums:
        triton.store(log_sums[0].at[row.row, head, queries.rows.block], top + jnp.log2(total), mask=queries.rows.inside)


def _whole_kernel(form: _Form, *refs: Any) -> None:
    """The gradients of all queries, keys and values of a head, each stored as soon as it is made.
    Weights are [keys, queries] here: so Triton computes them once, and turns none of them.
    """
    count = form.num_operands
    row, gradient, outs = _Row(form, refs[:count]), _Heads(refs[count]), _heads(form, refs[count + 1 :])
    head, number = pl.program_id(1), pl.program_id(2)
    queries, keys = row.queries(number, head), row.keys(number, head)
    d_out = gradient.load(form, row.row, head, queries.rows)
    scores = _scores(form, queries, keys, 0)
    weights = jnp.exp2(scores - jnp.maximum(jnp.max(scores, axis=0), _LOWEST))
    weights = _sign_by_dropout(form, queries, keys, weights * (1 / _divisor(jnp.sum(weights, axis=0))), 0)
    kept = jnp.maximum(weights, 0.0)
    outs[2].store(form, row.row, head, keys.columns, triton.dot(kept.astype(d_out.dtype), d_out) * kept_scale(form.rate))
    d_weights = kept * (triton.dot(keys.value, d_out, trans_b=True) * kept_scale(form.rate))
    d_scores = d_weights - jnp.abs(weights) * jnp.sum(d_weights, axis=0)
    d_scores = (d_scores * form.scale).astype(d_out.dtype)
    outs[1].store(form, row.row, head, keys.columns, triton.dot(d_scores, queries.query))
    outs[0].store(form, row.row, head, queries.rows, triton.dot(keys.key, d_scores, trans_a=True).T)


def _blocks_kernel(form: _Form, *refs: Any) -> None:
    """The gradients of a block of keys and values of a head, and then of as many queries of every
    head that reads them. Weights are [keys, queries].
    """
    count = form.num_operands
    row, outs = _Row(form, refs[:count]), _heads(form, refs[count + 3 :])
    gradient, (log_sums, means) = _Heads(refs[count]), refs[count + 1 : count + 3]
    shared, number = pl.program_id(1), pl.program_id(2)

    def score_gradients(queries: _Queries, keys: _Keys, head: Array) -> tuple[Array, Array, Array]:
        """The gradient of the output, the weights that are kept, and the gradient of the scores."""
        rows = queries.rows
        log_sum, mean = (_load(ref.at[row.row, head, rows.block], rows.inside) for ref in (log_sums, means))
        d_out = gradient.load(form, row.row, head, rows)
        weights = _sign_by_dropout(form, queries, keys, jnp.exp2(_scores(form, queries, keys, 0) - log_sum), 0)
        kept = jnp.maximum(weights, 0.0)
        d_weights = kept * (triton.dot(keys.value, d_out, trans_b=True) * kept_scale(form.rate))
        d_scores = (d_weights - jnp.abs(weights) * mean) * form.scale
        return d_out, kept.astype(d_out.dtype), d_scores.astype(d_out.dtype)

    keys = row.keys(number, shared)

    def add_head(reader: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        head = shared * form.num_readers + reader

        def add_queries(number: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            queries = row.queries(number, head)
            d_out, kept, d_scores = score_gradients(queries, keys, head)
            return sums[0] + triton.dot(d_scores, queries.query), sums[1] + triton.dot(kept, d_out)

        first = number * form.key_block // form.query_block if form.causal else 0
        return jax.lax.fori_loop(first, form.query_blocks, add_queries, sums)

    def store_queries(reader: Array, _: None) -> None:
        head = shared * form.num_readers + reader
        queries = row.queries(number, head)

        def add_keys(number: Array, d_query: Array) -> Array:
            keys = row.keys(number, shared)
            return d_query + triton.dot(keys.key, score_gradients(queries, keys, head)[2], trans_a=True)

        end = pl.cdiv((number + 1) * form.query_block, form.key_block) if form.causal else form.key_blocks
        d_query = jax.lax.fori_loop(0, end, add_keys, jnp.zeros((form.width, form.query_block), jnp.float32))
        outs[0].store(form, row.row, head, queries.rows, d_query.T)

    zeros = jnp.zeros((form.key_block, form.width), jnp.float32)
    d_key, d_value = jax.lax.fori_loop(0, form.num_readers, add_head, (zeros, zeros))
    outs[1].store(form, row.row, shared, keys.columns, d_key)
    outs[2].store(form, row.row, shared, keys.columns, d_value * kept_scale(form.rate))
    jax.lax.fori_loop(0, form.num_readers, store_queries, None)


def _scores(form: _Form, queries: _Queries, keys: _Keys, axis: int) -> Array:
    """The scores in units of log 2, as a GPU has the power of 2. `axis` is that of the keys."""
    rows, columns = queries.rows, keys.columns
    visible = _align(rows.segments, 1 - axis) == _align(jnp.where(columns.segments > 0, columns.segments, -1), axis)
    if form.causal:
        visible &= _align(columns.places, axis) <= _align(rows.places, 1 - axis)
    left, right = (queries.query, keys.key) if axis else (keys.key, queries.query)
    scores = triton.dot(left, right, trans_b=True) * (form.scale * math.log2(math.e))
    return jnp.where(visible, scores, _HIDDEN)


def _sign_by_dropout(form: _Form, queries: _Queries, keys: _Keys, weights: Array, axis: int) -> Array:
    """Weights, negative where dropout takes them away: the backward pass reads both kinds, and the
    registers do not hold two arrays.
    """
    if not form.rate:
        return weights
    first, second = (_align(state, 1 - axis) for state in queries.states)
    kept = keep_mask((first, second), _align(keys.columns.places.astype(jnp.uint32), axis), form.rate)
    return jnp.where(kept, weights, -weights)


def _align(vector: Array, axis: int) -> Array:
    """A vector as a column (0) or a row (1)."""
    return vector[:, None] if axis == 0 else vector[None, :]


def _divisor(weights: Array) -> Array:
    """The divisor of the sums of weights: 1 for a query at padding, which has no weights."""
    return jnp.where(weights == 0.0, 1.0, weights)


class _Place(NamedTuple):
    """A block of queries or keys in its row."""

    block: Any
    places: Array
    inside: Array  # False behind the row's end
    segments: Array  # 0 there


def _place(row: Array, number: Array, size: int, length: int, segments: Any) -> _Place:
    places = number * size + jnp.arange(size, dtype=jnp.int32)
    block, inside = pl.ds(number * size, size), places < length
    return _Place(block, places, inside, _load(segments.at[row, block], inside))


class _Heads(NamedTuple):
    """Heads in an array that may hold others before them."""

    ref: Any
    first: int = 0

    def load(self, form: _Form, row: Array, head: Array, place: _Place) -> Array:
        return _load(*self._part(form, row, head, place))

    def store(self, form: _Form, row: Array, head: Array, place: _Place, values: Array) -> None:
        part, inside = self._part(form, row, head, place)
        triton.store(part, values.astype(self.ref.dtype), mask=inside)

    def _part(self, form: _Form, row: Array, head: Array, place: _Place) -> tuple[Any, Array]:
        inside = place.inside[:, None] & (jnp.arange(form.width, dtype=jnp.int32) < form.head_dim)[None, :]
        # A block may be wider than the head: as long as jax does not see where it starts.
        columns = pl.ds(jnp.zeros((), jnp.int32), form.width)
        return self.ref.at[row, place.block, self.first + head, columns], inside


def _heads(form: _Form, arrays: Sequence[Any]) -> tuple[_Heads, _Heads, _Heads]:
    """Queries, keys and values."""
    query, key, value = (_Heads(arrays[0], part * form.num_heads) for part in range(3)) if form.joint else map(_Heads, arrays)
    return query, key, value


def _load(part: Any, inside: Array) -> Array:
    return triton.load(part, mask=inside, other=0)
