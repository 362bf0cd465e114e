"""What every model reads and what it says: the batch, and the outputs that losses are computed
from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float

Batch = Mapping[str, Array | np.ndarray]  # numpy where nothing is compiled yet


class Outputs(NamedTuple):
    """What a model says about a batch; logits are fp32."""

    # [B,P,V] at the predicted positions (mlm) or at all of them (clm, translation); [B,C] of a row
    # (classification); [B,2,T] of the first and the last token of an answer (span)
    logits: Float[Array, "B *predicted V"]
    next_sentence: Float[Array, "B 2"] | None  # class 1: the second segment really follows the first
