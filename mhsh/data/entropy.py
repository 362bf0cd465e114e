"""What a model that knows nothing but token frequencies would lose: the entropy of the unigram
distribution.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Integer


def unigram_entropy(tokens: Integer[np.ndarray, ...]) -> float:
    """The entropy -sum p ln p, in nats per token, of the frequencies p of the ids in `tokens`.

    It is the least loss of a model that has learnt frequencies only and predicts every token alike,
    on the very tokens it is counted on. A corpus counts the tokens that its training rows can ask
    for: the targets ([SEP] or end marks among them), or for mlm the inputs that are neither special
    nor padding.
    """
    return entropy_of_counts(np.bincount(tokens.reshape(-1)))


def entropy_of_counts(counts: Integer[np.ndarray, " V"]) -> float:
    """The same, of how often every id occurs."""
    frequencies = counts[counts > 0] / max(1, counts.sum())
    return float(-(frequencies * np.log(frequencies)).sum())
