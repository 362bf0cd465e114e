"""The most that the device can do: a big matrix product and a big copy, timed in the same turns as
the candidates.
"""

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
# Bytes to copy: more than any cache holds.
COPIED_BYTES = {"cpu": 1 << 28}
COPIED_BYTES_ELSEWHERE = 1 << 30


def ceilings(dtype: str) -> tuple[list[Candidate], dict[str, CeilingResult]]:
    """Both as candidates, on the first device, the product in `dtype`; and their results by name,
    without times.
    """
    matmul, size = _matmul(dtype)
    copy, num_bytes = _copy()
    limits = {
        "matmul": CeilingResult("FLOP", 2 * size**3, [], 0.0, dtype=dtype, size=size),
        "copy": CeilingResult("byte", 2 * num_bytes, [], 0.0, bytes=num_bytes),  # read and written
    }
    facts = {"config": CONFIG, "implementation": "XLA", "devices": 1}
    runs = {"matmul": matmul, "copy": copy}
    candidates = [
        Candidate(name=name, label=name, run=run, work=limits[name].work, baseline=None, facts=facts) for name, run in runs.items()
    ]
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
        if candidate.bytes_per_second:
            candidate.share_of_copy = candidate.bytes_per_second / limits["copy"].rate


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


def _copy() -> tuple[Callable[[int], None], int]:
    num_bytes = COPIED_BYTES.get(jax.devices()[0].platform, COPIED_BYTES_ELSEWHERE)
    # In place: a fresh array would cost page faults on a CPU, and a third pass over the memory.
    change = jax.jit(lambda x: -x, donate_argnums=0)
    held = [jnp.ones(num_bytes // 4, jnp.float32)]

    def run(repetitions: int) -> None:
        for _ in range(repetitions):
            held[0] = change(held[0])
        held[0].block_until_ready()

    return run, num_bytes
