"""Bench files made by hand, so that every ratio, crossing and cost in them is known beforehand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mhsh.config.schema import Config, to_dict

Spread = tuple[float, float, float]  # median, low, high


def interval(spread: Spread) -> dict[str, float]:
    return {**dict(zip(("median", "low", "high"), spread, strict=True)), "confidence": 0.95}


def candidate(name: str, label: str, seconds: Spread, ratio: Spread | None, **facts: Any) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "baseline": None if ratio is None else "config",
        "config": name,
        "implementation": "mhsh",
        "devices": 1,
        "work": 640,
        "seconds": interval(seconds),
        "time_ratio": None if ratio is None else interval(ratio),
        "memory": {"arguments": 1000, "temporaries": 500, "peak": 1200},
        **facts,
    }


def bench(kind: str, configs: Mapping[str, Config], cells: Mapping[tuple[int, int], list[dict[str, Any]]]) -> dict[str, Any]:
    return {
        "format": 1,
        "kind": kind,
        "environment": {"devices": {"platform": "gpu", "kind": "Abacus 7", "count": 1}, "processor": "x86_64", "cores": 2},
        "configs": {name: to_dict(config) for name, config in configs.items()},
        "cells": [{"setting": {"batch": b, "length": t}, "candidates": found} for (b, t), found in cells.items()],
    }


def write(path: Path, document: Any) -> str:
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


# Seconds of the deep one over those of the shallow one. Inverted, along the batch: at length 32 2,
# 0.5, 1; at 128 4, 1.25, 0.8.
RATIOS: dict[tuple[int, int], Spread] = {
    (1, 32): (0.5, 0.4, 0.8),
    (4, 32): (2.0, 1.6, 2.5),
    (16, 32): (1.0, 0.8, 1.25),
    (1, 128): (0.25, 0.2, 0.5),
    (4, 128): (0.8, 0.5, 1.25),
    (16, 128): (1.25, 1.1, 2.0),
}


def two_shapes(
    configs: Mapping[str, Config], kind: str = "inference", labels: tuple[str, str] = ("mhsh 2x8 admin", "mhsh 16x1 admin")
) -> dict[str, Any]:
    """The shallow one takes a second at every setting; `configs` are those of the two."""
    cells = {
        setting: [candidate("config", labels[0], (1.0, 0.9, 1.2), None), candidate("against", labels[1], ratio, ratio)]
        for setting, ratio in RATIOS.items()
    }
    return bench(kind, configs, cells)
