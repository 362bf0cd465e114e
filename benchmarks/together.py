"""The cost of cells of a sweep that train in one program (`mhsh work --together=N`).

  python -m benchmarks.together --config=study:base --cells=1 --cells=8 --steps=200
  python -m benchmarks.together --config=study:trained --cells=1 --cells=24 --topology=h100:1

The first runs the steps here, of all numbers of cells in turns: seconds and CPU-seconds a cell and
step (the fastest turn), tokens a second, and by how much a loss of the first or the last cell
differs from that of the same step alone, at most, in all steps. The second compiles them for a
device that is not there, and counts operations and bytes of main memory a cell.
"""

from __future__ import annotations

import argparse
import functools
import os
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from benchmarks.hlo.kernels import count_work
from benchmarks.hlo.programs import compile_step
from mhsh.bench.steps import synthetic_batch
from mhsh.config.schema import Config
from mhsh.configs import take_config
from mhsh.models.build import build_model
from mhsh.planning.compiled import parse_topology
from mhsh.training.mesh import make_mesh
from mhsh.training.optimizer import build_optimizer
from mhsh.training.plan import plan_run
from mhsh.training.program import stack_trees
from mhsh.training.sharding import put_batch
from mhsh.training.state import create_state
from mhsh.training.step import compile_train_step, run_inputs

TURNS = 3


class Cells:
    """Some cells in one program; each has its own seed, rate and rows."""

    def __init__(self, config: Config, seeds: Sequence[int]) -> None:
        mesh, model, optimizer = make_mesh(plan_run(config).mesh_shape), build_model(config.model), build_optimizer(config)
        self._count, rates = len(seeds), [config.optimizer.learning_rate * 1.1**seed for seed in seeds]
        configs = [
            replace(config, train=replace(config.train, seed=seed), optimizer=replace(config.optimizer, learning_rate=rate))
            for seed, rate in zip(seeds, rates, strict=True)
        ]
        rows = synthetic_batch(config, config.train.batch_size)
        batches = [{k: np.roll(v, seed, 1) if k in ("inputs", "targets") else v for k, v in rows.items()} for seed in seeds]
        states = [create_state(each, model, optimizer, mesh, put_batch(rows, mesh)) for each in configs]
        begun = time.monotonic()
        self.compiled = compile_train_step(config, model, optimizer, mesh, states[0], len(seeds))
        self.compile_seconds = time.monotonic() - begun
        self._step = functools.partial(self.compiled, self._join_runs([run_inputs(each, mesh) for each in configs]))
        self._states, self._batch = self._join_runs(states), self._join_runs([put_batch(batch, mesh) for batch in batches])
        self.losses: list[np.ndarray] = []  # of each step, a loss a cell
        self.seconds, self.cpu_seconds = [], []

    def _join_runs(self, trees: Sequence[Any]) -> Any:
        return trees[0] if self._count == 1 else stack_trees(list(trees))

    def run(self, steps: int) -> None:
        """A turn: so many steps."""
        begun, cpu, seen = time.monotonic(), time.process_time(), []
        for _ in range(steps):
            self._states, metrics = self._step(self._states, self._batch)
            seen.append(metrics.sums["target_loss"])
        fetched = jax.device_get(seen)
        self.losses += [np.atleast_1d(total.sum / total.weight) for total in fetched]
        self.seconds.append((time.monotonic() - begun) / steps / self._count)
        self.cpu_seconds.append((time.process_time() - cpu) / steps / self._count)


def run_here(config: Config, counts: Sequence[int], steps: int) -> Table:
    """The table of the steps that run on this device."""
    programs = {count: Cells(config, range(count)) for count in counts}
    alone = {place: Cells(config, [place]) for place in {0, max(counts) - 1}}
    tokens = config.train.batch_size * config.data.sequence_length
    for _ in range(TURNS):
        for program in (*programs.values(), *alone.values()):
            program.run(-(-steps // TURNS))
    head = ("cells", "ms a cell", "CPU-ms", "tokens/s", "compiled in s", "temporary MiB", "largest difference of a loss")
    table = Table(*head, box=None, pad_edge=False)
    for count, program in programs.items():
        mine = {0, count - 1} & set(alone)
        difference = max(abs(float(a[c] - b[0])) for c in mine for a, b in zip(program.losses, alone[c].losses, strict=True))
        fastest, memory = min(program.seconds), program.compiled.memory_analysis()
        temporary = f"{memory.temp_size_in_bytes / 2**20:,.0f}" if memory else ""
        figures = (f"{fastest * 1e3:.2f}", f"{min(program.cpu_seconds) * 1e3:.2f}", f"{tokens / fastest:,.0f}")
        table.add_row(str(count), *figures, f"{program.compile_seconds:.1f}", temporary, f"{difference:.1e}")
    return table


def count_there(config: Config, counts: Sequence[int], topology: str) -> Table:
    """The table of the steps that are compiled for another device."""
    head = ("cells", "operations a step", "a cell", "MB a cell", "temporary MiB a cell", "compiled in s")
    table = Table(*head, box=None, pad_edge=False)
    for count in counts:
        report, module = compile_step(config, parse_topology(topology), count)
        work, _ = count_work(module)
        each = (f"{work.operations / count:,.0f}", f"{work.bytes / count / 1e6:,.0f}")
        temporary = f"{report['memory']['temporaries'] / count / 2**20:,.0f}"
        table.add_row(str(count), f"{work.operations:,}", *each, temporary, f"{report['compile_seconds']:.0f}")
    return table


def main() -> None:
    """Prints one of the two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True)
    parser.add_argument("--cells", action="append", type=int, required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--topology")
    options, rest = parser.parse_known_args()
    config, unknown = take_config("config", options.config, rest)
    if config is None or unknown:
        parser.error(f"unknown arguments: {unknown}")
    if options.topology:
        table = count_there(config, options.cells, options.topology)
    else:
        print(f"{jax.devices()[0].device_kind}, load {os.getloadavg()[0]:.0f}, {options.steps} steps in {TURNS} turns")
        table = run_here(config, options.cells, options.steps)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
