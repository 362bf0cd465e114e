"""The document of a bench run as it is made and written; mhsh/bench/schema.py says what it
holds.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from mhsh.bench.candidate import Candidate
from mhsh.bench.intervals import Estimate, estimate, ratios
from mhsh.bench.rounds import Times
from mhsh.bench.schema import FORMAT
from mhsh.config.schema import Config, to_dict
from mhsh.errors import UserError
from mhsh.models.costs import PEAK_FLOPS
from mhsh.training.recorder import environment


def document(
    kind: str,
    unit: str,
    settings: Mapping[str, Any],
    configs: Mapping[str, Config],
    cells: Sequence[Mapping[str, Any]],
    ceilings: Mapping[str, Any],
    torch: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """All of it; the fields are described in `mhsh.bench.schema`."""
    dtypes = {config.model.compute_dtype for config in configs.values()}
    surroundings = {
        "cores": cores(),
        "processor": platform.processor() or platform.machine(),
        "torch": torch,
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "glibc_tunables": os.environ.get("GLIBC_TUNABLES"),
        "xla_preallocates": os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "true") != "false",
    }
    peak = PEAK_FLOPS.get(jax.devices()[0].device_kind) if dtypes == {"bfloat16"} else None
    for cell in cells:
        for entry in cell["candidates"]:
            entry.update(_shares(entry, ceilings, peak))
    return {
        "format": FORMAT,
        "kind": kind,
        "unit": unit,
        "environment": environment() | surroundings,
        "settings": dict(settings),
        "configs": {name: to_dict(config) for name, config in configs.items()},
        "ceilings": dict(ceilings),
        "peak_flops": peak,
        "cells": list(cells),
    }


def cell(setting: Mapping[str, Any], candidates: Sequence[Candidate], times: Mapping[str, Times]) -> dict[str, Any]:
    """One setting, its candidates in order."""
    by_name = {candidate.name: candidate for candidate in candidates}
    entries = []
    for candidate in candidates:
        baseline = by_name.get(candidate.baseline or "")
        entries.append(_entry(candidate, times[candidate.name], baseline, times[baseline.name] if baseline else None))
    return {"setting": dict(setting), "candidates": entries}


def _entry(candidate: Candidate, times: Times, baseline: Candidate | None, others: Times | None) -> dict[str, Any]:
    taken = [statistics.median(turn) for turn in times.turns]
    seconds = estimate(taken)
    entry: dict[str, Any] = {
        "name": candidate.name,
        "label": candidate.label,
        "baseline": candidate.baseline,
        **candidate.facts,
        "work": candidate.work,
        "repetitions": times.repetitions,
        "turns": times.turns,
        "cpu": times.cpu,
        "seconds": seconds._asdict(),
        "rate": candidate.work / seconds.median,
        "time_ratio": None,
        "cpu_ratio": None,
        "best_ratio": None,
    }
    if baseline is None or others is None:
        return entry
    theirs = [statistics.median(turn) for turn in others.turns]
    share = baseline.work / candidate.work
    return entry | {
        "time_ratio": _scaled(estimate(ratios(taken, theirs)), share),
        # The system may count CPU time in ticks: a turn shorter than one has none.
        "cpu_ratio": _scaled(estimate(ratios(times.cpu, others.cpu)), share) if all(others.cpu) else None,
        "best_ratio": share * min(taken) / min(theirs),
    }


def _scaled(found: Estimate, factor: float) -> dict[str, float]:
    scaled = found._replace(median=factor * found.median, low=factor * found.low, high=factor * found.high)
    return scaled._asdict()


def _shares(entry: Mapping[str, Any], ceilings: Mapping[str, Any], peak: float | None) -> dict[str, float | None]:
    seconds, devices = entry["seconds"]["median"], entry.get("devices", 1)
    flops = entry["flops"] / seconds / devices if entry.get("flops") else None
    moved = entry["bytes_accessed"] / seconds if entry.get("bytes_accessed") else None

    def share(rate: float | None, ceiling: float | None) -> float | None:
        return None if rate is None or not ceiling else rate / ceiling

    return {
        "flops_per_second": flops,
        "share_of_matmul": share(flops, ceilings.get("matmul", {}).get("rate")),
        "share_of_peak": share(flops, peak),
        "bytes_per_second": moved,
        "share_of_copy": share(moved, ceilings.get("copy", {}).get("rate")),
    }


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_out(out: str | None) -> None:
    """Raises UserError where `out` cannot be written, before anything is measured."""
    if out is None:
        return
    if os.path.lexists(out):
        raise UserError(f"--out={out} exists, and nothing is overwritten; choose another file")
    if not Path(out).absolute().parent.is_dir():
        raise UserError(f"--out={out}: there is no folder {Path(out).absolute().parent}; make it, or choose another file")


def write(found: Mapping[str, Any], out: str) -> None:
    """The JSON into a new file."""
    try:
        with open(out, "x", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
            file.write("\n")
    except FileExistsError as error:
        raise UserError(f"--out={out} exists by now, and nothing is overwritten; the figures are lost but for the table") from error
