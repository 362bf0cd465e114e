"""The figures that are sums over held-out rows, and the logits of all these rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from mhsh.models.losses import WeightedSum, WeightedSums
from mhsh.models.types import Batch


def evaluate(step: Callable[[Any, Batch], WeightedSums], params: Any, batches: Iterable[Batch]) -> dict[str, float]:
    """The figures of `step` over all batches together, each sum divided by its weight once, at the
    end.
    """
    return _divided(jax.device_get(step(params, batch)) for batch in batches)


def evaluate_rows(
    step: Callable[[Any, Batch], tuple[WeightedSums, Array]], params: Any, batches: Iterable[Batch], num_rows: int
) -> tuple[dict[str, float], Float[np.ndarray, "rows ..."]]:
    """As `evaluate`, and the logits of the first `num_rows` rows; what follows fills the last
    batch.
    """
    parts: list[tuple[WeightedSums, np.ndarray]] = [jax.device_get(step(params, batch)) for batch in batches]
    return _divided(means for means, _ in parts), np.concatenate([logits for _, logits in parts])[:num_rows]


def _divided(parts: Iterable[dict[str, WeightedSum]]) -> dict[str, float]:
    totals: dict[str, tuple[float, float]] = {}
    for means in parts:
        for name, mean in means.items():
            total, weight = totals.get(name, (0.0, 0.0))
            totals[name] = (total + float(mean.sum), weight + float(mean.weight))
    return {name: total / weight for name, (total, weight) in totals.items()}
