"""Scoring a pre-training model on held-out rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax

from mhsh.models.contract import Batch
from mhsh.models.objective import Mean, Means


def evaluate(step: Callable[[Any, Batch], Means], params: Any, batches: Iterable[Batch]) -> dict[str, float]:
    """The figures of `step` over all batches together, each sum divided by its weight once, at the end."""
    totals: dict[str, tuple[float, float]] = {}
    for batch in batches:
        means: dict[str, Mean] = jax.device_get(step(params, batch))
        for name, mean in means.items():
            total, weight = totals.get(name, (0.0, 0.0))
            totals[name] = (total + float(mean.sum), weight + float(mean.weight))
    return {name: total / weight for name, (total, weight) in totals.items()}
