"""The kernels around a sublayer: what it puts out is added to the residual stream, and the sum
normalised.

    s = weight * x + dropout(product + bias),  y = LN(s)

Forward and backward, each array of a row is read once and written once. Where y is the stream
(Post-LN and its kin), a copy of it in the compute dtype goes to the next sublayer; where s is
(Pre-LN), y itself does. The backward pass adds up the gradients of the vectors over the rows of
each program; XLA adds up those sums.

Each kernel loads blocks of rows, calls a function of arrays, and stores. Pallas compiles them with
Triton, whose arrays have a power of 2 of elements: other widths are loaded with columns of zeros.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Bool, Float, UInt32

from mhsh.config.schema import ModelConfig
from mhsh.models.devices import shard_index
from mhsh.models.dropout import drop, keep, row_states
from mhsh.models.kernels.select import is_interpreted
from mhsh.models.sublayer import Branch

WIDEST = 4096  # columns of a row that the registers hold, with all that is computed of them
_PARAMS = triton.CompilerParams(num_warps=8, num_stages=2)
_FORWARD_ELEMENTS = 8192  # of each array that a program holds at once
_BACKWARD_ELEMENTS = 4096
_SUMMED_ROWS = 16  # of which a program of the backward pass adds up the gradients of the vectors


class Join(NamedTuple):
    """What the kernels are compiled for."""

    weight: float | None  # of x; None: a vector, which is trained
    normed_stream: bool  # whether y is the stream, or s
    rate: float
    epsilon: float
    centred: bool  # LayerNorm, or RMSNorm
    copy_dtype: str  # of what the next sublayer reads

    stream_dtype: str

    @property
    def num_vectors(self) -> int:
        """The bias of the sublayer, the bias and scale of the norm, a weight that is trained."""
        return 3 + (self.weight is None)

    @property
    def copies(self) -> bool:
        """Whether what the next sublayer reads is another array than the stream."""
        return not self.normed_stream or self.stream_dtype != self.copy_dtype


def uncovered(config: ModelConfig) -> str:
    """Why the kernels cannot add to the stream of this model; empty: they can."""
    if config.embed_dim % 128 or config.embed_dim > WIDEST:
        return f"model.embed_dim = {config.embed_dim} is no multiple of 128 up to {WIDEST}"
    return ""


def copies(config: ModelConfig) -> bool:
    """Whether a stream that is normalised is another array than what the next sublayer reads."""
    return config.residual_dtype != config.compute_dtype


def add_and_norm(
    config: ModelConfig,
    x: Float[Array, "B T D"],
    read: Float[Array, "B T D"],
    branch: Branch,
    scale: Float[Array, " D"],
    bias: Float[Array, " D"],
    weight: Float[Array, " D"] | float,
    *,
    normed_stream: bool,
) -> tuple[Float[Array, "B T D"], Float[Array, "B T D"]]:
    """The stream after a sublayer, and what the next one reads.

    Args:
      read: x as the sublayer read it; the gradient of a weight that is a vector is taken of it.
      branch: what the sublayer puts out.
      normed_stream: whether y is the stream, or s.
    """
    fixed = isinstance(weight, float)
    join = Join(
        weight=weight if fixed else None,
        normed_stream=normed_stream,
        rate=config.hidden_dropout if branch.seed is not None else 0.0,
        epsilon=config.layer_norm_epsilon,
        centred=config.norm == "layer",
        copy_dtype=config.compute_dtype,
        stream_dtype=config.residual_dtype,
    )
    seed = jnp.zeros(2, jnp.uint32) if branch.seed is None else branch.seed
    rows = [each.reshape(-1, x.shape[-1]) for each in (x, read, branch.product)]
    # In the order of mhsh/models/vectors.py, where they are neighbours: XLA slices them in one.
    vectors = jnp.concatenate([branch.bias, bias, scale, *([] if fixed else [weight])]).reshape(-1, x.shape[-1])
    first_row = (shard_index() * jnp.uint32(math.prod(x.shape[:-1])))[None]  # of this shard, in the whole batch
    stream, copy = _join(join, *rows, vectors, seed, first_row)
    return stream.reshape(x.shape), (copy if join.copies else stream).reshape(x.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _join(join: Join, x: Array, read: Array, product: Array, vectors: Array, seed: Array, first_row: Array) -> tuple[Array, Array]:
    del read
    stream, copy, _, _ = _forward_call(join, x, product, vectors, seed, first_row)
    return stream, copy


def _forward(
    join: Join, x: Array, read: Array, product: Array, vectors: Array, seed: Array, first_row: Array
) -> tuple[tuple[Array, Array], tuple[Any, ...]]:
    stream, copy, normed, inverse = _forward_call(join, x, product, vectors, seed, first_row)
    if join.copies:
        copy = checkpoint_name(copy, "normed")
    kept = (checkpoint_name(normed, "normed"), checkpoint_name(inverse, "normed"))
    return (stream, copy), (read if join.weight is None else None, *kept, vectors, seed, first_row)


def _backward(join: Join, saved: tuple[Any, ...], gradients: tuple[Array, Array]) -> tuple[Array | None, ...]:
    of_x, of_product, of_vectors = _backward_call(join, *gradients, *saved)
    return of_x, None, of_product, of_vectors, None, None


_join.defvjp(_forward, _backward)


class _Rows(NamedTuple):
    """Blocks of rows, as a kernel holds them: `count` of them at once, with columns of zeros."""

    count: int
    width: int
    padded: int

    def spec(self, count: int) -> pl.BlockSpec:
        """Of an array [M,D] of which a program has `count` rows."""
        return pl.BlockSpec((count, self.padded), lambda program: (program, 0))

    def columns(self) -> UInt32[Array, "1 W"]:
        """Their numbers."""
        return jax.lax.broadcasted_iota(jnp.uint32, (1, self.padded), 1)

    def real(self, count: int) -> Bool[Array, "M W"] | None:
        """True at the columns that are none of padding; None where there is no padding."""
        if self.width == self.padded:
            return None
        return jax.lax.broadcasted_iota(jnp.int32, (count, self.padded), 1) < self.width

    def load(self, ref: Any, first: Any, count: int = 0) -> Float[Array, "M W"]:
        """Rows in fp32, `count` (0: as many as there are at once) from `first` on."""
        count = count or self.count
        at, real = ref.at[pl.ds(first, count), :], self.real(count)
        return (triton.load(at) if real is None else triton.load(at, mask=real, other=0.0)).astype(jnp.float32)

    def store(self, ref: Any, first: Any, block: Float[Array, "M W"]) -> None:
        """Writes rows in the array's dtype."""
        count = block.shape[0]
        triton.store(ref.at[pl.ds(first, count), :], block.astype(ref.dtype), mask=self.real(count))


def _vectors(rows: _Rows, ref: Any) -> list[Float[Array, "1 W"]]:
    return [rows.load(ref, number, 1) for number in range(ref.shape[0])]


def _weight(join: Join, vectors: list[Array]) -> Array | float:
    return vectors[3] if join.weight is None else join.weight


def _kept(join: Join, rows: _Rows, seed_ref: Any, first: Array) -> Bool[Array, "M W"] | None:
    """Which elements dropout keeps in the rows from `first` on, all alike with XLA's path."""
    if not join.rate:
        return None
    numbers = first + jax.lax.broadcasted_iota(jnp.uint32, (rows.count, 1), 0)
    return keep(row_states((seed_ref[0], seed_ref[1]), numbers), rows.columns(), join.rate)


def _dropped(join: Join, block: Array, kept: Array | None) -> Array:
    return block if kept is None else drop(block, kept, join.rate)


def _sum_and_norm(
    join: Join, rows: _Rows, x: Array, product: Array, kept: Array | None, vectors: list[Array]
) -> tuple[Array, Array, Array, Array]:
    """s, y, and of the backward pass s normalised and the factor of each row. The product is in its
    own dtype, which what is dropped is rounded to.
    """
    bias, shift, scale = vectors[:3]
    out = _dropped(join, product + bias.astype(product.dtype), kept)
    s = _weight(join, vectors) * x + out.astype(jnp.float32)
    centred, real = s, rows.real(rows.count)
    if join.centred:
        centred = s - jnp.sum(s, axis=1, keepdims=True) * (1.0 / rows.width)
        centred = centred if real is None else jnp.where(real, centred, 0.0)
    inverse = jax.lax.rsqrt(jnp.sum(centred * centred, axis=1, keepdims=True) * (1.0 / rows.width) + join.epsilon)
    normed = centred * inverse
    return s, normed * scale + shift, normed, inverse


def _forward_kernel(
    join: Join,
    rows: _Rows,
    x_ref: Any,
    product_ref: Any,
    vectors_ref: Any,
    seed_ref: Any,
    first_ref: Any,
    stream_ref: Any,
    normed_ref: Any,
    inverse_ref: Any,
    *copy_ref: Any,
) -> None:
    x, product = rows.load(x_ref, 0), rows.load(product_ref, 0).astype(product_ref.dtype)
    first = first_ref[0] + jnp.uint32(rows.count) * pl.program_id(0).astype(jnp.uint32)
    vectors, kept = _vectors(rows, vectors_ref), _kept(join, rows, seed_ref, first)

    s, y, normed, inverse = _sum_and_norm(join, rows, x, product, kept, vectors)

    rows.store(stream_ref, 0, y if join.normed_stream else s)
    for ref in copy_ref:
        rows.store(ref, 0, y)
    rows.store(normed_ref, 0, normed)
    inverse_ref[...] = inverse[:, 0]


def _forward_call(
    join: Join, x: Array, product: Array, vectors: Array, seed: Array, first_row: Array
) -> tuple[Array, Array, Array, Array]:
    """The stream, what the next sublayer reads, s normalised, and the factor of each row."""
    rows = _rows(x, _FORWARD_ELEMENTS, limit=x.shape[0])
    block, row = rows.spec(rows.count), pl.BlockSpec((rows.count,), lambda program: (program,))
    copies = [jax.ShapeDtypeStruct(x.shape, join.copy_dtype)] if join.copies else []
    stream, normed, inverse, *copy = pl.pallas_call(
        functools.partial(_forward_kernel, join, rows),
        grid=(x.shape[0] // rows.count,),
        in_specs=[block, block, *_alike(rows, vectors)],
        out_specs=[block, block, row, *(block for _ in copies)],
        out_shape=[
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            jax.ShapeDtypeStruct(x.shape, join.copy_dtype),
            jax.ShapeDtypeStruct(x.shape[:1], jnp.float32),
            *copies,
        ],
        name="residual_forward",
        compiler_params=_PARAMS,
        interpret=is_interpreted(),
    )(x, product, vectors, seed, first_row)
    return stream, copy[0] if copy else stream, normed, inverse


def _gradients(
    join: Join, rows: _Rows, of_stream: Array, of_copy: Array | None, normed: Array, inverse: Array, scale: Array
) -> tuple[Array, Array]:
    """Of y, and of s."""
    streams = ([of_stream] if join.normed_stream else []) + ([] if of_copy is None else [of_copy])
    of_y = functools.reduce(jnp.add, streams)
    scaled = of_y * scale
    projection = jnp.sum(scaled * normed, axis=1, keepdims=True) * (1.0 / rows.width)
    centred = scaled - jnp.sum(scaled, axis=1, keepdims=True) * (1.0 / rows.width) if join.centred else scaled
    of_s = inverse * (centred - normed * projection)
    return of_y, of_s if join.normed_stream else of_stream + of_s


def _backward_kernel(
    join: Join,
    rows: _Rows,
    steps: int,
    of_stream_ref: Any,
    normed_ref: Any,
    inverse_ref: Any,
    vectors_ref: Any,
    seed_ref: Any,
    first_ref: Any,
    *refs: Any,
) -> None:
    *also, of_x_ref, of_product_ref, sums_ref = refs
    copy_ref = also.pop(0) if join.copies else None
    read_ref = also.pop(0) if join.weight is None else None
    vectors = _vectors(rows, vectors_ref)
    first = first_ref[0] + jnp.uint32(rows.count * steps) * pl.program_id(0).astype(jnp.uint32)

    def step(number: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        at = number * rows.count
        of_stream, normed = rows.load(of_stream_ref, at), rows.load(normed_ref, at)
        of_copy = None if copy_ref is None else rows.load(copy_ref, at)
        inverse = triton.load(inverse_ref.at[pl.ds(at, rows.count)])[:, None]
        kept = _kept(join, rows, seed_ref, first + jnp.uint32(rows.count) * number.astype(jnp.uint32))

        of_y, of_s = _gradients(join, rows, of_stream, of_copy, normed, inverse, vectors[2])
        of_product = _dropped(join, of_s.astype(of_product_ref.dtype), kept)
        of_vectors = [of_product.astype(jnp.float32), of_y, of_y * normed]

        rows.store(of_x_ref, at, _weight(join, vectors) * of_s)
        rows.store(of_product_ref, at, of_product)
        if read_ref is not None:
            of_vectors.append(of_s * rows.load(read_ref, at))
        return tuple(total + jnp.sum(one, axis=0, keepdims=True) for total, one in zip(sums, of_vectors, strict=True))

    zeros = jnp.zeros((1, rows.padded), jnp.float32)
    sums = jax.lax.fori_loop(0, steps, step, (zeros,) * join.num_vectors)
    for number, total in enumerate(sums):
        rows.store(sums_ref, number, total)


def _backward_call(
    join: Join,
    of_stream: Array,
    of_copy: Array,
    read: Array | None,
    normed: Array,
    inverse: Array,
    vectors: Array,
    seed: Array,
    first_row: Array,
) -> tuple[Array, Array, Array]:
    """The gradients of x, of the product and of the vectors."""
    total, width = of_stream.shape
    a_program = math.gcd(total, _SUMMED_ROWS)
    rows = _rows(of_stream, _BACKWARD_ELEMENTS, limit=a_program)
    block, row = rows.spec(a_program), pl.BlockSpec((a_program,), lambda program: (program,))
    also = ([of_copy] if join.copies else []) + ([] if read is None else [read])
    of_x, of_product, sums = pl.pallas_call(
        functools.partial(_backward_kernel, join, rows, a_program // rows.count),
        grid=(total // a_program,),
        in_specs=[block, block, row, *_alike(rows, vectors), *(block for _ in also)],
        out_specs=[block, block, rows.spec(len(vectors))],
        out_shape=[
            jax.ShapeDtypeStruct(of_stream.shape, of_stream.dtype),
            jax.ShapeDtypeStruct(of_stream.shape, join.copy_dtype),
            jax.ShapeDtypeStruct((total // a_program * len(vectors), width), jnp.float32),
        ],
        name="residual_backward",
        compiler_params=_PARAMS,
        interpret=is_interpreted(),
    )(of_stream, normed, inverse, vectors, seed, first_row, *also)
    return of_x, of_product, jnp.sum(sums.reshape(-1, *vectors.shape), axis=0)


def _rows(x: Array, elements: int, limit: int) -> _Rows:
    """As many rows as a program may hold of each array: a power of 2 that divides `limit`."""
    padded = pl.next_power_of_2(x.shape[1])
    return _Rows(math.gcd(limit, max(1, elements // padded)), x.shape[1], padded)


def _alike(rows: _Rows, vectors: Array) -> list[pl.BlockSpec]:
    """Of what all programs read: the vectors, the seed and the number of the first row."""
    ends = [pl.BlockSpec((size,), lambda program: (0,)) for size in (2, 1)]
    return [pl.BlockSpec((len(vectors), rows.padded), lambda program: (0, 0)), *ends]
