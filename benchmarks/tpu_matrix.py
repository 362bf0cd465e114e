"""Compiles the default training step of the shipped shapes for every kind of TPU.

  python -m benchmarks.tpu_matrix --out=docs/tpu_matrix.jsonl --only='384l1h|24l16h'

One chip, and 16 and 256 with data and with fsdp; rows of the shipped length and of 512 tokens,
2,048 tokens a chip. Needs the tpu extra, no TPU, and about a minute a step on two cores. It appends
a line of JSON for each step and leaves out those that are there, so it may be stopped at any time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.hlo.traffic import count_traffic
from mhsh.config.resolve import from_dict
from mhsh.config.schema import Config
from mhsh.configs import load_fields, override
from mhsh.errors import UserError
from mhsh.planning.compiled import measure, parse_topology
from mhsh.planning.hlo import parse_module

SHAPES = (
    *(f"bert:{name}" for name in ("24l16h", "48l8h", "96l4h", "192l2h", "384l1h", "12l12h", "144l1h")),
    *(f"translation:{name}" for name in ("6l8h", "48l1h", "18l8h", "100l8h")),
)
TOPOLOGIES = {
    1: {"v4": "1x1x1", "v5e": "1x1", "v5p": "1x1x1", "v6e": "1x1"},
    16: {"v4": "2x2x4", "v5e": "4x4", "v5p": "2x2x4", "v6e": "4x4"},
    256: {"v4": "4x8x8", "v5e": "16x16", "v5p": "4x8x8", "v6e": "16x16"},
}
MESHES = {"one chip": (1, 1), "data 16": (16, 1), "fsdp 16": (1, 16), "data 256": (256, 1), "fsdp 256": (1, 256)}
TOKENS_PER_CHIP = 2048
LONG = 512


def steps() -> Iterator[tuple[str, Config, str]]:
    """A name, the config and the topology of each step."""
    for shape, kind, (mesh, (data, fsdp)) in itertools.product(SHAPES, TOPOLOGIES[1], MESHES.items()):
        fields = load_fields(shape)
        chips = data * fsdp
        for length in sorted({fields["data"]["sequence_length"], LONG}):
            if length > fields["model"]["max_positions"]:
                continue
            changes = {
                "data.sequence_length": length,
                "train.batch_size": chips * TOKENS_PER_CHIP // length,
                "train.accumulation_steps": 1,
                "mesh.data": data,
                "mesh.fsdp": fsdp,
                "mesh.tensor": 1,
            }
            config = from_dict(override(fields, changes.items(), "--config."))
            yield f"{shape} {length} {mesh} {kind}", config, f"{kind}:{TOPOLOGIES[chips][kind]}"


def compile_report(config: Config, topology: str) -> dict[str, Any]:
    """What matters in the report of `mhsh plan` on the step, and the bytes that the step moves."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.hlo"
        try:
            report = measure(config, parse_topology(topology), hlo_path=path)
        except UserError as error:
            return {"error": str(error)}
        traffic = count_traffic(parse_module(path.read_text(encoding="utf-8"))) if path.exists() else None
    counts: Counter[str] = Counter()
    for collective in report.get("collectives", ()):
        counts[collective["kind"]] += collective["count"]
    return {
        "fits": report["fits"],
        "needed_bytes": report["needed_bytes"],
        "remat_policy": report["remat_policy"],
        "collectives": counts,
        "sent_bytes": sum(collective["sent_bytes"] for collective in report.get("collectives", ())),
        "moved_bytes": None if traffic is None else traffic.read + traffic.written,
        "compile_seconds": report["compile_seconds"],
        "versions": report["versions"],
    }


def main() -> None:
    """Compiles what is not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="a file of JSON lines")
    parser.add_argument("--only", default="", help="a regular expression that the step's name must have")
    options = parser.parse_args()
    done = {json.loads(line)["step"] for line in options.out.read_text().splitlines()} if options.out.exists() else set()
    for step, config, topology in steps():
        if step in done or not re.search(options.only, step):
            continue
        line = {"step": step, **compile_report(config, topology)}
        with options.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(step, line.get("error") or f"{line['compile_seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
