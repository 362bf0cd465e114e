"""How a kernel runs over the rows of a batch: in blocks that one core takes in turn, and on every
device its share of them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractMesh, Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float32, UInt32

from mhsh.kernels.dropout import Seed, keep, row_states

Target = Literal["tpu", "gpu"]  # whose kernels: interpreted, either runs anywhere

MIB = 2**20
# What a kernel may take of a core's on-chip memory; `supported` says which chips have it, and what
# needs more.
ONCHIP_BYTES = 48 * MIB


@dataclasses.dataclass(frozen=True)
class KernelTarget:
    """Where kernels run: the devices, whose kernels, and whether Pallas only interprets them (on a
    CPU).
    """

    mesh: Mesh | AbstractMesh | None = None  # None: one device
    batch_axes: tuple[str, ...] = ()  # of the mesh, over which the batch lies; the parameters are whole on every device
    interpret: bool = False
    target: Target = "tpu"

    @property
    def num_shards(self) -> int:
        """Into how many parts the batch is cut."""
        return 1 if self.mesh is None else math.prod(self.mesh.shape[axis] for axis in self.batch_axes)


def over_shards(
    function: Callable[..., tuple[tuple[Array, ...], tuple[Array, ...]]],
    place: KernelTarget,
    seed: Seed,
    batched: Sequence[Array],
    whole: Sequence[Array],
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """`function(scalars, batched, whole)` on every device's share of the batch; the second part of
    what it returns is summed.

    `scalars` are the seed and the number of shards before this one: masks go by an element's place
    in the whole array.
    """
    if place.num_shards == 1:
        return function(jnp.append(seed, jnp.uint32(0)), tuple(batched), tuple(whole))

    def local(seed: Seed, batched: tuple[Array, ...], whole: tuple[Array, ...]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        shard = jax.lax.axis_index(place.batch_axes).astype(jnp.uint32)
        rows, sums = function(jnp.append(seed, shard), batched, whole)
        return rows, jax.lax.psum(sums, place.batch_axes) if sums else sums

    # The gradients by parameters are summed here, in the open; `check_vma` would ask every kernel
    # to declare what varies.
    shares, same = PartitionSpec(place.batch_axes), PartitionSpec()
    mapped = jax.shard_map(local, mesh=place.mesh, in_specs=(same, shares, same), out_specs=(shares, same), check_vma=False)
    return mapped(seed, tuple(batched), tuple(whole))


@dataclasses.dataclass(frozen=True)
class VmemBudget:
    """On-chip memory that a kernel takes: for each row of a block, and besides."""

    bytes_per_row: int
    fixed_bytes: int

    def block_rows(self) -> int:
        """The most rows that fit, at most 512 and by sixteens (a tile of bf16); 0 if not even
        sixteen do.
        """
        return max(0, min(512, (ONCHIP_BYTES - self.fixed_bytes) // self.bytes_per_row // 16 * 16))


@dataclasses.dataclass(frozen=True)
class Result:
    """The last axis and the dtype of a result that has a row for each row of the operands."""

    width: int
    dtype: Any


def over_rows(
    kernel: Callable[..., None],
    place: KernelTarget,
    seed: Seed,
    rows: Sequence[Array],
    whole: Sequence[Array],
    row_results: Sequence[Result],
    summed_results: Sequence[jax.ShapeDtypeStruct] = (),
    *,
    name: str,
    flops_per_row: int,
    transcendentals_per_row: int,
    onchip: VmemBudget,
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Runs `kernel(block, *references)` over the rows of `rows` [B,T,*], block by block.

    The references are: the scalars that `Block.kept` reads, a block of each of `rows`, each of
    `whole` entire, a block of each of `row_results`, and each of `summed_results` entire: the
    blocks of one device come in order and add to it, the first one after clearing it; the devices'
    sums are added.
    """

    def local(scalars: Array, rows: tuple[Array, ...], whole: tuple[Array, ...]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        lead = rows[0].shape[:2]
        flat = [each.reshape(-1, each.shape[-1]) for each in rows]
        num_rows = math.prod(lead)
        block = Block(min(num_rows, onchip.block_rows()), num_rows)
        row_shapes = [jax.ShapeDtypeStruct((num_rows, each.width), each.dtype) for each in row_results]
        shapes = [*row_shapes, *summed_results]
        results = pl.pallas_call(
            lambda *references: kernel(block, *references),
            out_shape=shapes,
            grid=(pl.cdiv(num_rows, block.size),),
            in_specs=[
                pl.BlockSpec(memory_space=pltpu.SMEM),
                *(_blocked(each, block.size) for each in flat),
                *(_entire(each) for each in whole),
            ],
            out_specs=[*(_blocked(each, block.size) for each in row_shapes), *(_entire(each) for each in summed_results)],
            # "parallel": a chip of two cores that pass for one device takes half of the blocks with
            # each; a sum is one core's.
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("arbitrary" if summed_results else "parallel",), vmem_limit_bytes=ONCHIP_BYTES
            ),
            cost_estimate=pl.CostEstimate(
                flops=flops_per_row * num_rows,
                transcendentals=transcendentals_per_row * num_rows,
                bytes_accessed=sum(math.prod(each.shape) * jnp.dtype(each.dtype).itemsize for each in (*flat, *whole, *shapes)),
            ),
            interpret=place.interpret,
            name=name,
        )(scalars, *flat, *whole)
        row_arrays = tuple(each.reshape(*lead, each.shape[-1]) for each in results[: len(row_shapes)])
        return row_arrays, tuple(results[len(row_shapes) :])

    return over_shards(local, place, seed, rows, whole)


@dataclasses.dataclass(frozen=True)
class Block:
    """The rows that a kernel has on the chip at once."""

    size: int
    num_rows: int  # of the array; the last block may reach beyond

    def valid(self) -> Bool[Array, "R 1"] | None:
        """Which rows exist; None where all do. What is read for the others is anything."""
        if self.num_rows % self.size == 0:
            return None
        return jax.lax.broadcasted_iota(jnp.int32, (self.size, 1), 0) < self.num_rows - pl.program_id(0) * self.size

    def kept(self, scalars: Any, num_columns: int, rate: float) -> Bool[Array, "R C"] | None:
        """The dropout mask of the block's rows; None where nothing is dropped."""
        if rate == 0.0:
            return None
        first = scalars[2] * jnp.uint32(self.num_rows) + jnp.uint32(pl.program_id(0)) * jnp.uint32(self.size)
        return mask_of((scalars[0], scalars[1]), first, (self.size, num_columns), rate)


def mask_of(
    seed: tuple[Array, Array], first: UInt32[Array, ""], shape: tuple[int, int], rate: float, first_column: Array | int = 0
) -> Bool[Array, "R C"]:
    """The elements kept of `shape` rows and columns from row `first` and column `first_column` of
    an array on.
    """
    rows = first + jax.lax.broadcasted_iota(jnp.uint32, (shape[0], 1), 0)
    columns = jnp.uint32(first_column) + jax.lax.broadcasted_iota(jnp.uint32, (1, shape[1]), 1)
    return keep(row_states(seed, rows), columns, rate)


def only(values: Array, valid: Bool[Array, "R 1"] | None) -> Array:
    """Zeros in the rows that do not exist."""
    return values if valid is None else jnp.where(valid, values, jnp.zeros((), values.dtype))


def add_to(reference: Any, values: Array) -> None:
    """Adds a block's part to a sum over all blocks of this device."""

    @pl.when(pl.program_id(0) == 0)
    def _() -> None:
        reference[...] = jnp.zeros_like(reference)

    reference[...] += values


def product(axes: str, left: Array, right: Array) -> Float32[Array, "rows columns"]:
    """A matrix product summed in fp32."""
    return jnp.einsum(axes, left, right, preferred_element_type=jnp.float32)


def _blocked(array: Any, block: int) -> pl.BlockSpec:
    return pl.BlockSpec((block, array.shape[1]), lambda step: (step, 0))


def _entire(array: Any) -> pl.BlockSpec:
    return pl.BlockSpec(array.shape, lambda step: (0, 0), pipeline_mode=pl.Buffered(1))
