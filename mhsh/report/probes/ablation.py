"""What an ablation adds to the loss, out of its JSON."""

from __future__ import annotations

from typing import Any

import numpy as np


def more_loss(figures: dict[str, Any], name: str) -> np.ndarray:
    """How much each of the changes `name` (skipped, swapped, without_last) adds to the loss of a
    stack's model, in nats: [batches, changes].
    """
    losses = list(figures[name].values()) if isinstance(figures[name], dict) else figures[name]
    return (np.array(losses).reshape(-1, len(figures["whole"])) - np.array(figures["whole"])).T
