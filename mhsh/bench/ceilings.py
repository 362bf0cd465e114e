"""The most that the device can do: a big matrix product and a big copy, timed in the same turns."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from mhsh.bench.harness import Times
from mhsh.bench.results import CeilingResult

# The product grows until one takes this long, so that the time to start it does not count.
LONG_ENOUGH_SECONDS = 0.02
SMALLEST, LARGEST = 1_024, 16_384  # rows and columns of its square factors
# Bytes to copy: more than any cache holds.
COPIED_BYTES = {"cpu": 1 << 28}
COPIED_BYTES_ELSEWHERE = 1 << 30


@dataclasses.dataclass(frozen=True)
class Ceiling:
    """One of the two; it takes turns as a Candidate does."""

    name: str  # matmul, copy
    unit: str  # of work
    work: int  # of one repetition: FLOPs, or bytes read and bytes written
    run: Callable[[int], None]
    facts: dict[str, Any]  # further fields of its CeilingResult

    def result(self, times: Times) -> CeilingResult:
        """The rate is that of the best turn: what slowed the others down was not the device."""
        best = min(min(turn) for turn in times.turns)
        return CeilingResult(unit=self.unit, work=self.work, turns=times.turns, rate=self.work / best, **self.facts)


def ceilings(dtype: str) -> tuple[Ceiling, Ceiling]:
    """Both, on the first device; the product in `dtype`."""
    return _matmul(dtype), _copy()


def _matmul(dtype: str) -> Ceiling:
    multiply = jax.jit(lambda a, b: a @ b)
    size = SMALLEST
    while True:
        a, b = (jax.random.normal(jax.random.key(seed), (size, size), jnp.float32).astype(dtype) for seed in (0, 1))
        multiply(a, b).block_until_ready()
        if size >= LARGEST or min(_seconds(multiply, a, b) for _ in range(3)) >= LONG_ENOUGH_SECONDS:
            break
        size *= 2

    def run(repetitions: int) -> None:
        product = a
        for _ in range(repetitions):
            product = multiply(a, b)
        product.block_until_ready()

    return Ceiling("matmul", "FLOP", 2 * size**3, run, {"dtype": dtype, "size": size})


def _seconds(multiply: Callable[[jax.Array, jax.Array], jax.Array], a: jax.Array, b: jax.Array) -> float:
    begin = time.perf_counter()
    multiply(a, b).block_until_ready()
    return time.perf_counter() - begin


def _copy() -> Ceiling:
    num_bytes = COPIED_BYTES.get(jax.devices()[0].platform, COPIED_BYTES_ELSEWHERE)
    # In place: a fresh array would cost page faults on a CPU, and a third pass over the memory.
    change = jax.jit(lambda x: -x, donate_argnums=0)
    held = [jnp.ones(num_bytes // 4, jnp.float32)]

    def run(repetitions: int) -> None:
        for _ in range(repetitions):
            held[0] = change(held[0])
        held[0].block_until_ready()

    return Ceiling("copy", "byte", 2 * num_bytes, run, {"bytes": num_bytes})
