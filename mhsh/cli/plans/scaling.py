"""mhsh scaling: the step time on many devices, predicted from compiled programs and public chip
figures.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from mhsh.cli.flags import add_configs
from mhsh.cli.parser import examples
from mhsh.config.schema import Config
from mhsh.errors import UserError
from mhsh.files import read_object

_NEEDED = {"mesh", "batch_size", "num_devices", "num_slices", "topology", "remat_policy"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.epilog = examples(
        "mhsh scaling --config=bert:384l1h --report=aot.json --chip=v5e",
        "mhsh scaling --config=bert:384l1h --report=aot.json --chip=v4 --devices=64,512",
    )
    add_configs(parser, "config")
    parser.add_argument(
        "--report", dest="reports", action="append", required=True, metavar="FILE", help="what mhsh aot --json printed; several"
    )
    parser.add_argument("--chip", required=True, metavar="KIND", help="v4, v5e, v5p, v6e or h200")
    parser.add_argument("--devices", default="8,16,32,64,128,256,512,1024", metavar="N,...", help="how many (default: 8 to 1,024)")
    rows = parser.add_mutually_exclusive_group()
    rows.add_argument("--rows-per-device", type=int, metavar="R", help="a fixed batch a device (default: that of the first report)")
    rows.add_argument("--batch", type=int, metavar="B", help="a fixed global batch instead")
    parser.add_argument(
        "--efficiency", type=float, default=0.75, metavar="X", help="of peak that matrix products reach (default: 0.75)"
    )
    parser.add_argument("--json", dest="as_json", action="store_true", help="as JSON")


def run(
    config: Config,
    reports: Sequence[str],
    chip: str,
    devices: str,
    rows_per_device: int | None,
    batch: int | None,
    efficiency: float,
    as_json: bool,
) -> int:
    """Prints the predicted step of `config` on each number of `devices`, a table a mesh, from the
    files of `mhsh aot --json`.
    """
    from mhsh.planning.chips import CHIPS
    from mhsh.planning.scaling_tables import scaling_tables

    if chip not in CHIPS:
        raise UserError(f"--chip={chip} is not known; allowed: {', '.join(CHIPS)}")
    if not 0 < efficiency <= 1:
        raise UserError(f"--efficiency={efficiency:g}: give a share of peak, above 0 and at most 1")
    for flag, value in (("--rows-per-device", rows_per_device), ("--batch", batch)):
        if value is not None and value < 1:
            raise UserError(f"{flag}={value}: give 1 or more")
    counts = _counts(devices)
    read = [_read(name) for name in reports]
    if rows_per_device is None and batch is None:
        rows_per_device = read[0]["batch_size"] // read[0]["num_devices"]
    rows = {count: rows_per_device or (batch or 0) // count for count in counts if rows_per_device or (batch or 0) % count == 0}
    tables = scaling_tables(config, read, CHIPS[chip], rows, efficiency)
    if as_json:
        figures = {"efficiency": efficiency, "chip": dataclasses.asdict(CHIPS[chip])}
        print(json.dumps({"assumed": figures, "meshes": tables}, indent=2))
    else:
        print(f"PREDICTED, not measured: {chip}, matrix products at {efficiency:.0%} of peak")
        others = sorted({kind for report in read if (kind := report["topology"].split(":")[0]) != chip})
        if others:
            print(f"memory traffic and collectives are those of programs for {', '.join(others)}")
        for table in tables:
            _print(table)
    return 0


def _counts(devices: str) -> list[int]:
    try:
        counts = sorted({int(text) for text in devices.split(",")})
    except ValueError:
        counts = []
    if not counts or counts[0] < 1:
        raise UserError(f"--devices={devices}: give numbers of devices with commas between, for example 8,16,32")
    return counts


def _read(name: str) -> dict[str, Any]:
    try:
        report = read_object(name)
    except UserError as error:
        raise UserError(f"--report={name}: {error}; give what mhsh aot --json prints") from error
    if not report.keys() >= _NEEDED:
        raise UserError(f"--report={name} is not what mhsh aot --json prints")
    return report


def _print(table: dict[str, Any]) -> None:
    mesh = f"fsdp {table['fsdp']} x data" if table["fsdp"] > 1 else "data"
    print(f"\n{mesh}, remat {table['remat_policy']}; collectives as compiled for {', '.join(table['programs'])}")
    times = ("compute ms", "HBM ms", "hops ms", "bytes ms", "step ms")
    shown = Table("devices", "rows each", *times, "M tokens/s", "efficiency", "MFU", "GiB", "limit", box=None, pad_edge=False)
    for line in table["lines"]:
        seconds = line["seconds"]
        parts = [f"{1e3 * seconds[name]:.2f}" for name in ("compute", "hbm", "latency", "transfer")]
        shown.add_row(
            f"{line['devices']:,}",
            f"{line['rows_per_device']}",
            *parts,
            f"{1e3 * seconds['hidden']:.2f} - {1e3 * seconds['exposed']:.2f}",
            _range(line["tokens_per_second"], 1e-6, ".2f"),
            _range(line["efficiency"], 1.0, ".0%"),
            _range(line["mfu"], 1.0, ".0%"),
            f"{line['needed_bytes'] / 2**30:.1f}{'' if line['fits'] else ', too much'}",
            line["limit"],
        )
    Console(width=200).print(shown)


def _range(bounds: dict[str, float], unit: float, form: str) -> str:
    """From the worse bound to the better one."""
    return " - ".join(format(bounds[name] * unit, form) for name in ("exposed", "hidden"))
