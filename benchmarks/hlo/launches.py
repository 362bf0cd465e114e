"""What a GPU starts in a compiled step, without the GPU.

  python -m benchmarks.hlo.launches --config=bert:384l1h --topology=h100:1

prints the operations of each loop body and of the rest, and how many of them the host starts: a
CUDA graph is started as one.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.hlo.programs import compile_step, read_arguments
from mhsh.planning.hlo import launches

_LINE = re.compile(r"( *)(?:\d+: k(\w+)|(condition|body):)")


class Body(NamedTuple):
    """One run of a loop body, or of what is outside of all loops."""

    operations: int
    by_host: int


def read_thunks(lines: Iterable[str]) -> list[Body]:
    """The thunks that XLA runs, from its dump of them: outside of loops, then of each loop body.

    Conditions are left out: XLA knows how often these loops run.
    """
    counts = [[0, 0]]
    above: list[tuple[int, str, int]] = []  # indentation, kind and body of the lines that this one is in
    in_condition = False
    for match in filter(None, map(_LINE.match, lines)):
        indent, kind = len(match[1]), match[2] or match[3]
        in_condition = kind == "condition" or (in_condition and kind != "body")
        if in_condition:  # its title is not indented
            continue
        while above and above[-1][0] >= indent:
            above.pop()
        kinds, body = {one for _, one, _ in above}, above[-1][2] if above else 0
        if kind == "body":
            counts.append([0, 0])
            body = len(counts) - 1
        above.append((indent, kind, body))
        # A slice of an array is copied by the copy inside it.
        if kind in ("body", "While") or "DynamicSliceFusion" in kinds:
            continue
        counts[body][0] += kind != "CommandBuffer"
        counts[body][1] += "CommandBuffer" not in kinds
    return [Body(*both) for both in counts]


def main() -> None:
    """Prints the operations of the step that the arguments name."""
    config, topology = read_arguments(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        dump = f"--xla_dump_to={folder} --xla_dump_hlo_module_re=train_step"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {dump}"
        report, module = compile_step(config, topology)
        (thunks,) = Path(folder).glob("*.thunk_sequence_after_thunk_passes.txt")
        bodies = read_thunks(thunks.read_text(encoding="utf-8").splitlines())
    table = Table("", "runs", "operations", "started by the host", box=None, pad_edge=False)
    together = [0, 0]
    for number, (body, total) in enumerate(zip(bodies, launches(module).values(), strict=True)):
        runs = total // body.operations
        together = [sum_before + runs * count for sum_before, count in zip(together, body, strict=True)]
        table.add_row(f"loop {number}" if number else "outside", f"{runs:,}", *(f"{count:,}" for count in body))
    table.add_row("a step", "", *(f"{count:,}" for count in together))
    Console().print(table)
    print(f"temporaries {report['memory']['temporaries'] / 2**30:.2f} GiB, compiled in {report['compile_seconds']:.0f} s")


if __name__ == "__main__":
    main()
