"""The join to the residual stream on a GPU: tile by tile of a row, the product before it in the
same kernel where it is narrow.

A row of D = 1,024 sums in fp32 does not fit a program's registers beside anything else. So a
program goes over its rows' tiles
twice: once for their means and variances, once for what it writes; what lies between is computed
again, which is cheap where the product before the join has few terms. Gradients by matrices are
left to XLA's products, the best that there are.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Bool, Float, Float32

from mhsh.kernels.dropout import Seed
from mhsh.kernels.gpu.tiles import Span, launch, load, most_rows, product, side, store
from mhsh.kernels.residual_norm import Norm, Vectors, gradients_by, stacked, summed, through_norm, unstacked
from mhsh.kernels.rows import KernelTarget, mask_of, over_shards
from mhsh.kernels.settings import JoinSettings

# A program's tile of a product's factors has 512 bytes a row at most: 64 KiB for 128 columns.
NARROW_BYTES = 512
# Columns of a tile beside a product: what the registers hold without spilling, by ptxas for sm_90a.
FORWARD_TILE, BACKWARD_TILE = 64, 32
FLAT_ROWS = 16  # of a program that multiplies nothing


@dataclasses.dataclass(frozen=True)
class Walk:
    """The rows of a program, and the tiles in which it goes over their columns."""

    num_rows: int  # of the array
    block_rows: int
    width: int  # D
    tile: int
    rate: float
    epsilon: float

    @property
    def num_programs(self) -> int:
        """One after the other over the rows."""
        return pl.cdiv(self.num_rows, self.block_rows)

    @property
    def num_tiles(self) -> int:
        """Over the columns."""
        return pl.cdiv(self.width, self.tile)

    def rows(self) -> Span:
        """Those of this program; to be asked for outside of loops."""
        return Span(pl.program_id(0) * self.block_rows, self.block_rows, self.num_rows)

    def columns(self, step: Any) -> Span:
        """Those of a tile."""
        return Span(step * self.tile, self.tile, self.width)

    def vectors(self, reference: Any, columns: Span) -> Vectors:
        """A tile of the join's parameters, of a reference to [4, D]."""
        return Vectors(*(load(reference, Span.at(row), columns) for row in range(4)))

    def kept(self, scalars: Any, rows: Span, columns: Span) -> Bool[Array, "R C"] | None:
        """The dropout mask of a tile; None where nothing is dropped."""
        if self.rate == 0.0:
            return None
        first = scalars[2] * jnp.uint32(self.num_rows) + jnp.asarray(rows.first, jnp.uint32)
        shape = (self.block_rows, self.tile)
        return mask_of((scalars[0], scalars[1]), first, shape, self.rate, jnp.asarray(columns.first, jnp.uint32))


BranchOf = Callable[[Span], Float32[Array, "R C"]]  # what a program joins, without its bias, by the columns


def is_narrow(num_inputs: int, dtype: Any) -> bool:
    """Whether a product over so many terms runs inside the kernel."""
    return side(num_inputs) * jnp.dtype(dtype).itemsize <= NARROW_BYTES


def walk_of(rows: Float[Array, "R D"], settings: JoinSettings, *, narrow: bool, tile: int) -> Walk:
    """The tiles of a join: tall ones where a product feeds the matrix units, flat ones where memory
    alone is the limit.
    """
    num_rows, width = rows.shape
    tall = side(num_rows, most_rows(settings.dtype))
    block_rows, tile = (tall, side(width, tile)) if narrow else (FLAT_ROWS, side(width, 256))
    return Walk(num_rows, block_rows, width, tile, settings.rate, settings.epsilon)


@functools.partial(jax.custom_vjp, nondiff_argnums=(6, 7))
def out_proj_residual_norm(
    x: Float[Array, "B T D"],
    context: Float[Array, "B T C"],
    kernel: Float32[Array, "C D"],
    bias: Float32[Array, " D"],
    norm: Norm,
    seed: Seed,
    settings: JoinSettings,
    place: KernelTarget,
) -> Float[Array, "B T D"]:
    """LN(omega * x + dropout(context W + b)); a product of more terms than `is_narrow` allows is
    XLA's.
    """

    def local(scalars: Array, rows: tuple[Array, ...], whole: tuple[Array, ...]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        (x, context), (kernel, vectors) = rows, whole
        return (join_rows(scalars, x, context, kernel, vectors, settings, place),), ()

    whole = (kernel.astype(settings.dtype), stacked(norm, bias))
    return over_shards(local, place, seed, (x, context), whole)[0][0]


def _forward(
    x: Float[Array, "B T D"],
    context: Float[Array, "B T C"],
    kernel: Float32[Array, "C D"],
    bias: Float32[Array, " D"],
    norm: Norm,
    seed: Seed,
    settings: JoinSettings,
    place: KernelTarget,
) -> tuple[Float[Array, "B T D"], tuple[Any, ...]]:
    operands = (x, context, kernel, bias, norm, seed)
    return out_proj_residual_norm(*operands, settings, place), operands


def _backward(
    settings: JoinSettings, place: KernelTarget, saved: tuple[Any, ...], gradient: Float[Array, "B T D"]
) -> tuple[Array | Norm | None, ...]:
    x, context, kernel, bias, norm, seed = saved

    def local(scalars: Array, rows: tuple[Array, ...], whole: tuple[Array, ...]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        (x, context, gradient), (kernel, vectors) = rows, whole
        past, by_context, *sums = join_rows_backward(scalars, x, context, gradient, kernel, vectors, settings, place)
        return (past, by_context), tuple(sums)

    whole = (kernel.astype(settings.dtype), stacked(norm, bias))
    (by_x, by_context), (by_kernel, by_vectors) = over_shards(local, place, seed, (x, context, gradient), whole)
    by_norm, by_bias = unstacked(by_vectors)
    return by_x, by_context, by_kernel, by_bias, by_norm, None


out_proj_residual_norm.defvjp(_forward, _backward)


def join_rows(
    scalars: Array,
    x: Float[Array, "B T D"],
    context: Float[Array, "B T C"],
    kernel: Float[Array, "C D"],
    vectors: Float32[Array, "4 D"],
    settings: JoinSettings,
    place: KernelTarget,
) -> Float[Array, "B T D"]:
    """`out_proj_residual_norm` on one device; `kernel` is in the dtype of `context`."""
    flat, source, walk = _operands(x, context, kernel, settings, FORWARD_TILE)
    (y,) = launch(
        functools.partial(_forward_kernel, walk),
        place,
        (scalars, vectors, flat, *source),
        [jax.ShapeDtypeStruct(flat.shape, x.dtype)],
        grid=(walk.num_programs,),
        name="join",
        num_warps=8,
        num_stages=2,
    )
    return y.reshape(x.shape)


def join_rows_backward(
    scalars: Array,
    x: Float[Array, "B T D"],
    context: Float[Array, "B T C"],
    gradient: Float[Array, "B T D"],
    kernel: Float[Array, "C D"],
    vectors: Float32[Array, "4 D"],
    settings: JoinSettings,
    place: KernelTarget,
) -> tuple[Float[Array, "B T D"], Float[Array, "B T C"], Float32[Array, "C D"], Float32[Array, "4 D"]]:
    """The gradients by x (past the branch), context, kernel and vectors on one device."""
    flat, source, walk = _operands(x, context, kernel, settings, BACKWARD_TILE)
    num_rows, width = flat.shape
    narrow = len(source) == 2
    past, by_branch, parts, *rest = launch(
        functools.partial(_backward_kernel, walk),
        place,
        (scalars, vectors, flat, gradient.reshape(num_rows, width), *source),
        [
            jax.ShapeDtypeStruct(flat.shape, x.dtype),
            jax.ShapeDtypeStruct(flat.shape, settings.dtype),
            jax.ShapeDtypeStruct((4 * walk.num_programs, width), jnp.float32),
            *([jax.ShapeDtypeStruct(source[0].shape, context.dtype)] if narrow else []),
        ],
        grid=(walk.num_programs,),
        name="join_backward",
        num_warps=8,
        num_stages=2,
    )
    by_context = rest[0] if narrow else product("RD,CD->RC", by_branch, kernel)
    by_kernel = product("RC,RD->CD", context.reshape(num_rows, -1), by_branch)
    by_vectors = parts.reshape(-1, 4, width).sum(axis=0)
    return past.reshape(x.shape), by_context.astype(context.dtype).reshape(context.shape), by_kernel, by_vectors


def joined_tiles(walk: Walk, scalars: Any, vectors_ref: Any, x_ref: Any, branch_of: BranchOf, y_ref: Any) -> None:
    """Inside a kernel: the join of this program's rows."""
    rows = walk.rows()

    def sums(columns: Span, vectors: Vectors) -> Array:
        x = load(x_ref, rows, columns).astype(jnp.float32)
        return summed(x, branch_of(columns), vectors, walk.kept(scalars, rows, columns), walk.rate)

    def measure(step: Any, pooled: Any) -> Any:
        columns = walk.columns(step)
        values = sums(columns, walk.vectors(vectors_ref, columns))
        return _pool(pooled, values, values, columns)

    mean, _, squares = jax.lax.fori_loop(0, walk.num_tiles, measure, _nothing(walk))
    inverse = jax.lax.rsqrt(squares / walk.width + walk.epsilon)

    def write(step: Any, _: None) -> None:
        columns = walk.columns(step)
        vectors = walk.vectors(vectors_ref, columns)
        store(y_ref, rows, columns, (sums(columns, vectors) - mean) * inverse * vectors.scale + vectors.bias)

    jax.lax.fori_loop(0, walk.num_tiles, write, None)


def _operands(
    x: Float[Array, "B T D"], context: Float[Array, "B T C"], kernel: Float[Array, "C D"], settings: JoinSettings, tile: int
) -> tuple[Float[Array, "R D"], tuple[Array, ...], Walk]:
    """The rows, where the kernel finds the branch (the factors of its product, or the product), and
    the walk.
    """
    flat, inner = x.reshape(-1, x.shape[-1]), context.reshape(-1, context.shape[-1])
    narrow = is_narrow(inner.shape[1], settings.dtype)
    source = (inner, kernel) if narrow else (product("RC,CD->RD", inner, kernel).astype(settings.dtype),)
    return flat, source, walk_of(flat, settings, narrow=narrow, tile=tile)


def _branch_of(rows: Span, source: tuple[Any, ...], terms: Span) -> BranchOf:
    if len(source) == 1:
        return lambda columns: load(source[0], rows, columns).astype(jnp.float32)
    factor = load(source[0], rows, terms)
    return lambda columns: product("RC,CD->RD", factor, load(source[1], terms, columns))


def _terms(source: tuple[Any, ...]) -> Span:
    """Of the product, where the kernel multiplies."""
    length = source[0].shape[1]
    return Span(0, side(length), length)


def _forward_kernel(walk: Walk, scalars: Any, vectors_ref: Any, x_ref: Any, *references: Any) -> None:
    *source, y_ref = references
    branch_of = _branch_of(walk.rows(), tuple(source), _terms(tuple(source)))
    joined_tiles(walk, scalars, vectors_ref, x_ref, branch_of, y_ref)


def _backward_kernel(walk: Walk, scalars: Any, vectors_ref: Any, x_ref: Any, gradient_ref: Any, *references: Any) -> None:
    narrow = len(references) == 6
    source, (past_ref, by_branch_ref, parts_ref, *by_context_ref) = references[: 1 + narrow], references[1 + narrow :]
    rows, terms, part = walk.rows(), _terms(source), 4 * pl.program_id(0)
    branch_of = _branch_of(rows, source, terms)

    def read(step: Any) -> tuple[Span, Vectors, Array, Array, Array | None, Array]:
        columns = walk.columns(step)
        vectors, kept = walk.vectors(vectors_ref, columns), walk.kept(scalars, rows, columns)
        x, gradient = (load(each, rows, columns).astype(jnp.float32) for each in (x_ref, gradient_ref))
        return columns, vectors, x, gradient, kept, summed(x, branch_of(columns), vectors, kept, walk.rate)

    def measure(step: Any, carry: Any) -> Any:
        columns, vectors, _, gradient, _, values = read(step)
        alone, both = carry
        return _pool(alone, values, values, columns), _pool(both, values, gradient * vectors.scale, columns)

    start = (_nothing(walk), _nothing(walk))
    (mean, _, squares), (_, by_mean, along) = jax.lax.fori_loop(0, walk.num_tiles, measure, start)
    inverse = jax.lax.rsqrt(squares / walk.width + walk.epsilon)
    along = along / walk.width * inverse

    def write(step: Any, by_context: Array | None) -> Array | None:
        columns, vectors, x, gradient, kept, values = read(step)
        normed = (values - mean) * inverse
        by_summed = through_norm(gradient * vectors.scale, normed, inverse, by_mean, along)
        past, by_branch, by_vectors = gradients_by(gradient, x, normed, by_summed, vectors, kept, walk.rate)
        store(past_ref, rows, columns, past)
        store(by_branch_ref, rows, columns, by_branch)
        for index, each in enumerate(by_vectors):
            store(parts_ref, Span.at(part + index), columns, jnp.sum(each, axis=0, keepdims=True))
        if by_context is None:
            return None
        return by_context + product("RD,CD->RC", by_branch.astype(by_branch_ref.dtype), load(source[1], terms, columns))

    zeros = jnp.zeros((walk.block_rows, terms.size), jnp.float32) if narrow else None
    by_context = jax.lax.fori_loop(0, walk.num_tiles, write, zeros)
    if by_context is not None:
        store(by_context_ref[0], rows, terms, by_context)


def _nothing(walk: Walk) -> tuple[Array, Array, Array]:
    return (jnp.zeros((walk.block_rows, 1), jnp.float32),) * 3


def _pool(
    pooled: tuple[Array, Array, Array], left: Float32[Array, "R C"], right: Float32[Array, "R C"], columns: Span
) -> tuple[Array, Array, Array]:
    """Both means of a row and the sum of the products of what is left after taking them off, of the
    tiles before and of this one: as exact as taking the means off first (Chan, Golub, LeVeque 1983,
    "Algorithms for computing the sample variance").
    """
    left_mean, right_mean, products = pooled
    inside = columns.inside()

    def total(values: Array) -> Array:
        return jnp.sum(values if inside is None else jnp.where(inside[None], values, 0.0), axis=1, keepdims=True)

    before, count = jnp.asarray(columns.first, jnp.float32), columns.count()
    share = count / (before + count)
    left_here, right_here = total(left) / count, total(right) / count
    products_here = total((left - left_here) * (right - right_here))
    left_step, right_step = left_here - left_mean, right_here - right_mean
    return (
        left_mean + left_step * share,
        right_mean + right_step * share,
        products + products_here + left_step * right_step * before * share,
    )
