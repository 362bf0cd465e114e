"""The entropy of the unigram distribution: the loss of a model that knows frequencies only."""

from __future__ import annotations

import numpy as np
from jaxtyping import Integer


def unigram_entropy(tokens: Integer[np.ndarray, ...]) -> float:
    """The entropy -sum p ln p, in nats per token, of the frequencies p of the ids in `tokens`.

    It is the lowest loss, on these tokens, of a model that predicts the same distribution
    everywhere. A corpus counts the tokens that its training examples can ask for: the targets
    ([SEP] or end marks among them), or for mlm the inputs that are neither special nor padding.
    """
    return entropy_of_counts(np.bincount(tokens.reshape(-1)))


def entropy_of_counts(counts: Integer[np.ndarray, " V"]) -> float:
    """As `unigram_entropy`, given how often every id occurs."""
    frequencies = counts[counts > 0] / max(1, counts.sum())
    return float(-(frequencies * np.log(frequencies)).sum())
