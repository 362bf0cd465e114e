"""Rows of arrays [M,D] as a kernel holds them, by two compilers.

Triton has arrays of a power of 2 of elements: a program holds several rows, with columns of zeros
up to that width. Mosaic GPU (for H100 and later) adds up a whole array only: a program holds one
row, and the sum of a row is a scalar.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu, triton
from jax.experimental.xla_metadata import set_xla_metadata
from jaxtyping import Array, Bool, Float, UInt32

from mhsh.models.kernels.select import is_interpreted

HAS_MOSAIC = jax.__version_info__ >= (0, 11, 1)  # with kernels that replace their inputs


def mosaic_obstacle() -> str:
    """The reason why Mosaic GPU cannot compile for this GPU; empty: it can."""
    if not HAS_MOSAIC:
        return f"Mosaic GPU needs jax 0.11.1, and this is {jax.__version__}"
    device = jax.devices()[0]
    is_older = float(getattr(device, "compute_capability", 9.0)) < 9.0  # a CPU, which compiles for another device, has none
    return f"Mosaic GPU needs an H100 or later, and this is an {device.device_kind}" if is_older else ""


class Call(NamedTuple):
    """A call of a kernel. Each of its programs is given whole arrays, and takes its part."""

    kernel: Callable[..., None]  # of references to all inputs, then to all outputs
    name: str
    programs: int
    inputs: Sequence[Any]
    outputs: Sequence[Any]  # their shapes
    in_place: dict[int, int]  # the numbers of inputs that outputs replace, and of these outputs
    metadata: dict[str, str]  # for who reads the compiled program


class TritonRows(NamedTuple):
    """`count` rows [count, padded]."""

    count: int
    width: int

    @property
    def padded(self) -> int:
        """The columns that a program holds."""
        return pl.next_power_of_2(self.width)

    def run(self, call: Call) -> Sequence[Array]:
        """The arrays that the programs of a kernel write."""
        return _pallas_call(call, metadata=call.metadata, compiler_params=triton.CompilerParams(num_warps=8, num_stages=2))

    def program(self) -> Array:
        """The number of this program."""
        return pl.program_id(0)

    def zeros(self) -> Float[Array, "1 W"]:
        """A vector of zeros."""
        return jnp.zeros((1, self.padded), jnp.float32)

    def columns(self) -> UInt32[Array, "1 W"]:
        """The numbers of the columns."""
        return jax.lax.broadcasted_iota(jnp.uint32, (1, self.padded), 1)

    def numbers(self, first: UInt32[Array, ""]) -> UInt32[Array, "M 1"]:
        """The numbers of the rows."""
        return first + jax.lax.broadcasted_iota(jnp.uint32, (self.count, 1), 0)

    def mask_padding(self, block: Float[Array, "M W"]) -> Float[Array, "M W"]:
        """The rows, with zeros in the columns that are padding."""
        real = self._real(len(block))
        return block if real is None else jnp.where(real, block, 0.0)

    def load(self, ref: Any, first: Any) -> Float[Array, "M W"]:
        """Rows in fp32."""
        return self._load(ref, first, self.count)

    def load_vector(self, ref: Any, row: Any, column: int) -> Float[Array, "1 W"]:
        """Part of one row, from `column` on."""
        return self._load(ref, row, 1, column)

    def store(self, ref: Any, first: Any, block: Float[Array, "M W"]) -> None:
        """Writes rows, or a vector, in the array's dtype."""
        count = len(block)
        triton.store(self._part(ref, first, count), block.astype(ref.dtype), mask=self._real(count))

    def load_factors(self, ref: Any, first: Any) -> Float[Array, "M 1"]:
        """A number for each row."""
        return triton.load(ref.at[pl.ds(first, self.count)])[:, None]

    def store_factors(self, ref: Any, first: Any, factors: Float[Array, "M 1"]) -> None:
        """Writes a number for each row."""
        triton.store(ref.at[pl.ds(first, self.count)], factors[:, 0])

    def row_sums(self, block: Float[Array, "M W"]) -> Float[Array, "M 1"]:
        """The sum of each row."""
        return jnp.sum(block, axis=1, keepdims=True)

    def column_sums(self, block: Float[Array, "M W"]) -> Float[Array, "1 W"]:
        """The sum of each column."""
        return jnp.sum(block, axis=0, keepdims=True)

    def _load(self, ref: Any, first: Any, count: int, column: int = 0) -> Float[Array, "M W"]:
        at, real = self._part(ref, first, count, column), self._real(count)
        return (triton.load(at) if real is None else triton.load(at, mask=real, other=0.0)).astype(jnp.float32)

    def _real(self, count: int) -> Bool[Array, "M W"] | None:
        """True at the columns that are not padding; None without padding."""
        if self.width == self.padded:
            return None
        return jax.lax.broadcasted_iota(jnp.int32, (count, self.padded), 1) < self.width

    def _part(self, ref: Any, first: Any, count: int, column: int = 0) -> Any:
        # With padding it is wider than the array: as long as jax does not see where it starts.
        return ref.at[pl.ds(first, count), pl.ds(jnp.int32(column), self.padded)]


class MosaicRow(NamedTuple):
    """One row [width], a multiple of 128, over the 128 threads of a program."""

    width: int
    vector: int  # elements that a thread loads at once, where all rows and vectors begin at a multiple of it
    count: int = 1

    def run(self, call: Call) -> Sequence[Array]:
        if is_interpreted():
            return _pallas_call(call)
        replaced = {output: number for number, output in call.in_place.items()}
        new = [output for output in range(len(call.outputs)) if output not in replaced]
        inputs = [jax.new_ref(each) if number in call.in_place else each for number, each in enumerate(call.inputs)]

        def kernel(*refs: Any) -> None:
            made = dict(zip(new, refs[len(inputs) :], strict=True))
            made |= {output: refs[number] for output, number in replaced.items()}
            call.kernel(*refs[: len(inputs)], *(made[output] for output in range(len(made))))

        kernel.__name__ = call.name
        run = mosaic_gpu.kernel(
            kernel, out_type=[call.outputs[output] for output in new], grid=(call.programs,), grid_names=("program",)
        )
        with set_xla_metadata(**call.metadata):
            made = dict(zip(new, run(*inputs), strict=True))
        made |= {output: jax.freeze(inputs[number]) for output, number in replaced.items()}
        return [made[output] for output in range(len(made))]

    def program(self) -> Array:
        return pl.program_id(0) if is_interpreted() else jax.lax.axis_index("program")

    def zeros(self) -> Float[Array, " W"]:
        return self._spread(jnp.zeros(self.width, jnp.float32))

    def columns(self) -> UInt32[Array, " W"]:
        return self._spread(jax.lax.broadcasted_iota(jnp.uint32, (self.width,), 0))

    def numbers(self, first: UInt32[Array, ""]) -> UInt32[Array, ""]:
        return first

    def mask_padding(self, block: Float[Array, " W"]) -> Float[Array, " W"]:
        return block

    def load(self, ref: Any, first: Any) -> Float[Array, " W"]:
        return self.load_vector(ref, first, 0)

    def load_vector(self, ref: Any, row: Any, column: int) -> Float[Array, " W"]:
        return self._spread(ref[row, pl.ds(column, self.width)]).astype(jnp.float32)

    def store(self, ref: Any, first: Any, block: Float[Array, " W"]) -> None:
        ref[first] = block.astype(ref.dtype)

    def load_factors(self, ref: Any, first: Any) -> Float[Array, ""]:
        return ref[first]

    def store_factors(self, ref: Any, first: Any, factors: Float[Array, ""]) -> None:
        ref[first] = factors

    def row_sums(self, block: Float[Array, " W"]) -> Float[Array, ""]:
        return jnp.sum(block)

    def column_sums(self, block: Float[Array, " W"]) -> Float[Array, " W"]:
        return block

    def _spread(self, row: Array) -> Array:
        """The row, laid out as all others: by default arrays of fp32 and of bf16 would differ."""
        if is_interpreted():  # which has no layouts
            return row
        return mosaic_gpu.layout_cast(row, mosaic_gpu.Layout.WG_STRIDED((self.width,), vec_size=self.vector))


Rows = TritonRows | MosaicRow


def _pallas_call(call: Call, **options: Any) -> Sequence[Array]:
    run = pl.pallas_call(
        call.kernel,
        call.outputs,
        grid=(call.programs,),
        input_output_aliases=call.in_place,
        name=call.name,
        interpret=is_interpreted(),
        **options,
    )
    return run(*call.inputs)
