"""The rules for the outcome of a run: it left the unigram plateau, stayed on it, or diverged."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

SMOOTHED_SHARE = 0.1  # of the logged training rows: the last tenth
PLATEAU_MARGIN = 0.1  # nats below the unigram entropy

LEFT = "left the unigram plateau"
ON_PLATEAU = "on the unigram plateau"
DIVERGED = "diverged"
NOT_KNOWN = "not known"
NO_METRICS = "no metrics"

PLATEAU_RULE = (
    "A run has left the unigram plateau if and only if its validation loss after the last step (where there is none: its final "
    f"training loss) is below the unigram entropy of its training text minus {PLATEAU_MARGIN} nats: it then predicts better than "
    "token frequencies alone could. Without a recorded entropy or a loss it is not known. A run whose final training loss or last "
    "validation loss is not finite, or in which training gave up, has diverged."
)


def smoothed_final(train_loss: Sequence[float] | np.ndarray) -> float | None:
    """The final training loss: the mean over the last SMOOTHED_SHARE of the logged training rows,
    without skipped steps. None: there are no rows; nan: half of these rows or more are not finite.
    """
    if not len(train_loss):
        return None
    rows = math.ceil(len(train_loss) * SMOOTHED_SHARE)
    last = np.asarray(train_loss[-rows:], np.float64)
    finite = last[np.isfinite(last)]
    return float(np.mean(finite)) if 2 * len(finite) > len(last) else math.nan


def plateau_outcome(final_train: float | None, final_validation: float | None, entropy: float | None, gave_up: bool = False) -> str:
    """LEFT, ON_PLATEAU, DIVERGED, NOT_KNOWN or NO_METRICS, by PLATEAU_RULE; losses in nats."""
    if final_train is None and final_validation is None:
        return NO_METRICS
    if gave_up or any(value is not None and not math.isfinite(value) for value in (final_train, final_validation)):
        return DIVERGED
    final = final_train if final_validation is None else final_validation
    if entropy is None or final is None:
        return NOT_KNOWN
    return LEFT if final < entropy - PLATEAU_MARGIN else ON_PLATEAU
