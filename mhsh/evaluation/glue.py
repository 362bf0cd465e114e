"""The metrics that GLUE publishes, on arrays of classes or scores; equal to scikit-learn's and
SciPy's. No jax here.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Real

from mhsh.data.fine_tuning.glue import GlueTask
from mhsh.errors import UserError


def glue_scores(
    task: GlueTask, labels: Real[np.ndarray, " examples"], predictions: Real[np.ndarray, " examples"]
) -> dict[str, float]:
    """The metrics of a task by name, in the order in which GLUE lists them. They are shares or
    correlations: GLUE prints 100 times as much.

    Args:
      labels: classes, or the scores of a regression.
      predictions: the same of a model; a regression's may be any finite numbers.

    Raises:
      UserError: a prediction is not finite.
      ValueError: there are no examples.
    """
    if not labels.size:
        raise ValueError("no examples")
    broken = np.flatnonzero(~np.isfinite(predictions))
    if broken.size:
        raise UserError(
            f"{broken.size} of {predictions.size} predictions for {task.name} are not finite (the first is number {broken[0]}: "
            f"{predictions[broken[0]]}), and no metric is defined on them; look why the model gives them"
        )
    return {name: _METRICS[name](labels, predictions) for name in task.metrics}


def accuracy(labels: Real[np.ndarray, " examples"], predictions: Real[np.ndarray, " examples"]) -> float:
    """The share of equal classes."""
    return float(np.mean(labels == predictions))


def f1(labels: Real[np.ndarray, " examples"], predictions: Real[np.ndarray, " examples"]) -> float:
    """The harmonic mean of precision and recall of class 1; 0, as in scikit-learn, where it is
    neither there nor predicted.
    """
    hits = int(np.sum((labels == 1) & (predictions == 1)))
    claimed_or_there = int(np.sum(labels == 1)) + int(np.sum(predictions == 1))
    return 2 * hits / claimed_or_there if claimed_or_there else 0.0


def matthews(labels: Real[np.ndarray, " examples"], predictions: Real[np.ndarray, " examples"]) -> float:
    """Matthews' correlation of classes, for any number of them (Gorodkin 2004, R_K).

    It is 0, as in scikit-learn, where the labels or the predictions are all of one class.
    """
    classes = np.union1d(labels, predictions)
    # Python's integers: the products of counts may pass 64 bits.
    there = [int(count) for count in np.sum(labels == classes[:, None], axis=1)]
    claimed = [int(count) for count in np.sum(predictions == classes[:, None], axis=1)]
    hits, total = int(np.sum(labels == predictions)), labels.size
    covariance = hits * total - sum(a * b for a, b in zip(there, claimed, strict=True))
    variances = [total**2 - sum(count**2 for count in counts) for counts in (there, claimed)]
    return covariance / math.sqrt(variances[0] * variances[1]) if all(variances) else 0.0


def pearson(labels: Real[np.ndarray, " examples"], predictions: Real[np.ndarray, " examples"]) -> float:
    """Pearson's correlation; nan, as in SciPy, where the labels or the predictions are all
    equal.
    """
    directions = []
    for values in (labels.astype(np.float64), predictions.astype(np.float64)):
        if np.all(values == values[0]):
            return math.nan
        # The correlation does not depend on the scale, and squares of scaled numbers do not
        # overflow.
        centred = values / np.max(np.abs(values))
        centred -= np.mean(centred)
        directions.append(centred / np.linalg.norm(centred))
    return float(np.clip(np.dot(*directions), -1.0, 1.0))


def spearman(labels: Real[np.ndarray, " examples"], predictions: Real[np.ndarray, " examples"]) -> float:
    """Pearson's correlation of the ranks, equal values sharing the mean of theirs; nan where
    `pearson` is.
    """
    return pearson(_ranks(labels), _ranks(predictions))


def _ranks(values: Real[np.ndarray, " examples"]) -> Real[np.ndarray, " examples"]:
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(sizes) - (sizes - 1) / 2)[group]


_METRICS = {"accuracy": accuracy, "f1": f1, "matthews": matthews, "pearson": pearson, "spearman": spearman}
