"""The most that a device can do: a big matrix product, timed in turns with the candidates."""

from __future__ import annotations

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from mhsh.bench.results import BenchResults, CeilingResult
from mhsh.bench.timing import CONFIG, Candidate

# The product grows until one takes this long, so that the time to start it does not count.
LONG_ENOUGH_SECONDS = 0.02
SMALLEST, LARGEST = 1_024, 16_384  # rows and columns of its square factors


def ceilings(dtype: str) -> tuple[list[Candidate], dict[str, CeilingResult]]:
    """The product in `dtype` on the first device, as a candidate; and its result by name, without
    times.
    """
    matmul, size = _matmul(dtype)
    limits = {"matmul": CeilingResult(2 * size**3, [], 0.0, dtype=dtype, size=size)}
    facts = {"config": CONFIG, "implementation": "XLA", "devices": 1}
    candidates = [Candidate(name="matmul", label="matmul", run=matmul, work=limits["matmul"].work, baseline=None, facts=facts)]
    return candidates, limits


def set_apart(results: BenchResults, limits: dict[str, CeilingResult]) -> None:
    """Takes the ceilings out of the candidates, and sets every candidate's share of them.

    The rate of a ceiling is that of its best turn: what slowed the others down was not the device.
    """
    for cell in results.cells:
        for candidate in [candidate for candidate in cell.candidates if candidate.name in limits]:
            cell.candidates.remove(candidate)
            limits[candidate.name].turns += candidate.turns
    for limit in limits.values():
        limit.rate = limit.work / min(min(turn) for turn in limit.turns)
    results.ceilings = limits
    for candidate in (candidate for cell in results.cells for candidate in cell.candidates):
        if candidate.flops_per_second:
            candidate.share_of_matmul = candidate.flops_per_second / limits["matmul"].rate


def _matmul(dtype: str) -> tuple[Callable[[int], None], int]:
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

    return run, size


def _seconds(multiply: Callable[[jax.Array, jax.Array], jax.Array], a: jax.Array, b: jax.Array) -> float:
    begin = time.perf_counter()
    multiply(a, b).block_until_ready()
    return time.perf_counter() - begin
