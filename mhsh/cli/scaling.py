"""mhsh scaling: the step time on many devices, predicted from compiled programs and public figures
of chips.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from mhsh.config.schema import Config
from mhsh.errors import UserError
from mhsh.files import read_object
from mhsh.models.costs import step_flops
from mhsh.planning.aot import GIB
from mhsh.planning.chips import CHIPS, Chip
from mhsh.planning.scaling import Family, Prediction
from mhsh.training.footprint import footprint
from mhsh.training.remat import with_policy

_NEEDED = {"mesh", "batch_size", "num_devices", "num_slices", "topology", "remat_policy"}


def run(
    config: Config,
    reports: Sequence[str],
    chip: str,
    devices: str,
    rows_per_device: int | None,
    batch: int | None,
    efficiency: float,
    stream_passes: float,
    as_json: bool,
) -> int:
    """Prints the predicted step of `config` on each number of `devices`, a table a mesh, from the
    files of `mhsh aot --json`.
    """
    if chip not in CHIPS:
        raise UserError(f"--chip={chip} is not known; allowed: {', '.join(CHIPS)}")
    if not 0 < efficiency <= 1 or stream_passes < 2:
        raise UserError("--efficiency is above 0 and at most 1; --stream-passes at least 2: one read and one write")
    counts = _counts(devices)
    read = [_read(name) for name in reports]
    if rows_per_device is None and batch is None:
        rows_per_device = read[0]["batch_size"] // read[0]["num_devices"]
    rows = {count: rows_per_device or (batch or 0) // count for count in counts if rows_per_device or (batch or 0) % count == 0}
    tables = []
    for kind in sorted({_family_of(each) for each in read}):
        family = Family(config, [each for each in read if _family_of(each) == kind])
        tables.append(_table(with_policy(config, kind[2]), family, CHIPS[chip], rows, efficiency, stream_passes))
    if as_json:
        figures = {"efficiency": efficiency, "stream_passes": stream_passes, "chip": dataclasses.asdict(CHIPS[chip])}
        print(json.dumps({"assumed": figures, "meshes": tables}, indent=2))
    else:
        assumed = f"matrix products at {efficiency:.0%} of peak, {stream_passes:g} moves of the stream a sublayer"
        print(f"PREDICTED, not measured: {chip}, {assumed}")
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
    report = read_object(name)
    if not report.keys() >= _NEEDED:
        raise UserError(f"--report={name} is not what mhsh aot --json prints")
    return report


def _family_of(report: dict[str, Any]) -> tuple[int, bool, str]:
    """fsdp, whether there is data beside it, and the remat policy. A program of one device along
    data says nothing of several.
    """
    return report["mesh"]["fsdp"], report["mesh"]["data"] > 1, report["remat_policy"]


def _table(
    config: Config, family: Family, chip: Chip, rows: dict[int, int], efficiency: float, stream_passes: float
) -> dict[str, Any]:
    """One mesh family: where its programs come from, and a line for each number of devices that
    they speak for.
    """
    known = {devices: here for devices, here in rows.items() if family.knows(devices)}
    needed = {here: _needed_bytes(config, family.fsdp, here) for here in set(known.values())}
    lines: list[dict[str, Any]] = []
    reference = 0.0  # seconds a row on the first number of devices, if nothing had to be sent
    for devices, here in known.items():
        prediction = family.predict(config, chip, devices, here, efficiency, stream_passes)
        reference = reference or prediction.work.total / here
        lines.append(_line(config, chip, prediction, devices, reference, needed[here]))
    programs = [f"{each['topology']} data {each['mesh']['data']} batch {each['batch_size']}" for each in family.reports]
    return {"fsdp": family.fsdp, "remat_policy": config.model.remat_policy, "programs": programs, "lines": lines}


def _needed_bytes(config: Config, fsdp: int, rows: int) -> int:
    """Of one device; the number of devices along data does not matter."""
    train = replace(config.train, batch_size=rows * fsdp)
    return footprint(replace(config, train=train), {"data": 1, "fsdp": fsdp, "tensor": 1}).total


def _line(config: Config, chip: Chip, prediction: Prediction, devices: int, reference: float, needed: int) -> dict[str, Any]:
    rows = prediction.rows
    tokens = rows * devices * config.data.sequence_length
    useful = step_flops(config) / config.train.batch_size * rows  # of one device
    bounds = {"hidden": prediction.hidden, "exposed": prediction.exposed}
    return {
        "devices": devices,
        "data": prediction.data,
        "rows_per_device": rows,
        "seconds": {"compute": prediction.work.compute, "hbm": prediction.work.hbm, **prediction.exchange._asdict(), **bounds},
        "exchanges": [
            {"kind": kind, "axis": axis, **exchange._asdict()} for (kind, axis), exchange in prediction.exchanges.items()
        ],
        "tokens_per_second": {name: tokens / seconds for name, seconds in bounds.items()},
        "efficiency": {name: reference * rows / seconds for name, seconds in bounds.items()},
        "mfu": {name: useful / seconds / chip.peak_flops for name, seconds in bounds.items()},
        "needed_bytes": needed,
        "fits": needed <= chip.hbm_bytes,
        "limit": prediction.limit,
    }


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
            f"{line['needed_bytes'] / GIB:.1f}{'' if line['fits'] else ', too much'}",
            line["limit"],
        )
    Console(width=200).print(shown)


def _range(bounds: dict[str, float], unit: float, form: str) -> str:
    """From the worse bound to the better one."""
    return " - ".join(format(bounds[name] * unit, form) for name in ("exposed", "hidden"))
