"""A sweep as CSV (a row a cell) and as JSON (everything that its page shows)."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

from mhsh.report.render.csv_file import to_csv
from mhsh.report.render.table import Table
from mhsh.report.sweep.cells import VERDICT_RULES, Sweep, SweptCell
from mhsh.report.sweep.quality import QUALITY_RULE, Quality
from mhsh.report.sweep.stability_map import SQUARE_RULE, Grid
from mhsh.text import sanitize


def as_csv(sweep: Sweep) -> bytes:
    """A row a cell: its name, settings, state and numbers; empty where not recorded."""
    rows = [_row(cell) for cell in sweep.cells]
    return to_csv(Table(list(rows[0]), [list(row.values()) for row in rows]))


def as_json(sweep: Sweep, qualities: Sequence[Quality], grids: Sequence[Grid]) -> bytes:
    """All that the page shows; null for what is missing or not finite."""
    fields = {
        "axes": {axis.path: list(axis.values) for axis in sweep.axes},
        "rules": [*VERDICT_RULES, QUALITY_RULE, SQUARE_RULE],
        "cells": [_row(cell) for cell in sweep.cells],
        "quality": [
            {"axis": quality.axis.path, "lines": [dataclasses.asdict(line) for line in quality.lines]} for quality in qualities
        ],
        "stability_map": [
            {
                "title": grid.title,
                "squares": [
                    {"learning_rate": rate, "layers": depth, **dataclasses.asdict(square)}
                    for (rate, depth), square in grid.squares.items()
                ],
            }
            for grid in grids
        ],
        "problems": list(sweep.problems),
    }
    return (json.dumps(finite(fields), indent=1, allow_nan=False) + "\n").encode()


def _row(cell: SweptCell) -> dict[str, Any]:
    summary = cell.summary
    model = cell.plan.config.model
    final, best = (summary.final_validation, summary.best_validation) if summary else (None, None)
    return {
        "cell": cell.plan.name,
        **cell.plan.settings,
        "layers": model.num_layers,
        "heads": model.num_heads,
        "state": cell.state.kind,
        "verdict": cell.verdict,
        "reason": sanitize(cell.state.reason),
        "final_validation_loss": final.loss if final else None,
        "best_validation_loss": best.loss if best else None,
        "best_validation_step": best.step if best else None,
        "final_training_loss": summary.final_train if summary else None,
        "steps": summary.last_step if summary else None,
        "tokens": summary.tokens if summary else None,
        "flops": summary.flops if summary else None,
        "device_seconds": summary.seconds if summary else None,
        "planned_parameters": cell.plan.cost.get("parameters"),
        "planned_tokens": cell.plan.cost.get("tokens"),
        "planned_flops": cell.plan.cost.get("flops"),
    }


def finite(value: Any) -> Any:
    """A JSON value with null for numbers that are not finite."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
