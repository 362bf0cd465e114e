"""What Triton asks of a kernel: tiles whose sides are powers of two, with what lies beyond an array
masked off.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Bool, Float32, Int32

from mhsh.kernels.rows import KernelTarget

# The least side of a factor of Triton's matrix product.
LEAST_SIDE = 16


def side(length: int, most: int = 2**30) -> int:
    """The smallest side of a tile that reaches over `length` places, or `most` if that is less; a
    power of two.
    """
    return min(most, max(LEAST_SIDE, pl.next_power_of_2(length)))


def most_rows(dtype: Any) -> int:
    """Of a tile that is a product's factor: 64, as a warp group of a Hopper chip multiplies at
    once. In fp32, which has no matrix unit, half of that: Triton writes such a product out in
    single multiplications, and the compiler takes minutes over many.
    """
    return 128 // jnp.dtype(dtype).itemsize


@dataclasses.dataclass(frozen=True)
class Span:
    """A tile's extent along an axis of `length` places: `size` of them from `first`, a multiple of
    `size`.
    """

    first: Array | int
    size: int
    length: int

    @classmethod
    def at(cls, index: Any) -> Span:
        """One place, which exists."""
        return cls(index, 1, 1)

    def places(self) -> Int32[Array, " size"]:
        """Their numbers on the axis."""
        return self.first + jax.lax.iota(jnp.int32, self.size)

    def inside(self) -> Bool[Array, " size"] | None:
        """Which of them exist; None where all do."""
        return None if self.length % self.size == 0 else self.places() < self.length

    def count(self) -> Float32[Array, ""]:
        """How many exist."""
        return jnp.asarray(jnp.minimum(self.size, self.length - self.first), jnp.float32)


def load(reference: Any, rows: Span, columns: Span) -> Array:
    """A tile of a reference to a matrix, zeros beyond it."""
    mask, at = _inside(rows, columns), reference.at[pl.ds(rows.first, rows.size), pl.ds(columns.first, columns.size)]
    return triton.load(at) if mask is None else triton.load(at, mask=mask, other=jnp.zeros((), reference.dtype))


def store(reference: Any, rows: Span, columns: Span, values: Array) -> None:
    """Writes what of a tile lies in the matrix, in the matrix's dtype."""
    at = reference.at[pl.ds(rows.first, rows.size), pl.ds(columns.first, columns.size)]
    triton.store(at, values.astype(reference.dtype), mask=_inside(rows, columns))


def product(axes: str, left: Array, right: Array) -> Float32[Array, "*shape"]:
    """A matrix product summed in fp32; fp32 factors are not cut to tf32, in Triton or in XLA."""
    precision = jax.lax.Precision.HIGHEST if left.dtype == jnp.float32 else None
    return jnp.einsum(axes, left, right, precision=precision, preferred_element_type=jnp.float32)


def launch(
    kernel: Callable[..., None],
    place: KernelTarget,
    operands: Sequence[Array],
    results: Sequence[jax.ShapeDtypeStruct],
    *,
    specs: tuple[Sequence[pl.BlockSpec], Sequence[pl.BlockSpec]] | None = None,
    grid: tuple[int, ...],
    name: str,
    num_warps: int,
    num_stages: int,
) -> tuple[Array, ...]:
    """Runs a kernel for every place of `grid`, with references to whole arrays, or to what `specs`
    say of them.
    """
    in_specs, out_specs = specs or ([pl.BlockSpec()] * len(operands), [pl.BlockSpec()] * len(results))
    found = pl.pallas_call(
        kernel,
        out_shape=list(results),
        grid=grid,
        in_specs=in_specs,
        out_specs=out_specs,
        compiler_params=triton.CompilerParams(num_warps=num_warps, num_stages=num_stages),
        interpret=place.interpret,
        name=name,
    )(*operands)
    return tuple(found)


def _inside(rows: Span, columns: Span) -> Bool[Array, "rows columns"] | None:
    down, across = rows.inside(), columns.inside()
    if down is None and across is None:
        return None
    down = jnp.ones((rows.size,), bool) if down is None else down
    across = jnp.ones((columns.size,), bool) if across is None else across
    return down[:, None] & across[None, :]
