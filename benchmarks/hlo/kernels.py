"""Operations and bytes of a layer and a step on a GPU, by XLA and by our kernels, without the GPU.

  python -m benchmarks.hlo.kernels --config=bert:384l1h --config=bert:24l16h --rows=16 --rows=64

compiles each step for one H200 (or `--topology=h100:1`) by XLA alone and with kernels, and prints
operations and bytes of main memory. A layer is what the loops over layers do, forward and backward.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.hlo.programs import compile_step
from benchmarks.hlo.traffic import moved_bytes
from mhsh.configs import parse_config, take_changes
from mhsh.planning.compiled import parse_topology
from mhsh.planning.hlo import Module, execution, is_started


class Work(NamedTuple):
    """The work of a GPU in one run of a program, or in a part of it."""

    operations: int  # kernels, copies and library calls that it starts
    bytes: int  # to and from main memory

    def add(self, other: Work) -> Work:
        """The work of both, one after the other."""
        return Work(self.operations + other.operations, self.bytes + other.bytes)


def count_work(module: Module) -> tuple[Work, Work]:
    """The work of the whole program, and of its loops alone."""
    outside, loops = Work(0, 0), Work(0, 0)
    for step in execution(module, []):
        work = Work(step.times * is_started(step.instruction), step.times * moved_bytes(module, step))
        if step.frame == module.entry:
            outside = outside.add(work)
        else:
            loops = loops.add(work)
    return outside.add(loops), loops


def main() -> None:
    """Prints the work of the steps that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", action="append", required=True)
    parser.add_argument("--rows", action="append", type=int, required=True)
    parser.add_argument("--kernels", action="append", choices=("xla", "fused", "mosaic"))
    parser.add_argument("--topology", default="h200:1")
    options, rest = parser.parse_known_args()
    changes, unknown = take_changes("config", rest)
    if unknown:
        parser.error(f"unknown arguments: {unknown}")
    table = Table("", "rows", "kernels", "a layer", "MB", "a step", "GB", "temporary GiB", box=None, pad_edge=False)
    for name in options.config:
        for rows in options.rows:
            for kernels in options.kernels or ("xla", "fused"):
                config = parse_config("config", name, [*changes, ("train.batch_size", str(rows)), ("model.kernels", kernels)])
                assert config is not None
                report, module = compile_step(config, parse_topology(options.topology))
                step, loops = count_work(module)
                layers = config.model.num_layers + config.model.num_decoder_layers
                counts = (f"{loops.operations / layers:.2f}", f"{loops.bytes / layers / 1e6:,.0f}", f"{step.operations:,}")
                moved = (f"{step.bytes / 1e9:,.0f}", f"{report['memory']['temporaries'] / 2**30:.1f}")
                table.add_row(name, str(rows), kernels, *counts, *moved)
                print(f"{name}, {rows} rows, {kernels}: compiled in {report['compile_seconds']:.0f} s", flush=True)
    Console().print(table)


if __name__ == "__main__":
    main()
