"""How long a training step takes on a TPU by the compiler's final schedules, without the device.

  python -m benchmarks.hlo.schedule --config=bert:384l1h --config.train.batch_size=16

compiles the step for one v5e (or `--topology=v5p:1x1x1`, `v6e:1x1`) and prints cycles, bytes and
milliseconds by part of it, and its MFU. libtpu writes the schedules while it compiles: VLIW
instructions ("bundles"), of which a core issues one a cycle. `--config` may be given several times.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.hlo.products import flops_of
from benchmarks.hlo.programs import compile_step
from benchmarks.hlo.traffic import PHASES, label_phases, moved_bytes
from mhsh.configs import parse_config, take_changes
from mhsh.models.costs import step_flops
from mhsh.planning.compiled import parse_topology
from mhsh.planning.hlo import Instruction, Module
from mhsh.planning.roofline import CHIPS, Chip

# Cycles a second: the public peak over the FLOPs of a cycle. A core of a v5e or v5p has four arrays
# of 128 x 128, and a v5p has two cores. A v6e makes 2^19 FLOPs a cycle: the schedule of a product
# of 8192 x 4096 x 4096 has 511,257.
CLOCKS = {"v5e": 1.5e9, "v5p": 1.75e9, "v6e": 1.75e9}

_FLAGS = "--xla_jf_dump_to={} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=final_bundles"
_DUMP = re.compile(r"\d+-(.*)-\d+-final_bundles\.txt")
# `  0x1b   : >> { ... }` is a bundle in two loops, `  0x6 LB: > { ... }` the first one of a loop.
_BUNDLE = re.compile(r"\s*(?:0x)?[0-9a-f]+\s+(?:[A-Z]{2})?\s*:\s*((?:>\s*)*)\{(\}?)")

# The bundles of a kernel by the number of loops around them.
Schedule = Mapping[int, int]


def read_schedule(text: str) -> Schedule:
    """The bundles of a `final_bundles.txt`, empty ones too: they wait for a branch or a result."""
    depths: dict[int, int] = defaultdict(int)
    before = 0
    for line in text.splitlines():
        if match := _BUNDLE.match(line):
            depth = match[1].count(">")
            # The branch that closes a loop, and what waits for it, are written without the loop.
            if (match[2] and "exit bundle" not in line) or (depth < before and "sbr.rel" in line):
                depth = before
            depths[depth] += 1
            before = depth
    return dict(depths)


def read_schedules(folder: Path) -> dict[str, Schedule]:
    """The schedules that the compiler wrote into a folder, by the instruction's name."""
    dumps = ((path, _DUMP.fullmatch(path.name)) for path in sorted(folder.iterdir()))
    return {
        match[1]: read_schedule(path.read_text(encoding="utf-8"))
        for path, match in dumps
        if match and not path.name.endswith("schedule-analysis_final_bundles.txt")
    }


def kernel_cycles(schedule: Schedule, instruction: Instruction) -> int:
    """Cycles in which one run of a kernel issues its bundles: those outside of loops once, those in
    its loop as often as its window has iterations. Loops within that loop (of gathers and scatters)
    count once, and so does a loop that has no window. Where a chip has two cores, most kernels
    split one axis of the window between them.
    """
    found = re.search(r'"iteration_bounds":\[([^\]]*)\]', instruction.attributes)
    bounds = [int(bound) for bound in re.findall(r"\d+", found[1])] if found else []
    split = re.search(r'"megacore_split_dim":"(\d+)"', instruction.attributes)
    if split and bounds:
        bounds[int(split[1])] = math.ceil(bounds[int(split[1])] / 2)
    iterations = math.prod(bounds)
    return sum(bundles * (iterations if depth else 1) for depth, bundles in schedule.items())


class Part(NamedTuple):
    """A part of a step on one device."""

    cycles: int  # in which its kernels issue bundles
    bytes: int  # to and from main memory
    seconds: float


def price(module: Module, schedules: Mapping[str, Schedule], chip: Chip, clock: float) -> dict[str, Part]:
    """Every part of a step, by PHASES.

    A kernel takes the longest of three: its bundles, its products at the chip's peak, its bytes at
    the chip's bandwidth. What is copied beside the kernels takes as long as its bytes. Stalls
    between two bundles and the start of a kernel are not counted.
    """
    schedules = schedules | _copies(module, schedules)
    cycles, moved, seconds = dict.fromkeys(PHASES, 0), dict.fromkeys(PHASES, 0), dict.fromkeys(PHASES, 0.0)
    for step, phase in label_phases(module):
        issued = kernel_cycles(schedules.get(step.instruction.name, {}), step.instruction)
        size = moved_bytes(module, step)
        longest = max(issued / clock, flops_of(module, step) / chip.peak_flops, size / chip.hbm_bandwidth)
        cycles[phase] += step.times * issued
        moved[phase] += step.times * size
        seconds[phase] += step.times * longest
    return {phase: Part(cycles[phase], moved[phase], seconds[phase]) for phase in PHASES}


def _copies(module: Module, schedules: Mapping[str, Schedule]) -> dict[str, Schedule]:
    """The schedules of kernels that equal another: the compiler makes and writes one of them."""
    instructions = [one for computation in module.computations.values() for one in computation.instructions.values()]
    written = {_likeness(module, one): schedules[one.name] for one in instructions if one.name in schedules}
    return {
        one.name: written[_likeness(module, one)]
        for one in instructions
        if one.name not in schedules and "iteration_bounds" in one.attributes and _likeness(module, one) in written
    }


def _likeness(module: Module, instruction: Instruction) -> Hashable:
    bounds = re.findall(r'"(?:iteration|kernel_window|input_window|output_window)_bounds":\[[^\]]*\]', instruction.attributes)
    called = [module.computations[name] for name in instruction.callees()]
    inner = [(one.opcode, one.shape) for computation in called for one in computation.instructions.values()]
    return instruction.opcode, instruction.shape, tuple(bounds), tuple(inner)


def main() -> None:
    """Prints the parts of the steps that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", action="append", required=True)
    parser.add_argument("--topology", default="v5e:1x1")
    options, rest = parser.parse_known_args()
    changes, unknown = take_changes("config", rest)
    kind = options.topology.partition(":")[0]
    if unknown or kind not in CLOCKS:
        parser.error(f"unknown arguments: {unknown}" if unknown else f"--topology={options.topology}: only {', '.join(CLOCKS)}")
    chip = CHIPS[kind]
    for name in options.config:
        config = parse_config("config", name, changes)
        assert config is not None
        with tempfile.TemporaryDirectory() as folder:
            os.environ["LIBTPU_INIT_ARGS"] = _FLAGS.format(folder)
            report, module = compile_step(config, parse_topology(options.topology))
            parts = price(module, read_schedules(Path(folder)), chip, CLOCKS[kind])
        table = Table(f"{name}, {options.topology}", "M cycles", "GB", "ms", box=None, pad_edge=False)
        parts |= {"all": Part(*(sum(column) for column in zip(*parts.values(), strict=True)))}
        for part, (cycles, moved, seconds) in parts.items():
            table.add_row(part, f"{cycles / 1e6:.2f}", f"{moved / 1e9:.2f}", f"{seconds * 1e3:.1f}")
        mfu = step_flops(config) / report["num_devices"] / chip.peak_flops / parts["all"].seconds
        Console().print(table, f"MFU {mfu:.0%}\n")


if __name__ == "__main__":
    main()
