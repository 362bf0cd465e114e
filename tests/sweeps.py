"""Sweep folders as a sweep leaves them, made by hand: planned as a sweep plans, with run folders as
training writes them.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from mhsh.storage.outcome import DIVERGED
from mhsh.storage.run_folder import RunFolder
from mhsh.sweep.axes import Cell, cells_of, parse_axes
from mhsh.sweep.folder import Plan, SweepFolder

ENTROPY = 3.0  # nats, of every run here
FAILED = "failed"
# Of the run.json and of every validation row of runs that were trained and validated alike.
TRAINED_ALIKE = {"remat_policy": "none", "code": {"0": "c0de"}, "numerics": {"0": {"jax_enable_x64": False}}}
VALIDATED_ALIKE = {"batch": "ba7c4e5"}


def write_sweep(
    path: str | Path, fields: Mapping[str, Any], axes: Sequence[str], ends: Mapping[str, Any], reason: str = ""
) -> SweepFolder:
    """A sweep folder; `ends` by cell: its final loss (training and validation alike), nan where
    training gave up, FAILED with `reason`; a cell that is not named has not run.
    """
    parsed = parse_axes(axes, fields)
    cells = cells_of(parsed, fields, lambda config: {"parameters": 1000, "tokens": 2000, "flops": 3000})
    folder = SweepFolder(path)
    folder.open_for(Plan(parsed, cells))
    assert set(ends) <= {cell.name for cell in cells}
    with mock.patch("os.fsync"):  # these files need not survive a power cut
        for cell in cells:
            if cell.name in ends and ends[cell.name] == FAILED:
                folder.finish(cell.name, 2, reason)
            elif cell.name in ends:
                _write_run(folder.run_folder(cell.name).path, cell, ends[cell.name])
    return folder


def _write_run(path: Any, cell: Cell, loss: float) -> None:
    folder = RunFolder.open_for_training(path, cell.config)
    gave_up = loss != loss
    status = {"status": "stopped", "outcome": DIVERGED} if gave_up else {"status": "finished"}
    folder.write_run({**status, "data": {"unigram_entropy": ENTROPY}, "parameters": {"total": 1000}, **TRAINED_ALIKE})
    tokens, end = cell.settings.get("budget", 10), cell.config.train.num_steps
    noise = 1e-12 * zlib.crc32(str(path).encode())  # no two runs take the same time
    for half, value in enumerate([5.0, loss], 1):
        row = {"step": half * end // 2, "tokens": tokens * half, "flops": 100 * half, "seconds": 0.5 * half + noise, "loss": value}
        folder.append_metrics([row | {"split": "train"}])
        if not gave_up:
            folder.append_metrics([row | {"split": "validation"} | VALIDATED_ALIKE])
