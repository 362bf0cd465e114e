"""What every model reads and what it says: the batch, and the outputs that losses are computed from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float

Batch = Mapping[str, Array | np.ndarray]  # numpy where nothing is compiled yet


class Outputs(NamedTuple):
    """What a model says about a batch; logits are fp32."""

    logits: Float[Array, "B P V"]  # P: the predicted positions (mlm), or all T (clm, translation)
    next_sentence: Float[Array, "B 2"] | None  # class 1: the second segment really follows the first
