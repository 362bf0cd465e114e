"""The pair of kernels that add what a sublayer puts out to the residual stream, and normalise the
sum.

Each kernel loads blocks of rows, calls a function of arrays, and stores (mhsh/models/kernels/rows).
`d_x` is the gradient of x.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jaxtyping import Array, Bool, Float, Int, UInt32

from mhsh.config.schema import ModelConfig
from mhsh.models.devices import shard_index
from mhsh.models.dropout import drop, keep_mask, row_states
from mhsh.models.kernels.rows import Call, MosaicRow, Rows, TritonRows

_FORWARD_ELEMENTS = 8192  # of each array that a program holds at once
_BACKWARD_ELEMENTS = 4096
_SUMMED_ROWS = 16  # of which a program of the backward pass adds up the gradients of the vectors
FIRST = np.zeros(1, np.int32)  # the number of an iteration, and of a layer, without a scan


class ScanPlace(NamedTuple):
    """The place of a join in a scan over layers, whose vectors and saved rows are in one array."""

    sublayer: int  # its place in a layer
    columns: tuple[int, ...]  # of each join's first vector, in the row of a layer's vectors
    layers: int  # of an iteration

    def slot(self, layer: Array) -> Array:
        """The slot of SavedNorm for the rows that this join normalises."""
        return layer * len(self.columns) + self.sublayer + 1


class Join(NamedTuple):
    """The constants that the kernels of a join are compiled for."""

    weight: float | None  # of x; None: a vector, which is trained
    normed_stream: bool  # whether y is the stream, or s
    rate: float
    epsilon: float
    centred: bool  # LayerNorm, or RMSNorm
    copy_dtype: str  # of what the next sublayer reads
    stream_dtype: str
    compiler: str  # triton or mosaic
    scan: ScanPlace | None = None  # that it is a part of

    @property
    def num_vectors(self) -> int:
        """The bias of the sublayer, the bias and scale of the norm, a weight that is trained."""
        return 3 + (self.weight is None)

    @property
    def has_copy(self) -> bool:
        """Whether what the next sublayer reads is another array than the stream."""
        return not self.normed_stream or self.stream_dtype != self.copy_dtype


class _Ends(NamedTuple):
    """The place of a join in an iteration of a scan; without one it is alone."""

    number: int
    first: bool
    last: bool

    @classmethod
    def of(cls, join: Join, number: int) -> _Ends:
        return cls(number, number == 0, not join.scan or number == join.scan.layers * len(join.scan.columns) - 1)

    def reads(self, join: Join) -> int:
        """The arrays that sublayers read and the backward kernel of this join makes again."""
        return self.first + (not self.last) if join.scan else 0

    def sums(self, join: Join) -> list[int]:
        """The numbers of the sums that this kernel makes, where each join has as many as vectors:
        of its bias and norm, of the next join's weight, and at the first of its own.
        """
        weights = [join.num_vectors + 3] * (not self.last) + [3] * self.first if join.weight is None else []
        return [self.number * join.num_vectors + vector for vector in (0, 1, 2, *weights)]


class SavedNorm(NamedTuple):
    """The results of each join's norm that the backward pass reads, stacked by slots of M rows. In
    a scan slot 0 is what its first sublayer reads; without a scan there is one slot.
    """

    normed: Float[Array, "slots*M D"]
    inverse: Float[Array, " slots*M"]  # the factor of each row


class Operands(NamedTuple):
    """The arrays that all programs of a kernel read."""

    vectors: Float[Array, "L columns"]
    seed: UInt32[Array, 2]
    iteration: Int[Array, 1] | np.ndarray  # its number in the scan
    layer: np.ndarray  # the number of the layer in its iteration, [1]
    first_row: UInt32[Array, 1]  # of this shard, in the whole batch


def make_join(config: ModelConfig, weight: float | None, drops: bool, normed_stream: bool = True) -> Join:
    """The join of a model whose scheme has this weight; None: a vector, which is trained."""
    return Join(
        weight=weight,
        normed_stream=normed_stream,
        rate=config.hidden_dropout if drops else 0.0,
        epsilon=config.layer_norm_epsilon,
        centred=config.norm == "layer",
        copy_dtype=config.compute_dtype,
        stream_dtype=config.residual_dtype,
        compiler="mosaic" if config.kernels == "mosaic" else "triton",
    )


def first_row(x: Float[Array, "B T D"]) -> UInt32[Array, 1]:
    """The number of the first row of this shard of the batch."""
    return (shard_index() * jnp.uint32(math.prod(x.shape[:-1])))[None]


def _layer(join: Join, iteration_ref: Any, layer_ref: Any) -> Any:
    """The row of this layer in the array of all layers' vectors."""
    return iteration_ref[0] * join.scan.layers + layer_ref[0] if join.scan else 0


def _column(join: Join) -> int:
    """The column of this join's first vector in the row of its layer."""
    return join.scan.columns[join.scan.sublayer] if join.scan else 0


def _vectors(rows: Rows, ref: Any, layer: Any, column: int, count: int) -> list[Float[Array, "*1 W"]]:
    """Adjacent vectors in a layer's row."""
    return [rows.load_vector(ref, layer, column + number * rows.width) for number in range(count)]


def _weight(join: Join, vectors: list[Array]) -> Array | float:
    return vectors[3] if join.weight is None else join.weight


def _next_weight(join: Join, rows: Rows, ref: Any, layer: Any) -> Array | float:
    """The weight of the join behind this one in a scan."""
    if join.weight is not None:
        return join.weight
    assert join.scan is not None, "without a scan there is none"
    layers, sublayer = divmod(join.scan.sublayer + 1, len(join.scan.columns))
    return _vectors(rows, ref, layer + layers, join.scan.columns[sublayer] + 3 * rows.width, 1)[0]


def _dropout_mask(join: Join, rows: Rows, seed_ref: Any, first: Array) -> Bool[Array, "*M W"] | None:
    """True where dropout keeps an element of the rows from `first` on, as on the path of XLA."""
    if not join.rate:
        return None
    return keep_mask(row_states((seed_ref[0], seed_ref[1]), rows.numbers(first)), rows.columns(), join.rate)


def _apply_dropout(join: Join, block: Array, mask: Array | None) -> Array:
    return block if mask is None else drop(block, mask, join.rate)


def _sum_and_norm(
    join: Join, rows: Rows, x: Array, product: Array, mask: Array | None, vectors: list[Array]
) -> tuple[Array, Array, Array, Array]:
    """s, y, and for the backward pass s normalised and the factor of each row. The product is in
    its own dtype, and dropout rounds to that.
    """
    bias, shift, scale = vectors[:3]
    out = _apply_dropout(join, product + bias.astype(product.dtype), mask)
    s = _weight(join, vectors) * x + out.astype(jnp.float32)
    centred = rows.mask_padding(s - rows.row_sums(s) * (1.0 / rows.width)) if join.centred else s
    inverse = jax.lax.rsqrt(rows.row_sums(centred * centred) * (1.0 / rows.width) + join.epsilon)
    normed = centred * inverse
    return s, normed * scale + shift, normed, inverse


def _forward_kernel(join: Join, rows: Rows, programs: int, stacked: bool, x_ref: Any, product_ref: Any, *refs: Any) -> None:
    vectors_ref, seed_ref, iteration_ref, layer_ref, first_ref = refs[: len(Operands._fields)]
    stream_ref, normed_ref, inverse_ref, *copy_ref = refs[-3 - join.has_copy :]
    program, layer = rows.program(), _layer(join, iteration_ref, layer_ref)
    slot = join.scan.slot(layer) if join.scan and stacked else 0
    row, row_of_slot = program * rows.count, (slot * programs + program) * rows.count
    x, product = rows.load(x_ref, row), rows.load(product_ref, row).astype(product_ref.dtype)
    vectors = _vectors(rows, vectors_ref, layer, _column(join), join.num_vectors)
    mask = _dropout_mask(join, rows, seed_ref, first_ref[0] + row.astype(jnp.uint32))

    s, y, normed, inverse = _sum_and_norm(join, rows, x, product, mask, vectors)

    rows.store(stream_ref, row, y if join.normed_stream else s)
    for ref in copy_ref:
        rows.store(ref, row, y)
    rows.store(normed_ref, row_of_slot, normed)
    rows.store_factors(inverse_ref, row_of_slot, inverse)


def forward(
    join: Join, x: Array, product: Array, operands: Operands, norms: SavedNorm | None = None
) -> tuple[Array, Array, SavedNorm]:
    """The stream [M,D], what the next sublayer reads, and what the backward pass does: in its slot
    of `norms`, in place, or in one that is new.
    """
    rows = _rows(join, x, operands, _FORWARD_ELEMENTS, limit=x.shape[0])
    copies = [jax.ShapeDtypeStruct(x.shape, join.copy_dtype)] if join.has_copy else []
    stacks = norms or (jax.ShapeDtypeStruct(x.shape, join.copy_dtype), jax.ShapeDtypeStruct(x.shape[:1], jnp.float32))
    programs = x.shape[0] // rows.count
    stream, normed, inverse, *copy = rows.run(
        Call(
            functools.partial(_forward_kernel, join, rows, programs, norms is not None),
            "residual_forward",
            programs,
            inputs=(x, product, *operands, *(norms or ())),
            outputs=[*(jax.ShapeDtypeStruct(one.shape, one.dtype) for one in (x, *stacks)), *copies],
            in_place={7: 1, 8: 2} if norms else {},
            metadata=_traffic(join, x, 2, 2 + join.has_copy, join.num_vectors),
        )
    )
    return stream, copy[0] if copy else stream, SavedNorm(normed, inverse)


def _gradients(
    join: Join, rows: Rows, d_stream: Array, d_copy: Array | None, normed: Array, inverse: Array, scale: Array
) -> tuple[Array, Array]:
    """The gradients of y and of s."""
    streams = ([d_stream] if join.normed_stream else []) + ([] if d_copy is None else [d_copy])
    d_y = functools.reduce(jnp.add, streams)
    scaled = d_y * scale
    projection = rows.row_sums(scaled * normed) * (1.0 / rows.width)
    centred = scaled - rows.row_sums(scaled) * (1.0 / rows.width) if join.centred else scaled
    d_s = inverse * (centred - normed * projection)
    return d_y, d_s if join.normed_stream else d_stream + d_s


def _backward_kernel(join: Join, rows: Rows, programs: int, steps: int, ends: _Ends, d_stream_ref: Any, *refs: Any) -> None:
    normed_ref, inverse_ref, vectors_ref, seed_ref, iteration_ref, layer_ref, first_ref, *also = refs
    scan, program, layer = join.scan, rows.program(), _layer(join, iteration_ref, layer_ref)
    d_copy_ref = also.pop(0) if join.has_copy or scan else None
    read_ref = also.pop(0) if join.weight is None and not scan else None
    d_x_ref, d_product_ref, sums_ref, *made_refs = also[-3 - ends.reads(join) :]
    vectors = _vectors(rows, vectors_ref, layer, _column(join), join.num_vectors)
    slot = scan.slot(layer) if scan else 0
    a_slot = rows.count * steps * programs

    def step(number: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        row = (program * steps + number) * rows.count
        d_stream, normed = rows.load(d_stream_ref, row), rows.load(normed_ref, slot * a_slot + row)
        d_copy = None if d_copy_ref is None else rows.load(d_copy_ref, row)
        inverse = rows.load_factors(inverse_ref, slot * a_slot + row)
        mask = _dropout_mask(join, rows, seed_ref, first_ref[0] + row.astype(jnp.uint32))
        d_weights = []
        if not ends.last:  # what came is the gradient of the next s, in which y has a weight
            y = normed * vectors[2] + vectors[1]
            rows.store(made_refs[0], row, y)
            d_weights.append(d_stream * y)
            d_stream = _next_weight(join, rows, vectors_ref, layer) * d_stream

        d_y, d_s = _gradients(join, rows, d_stream, d_copy, normed, inverse, vectors[2])
        d_product = _apply_dropout(join, d_s.astype(d_product_ref.dtype), mask)

        rows.store(d_x_ref, row, _weight(join, vectors) * d_s if ends.first else d_s)
        rows.store(d_product_ref, row, d_product)
        if ends.first and scan:
            read = rows.load(normed_ref, (slot - 1) * a_slot + row)
            shift, scale = _vectors(rows, vectors_ref, jnp.maximum(layer - 1, 0), scan.columns[-1] + rows.width, 2)
            read = jnp.where(jnp.broadcast_to(slot == 1, read.shape), read, read * scale + shift)
            rows.store(made_refs[-1], row, read)
            d_weights.append(d_s * read)
        elif ends.first and join.weight is None:
            d_weights.append(d_s * rows.load(read_ref, row))
        d_vectors = [d_product.astype(jnp.float32), d_y, d_y * normed]
        d_vectors += d_weights if join.weight is None else []
        return tuple(total + rows.column_sums(one) for total, one in zip(sums, d_vectors, strict=True))

    numbers = ends.sums(join)
    sums = jax.lax.fori_loop(0, steps, step, (rows.zeros(),) * len(numbers))
    for number, total in zip(numbers, sums, strict=True):
        rows.store(sums_ref, number * programs + program, total)


def empty_sums(join: Join, d_stream: Float[Array, "M D"], count: int) -> Float[Array, "sums D"]:
    """Zeros for the sums that `count` joins write: for each vector, a row for each program."""
    return jnp.zeros((count * join.num_vectors * _num_programs(d_stream), d_stream.shape[1]))


def backward(
    join: Join,
    d_stream: Array,
    d_copy: Array | None,
    read: Array | None,
    norms: SavedNorm,
    operands: Operands,
    sums: Array | None = None,
    number: int = 0,
) -> tuple[Array, Array, Array, list[Array]]:
    """The gradients of x and of the product [M,D], and of the vectors, in sums over the rows of
    each program [vectors*programs,D].

    In a scan this is join `number` of an iteration, and its sums are written to `sums`, in place.
    The gradient of x is left to the join before, which multiplies by the weight and finds x: so
    `d_stream` is the gradient of the next join's s, and that join's weight has its gradient here.
    What the next sublayer read is made again, and returned. The last join of an iteration is given
    the gradient of y; the first computes that of x, and also makes what its own sublayer read.
    """
    programs, ends = _num_programs(d_stream), _Ends.of(join, number)
    a_program = len(d_stream) // programs
    rows = _rows(join, d_stream, operands, _BACKWARD_ELEMENTS, limit=a_program)
    in_blocks = [one for one in (d_copy, read) if one is not None]
    inputs = (d_stream, *norms, *operands, *in_blocks, *([] if sums is None else [sums]))
    outputs = [d_stream.dtype, join.copy_dtype, *[join.copy_dtype] * ends.reads(join)]
    shapes = [jax.ShapeDtypeStruct(d_stream.shape, dtype) for dtype in outputs]
    d_sums = empty_sums(join, d_stream, 1) if sums is None else sums
    copies = len(in_blocks) + len(outputs) + bool(join.scan and ends.first)
    d_x, d_product, sums, *made = rows.run(
        Call(
            functools.partial(_backward_kernel, join, rows, programs, a_program // rows.count, ends),
            "residual_backward",
            programs,
            inputs=inputs,
            outputs=[*shapes[:2], jax.ShapeDtypeStruct(d_sums.shape, jnp.float32), *shapes[2:]],
            in_place={} if sums is None else {len(inputs) - 1: 2},
            metadata=_traffic(join, d_stream, 2, copies, programs * len(ends.sums(join)) + join.num_vectors),
        )
    )
    return d_x, d_product, sums, made


def _num_programs(x: Array) -> int:
    """The number of programs of the backward pass."""
    return len(x) // math.gcd(len(x), _SUMMED_ROWS)


def _rows(join: Join, x: Array, operands: Operands, elements: int, limit: int) -> Rows:
    """The rows that a program may hold of each array. For Triton, a power of 2 that divides
    `limit`.
    """
    width = x.shape[1]
    if join.compiler == "mosaic":
        starts = (operands.vectors.shape[1], *(join.scan.columns if join.scan else ()))
        return MosaicRow(width, math.gcd(4, width // 128, *starts))
    return TritonRows(math.gcd(limit, max(1, elements // pl.next_power_of_2(width))), width)


def _traffic(join: Join, x: Array, streams: int, copies: int, vectors: int) -> dict[str, str]:
    """The bytes that a kernel moves, for who reads the program (benchmarks/hlo): its stacks are
    longer. It counts arrays [M,D] of the stream's dtype and of its copy's, and vectors [D].
    """
    item_sizes = streams * x.dtype.itemsize + copies * jnp.dtype(join.copy_dtype).itemsize
    return {"bytes": str(x.size * item_sizes + 4 * (len(x) + vectors * x.shape[1]))}
