"""Where the rows of metrics.jsonl are shown besides: train.tracker."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

AXES = ("step", "split", "tokens", "flops", "seconds")


@runtime_checkable
class Tracker(Protocol):
    """Takes the rows of one process of a run, in the order of their steps."""

    def write(self, row: Mapping[str, Any]) -> None:
        """Adds the row of one step and split."""

    def flush(self) -> None:
        """Writes all rows so far."""

    def close(self, *, failed: bool) -> None:
        """Writes all rows and ends; `failed`: an error has ended the run."""


def curves(row: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a row by tag, such as train/loss, without the axes. One that is not finite is
    left out, which leaves a gap in its curve; metrics.jsonl has null.
    """
    return {
        f"{row['split']}/{key}": float(value)
        for key, value in row.items()
        if key not in AXES and isinstance(value, int | float) and math.isfinite(value)
    }
