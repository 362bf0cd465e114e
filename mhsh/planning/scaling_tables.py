"""The step on many devices as tables, one for every mesh and remat policy that was compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from mhsh.config.schema import Config
from mhsh.models.costs import step_flops
from mhsh.planning.chips import Chip
from mhsh.planning.scaling import Family, Prediction
from mhsh.training.memory import footprint, with_policy


def scaling_tables(
    config: Config, reports: Sequence[dict[str, Any]], chip: Chip, rows: dict[int, int], efficiency: float
) -> list[dict[str, Any]]:
    """A table for each fsdp size and remat policy among the reports of `mhsh aot`.

    Args:
      rows: of one device, by the number of devices to predict for.
      efficiency: the share of peak that matrix products reach.

    Raises:
      UserError: a report cannot be used (see `Family`).
    """
    tables = []
    for kind in sorted({_family_of(each) for each in reports}):
        family = Family(config, [each for each in reports if _family_of(each) == kind])
        tables.append(_table(with_policy(config, kind[2]), family, chip, rows, efficiency))
    return tables


def _family_of(report: dict[str, Any]) -> tuple[int, bool, str]:
    """fsdp, whether there is data beside it, and the remat policy. A program of one device along
    data says nothing of several.
    """
    return report["mesh"]["fsdp"], report["mesh"]["data"] > 1, report["remat_policy"]


def _table(config: Config, family: Family, chip: Chip, rows: dict[int, int], efficiency: float) -> dict[str, Any]:
    """One mesh family: where its programs come from, and a line for each number of devices that
    they speak for.
    """
    known = {devices: here for devices, here in rows.items() if family.knows(devices)}
    needed = {here: _needed_bytes(config, family.fsdp, here) for here in set(known.values())}
    lines: list[dict[str, Any]] = []
    reference = 0.0  # seconds a row on the first number of devices, if nothing had to be sent
    for devices, here in known.items():
        prediction = family.predict(config, chip, devices, here, efficiency)
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
