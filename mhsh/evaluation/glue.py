"""The metrics that GLUE publishes, on arrays of classes or scores. Without jax."""

from __future__ import annotations

import functools
import math
import warnings

import numpy as np
from jaxtyping import Float, Real

from mhsh.data.glue import GlueTask
from mhsh.errors import UserError


def predicted_labels(task: GlueTask, logits: Float[np.ndarray, "examples C"]) -> Real[np.ndarray, " examples"]:
    """The class of the largest logit; for a regression, the logit itself."""
    return logits.argmax(axis=1) if task.label_names else logits[:, 0]


def score_glue(
    task: GlueTask, labels: Real[np.ndarray, " examples"], predictions: Real[np.ndarray, " examples"]
) -> dict[str, float]:
    """The metrics of a task by name, in GLUE's order, of classes or the numbers of a regression:
    shares or correlations, from -1 to 1, of which GLUE prints 100 times as much. Raises UserError
    where a prediction is not finite, ValueError where there are no examples.
    """
    if not labels.size:
        raise ValueError("no examples")
    broken = np.flatnonzero(~np.isfinite(predictions))
    if broken.size:
        raise UserError(
            f"{broken.size} of {predictions.size} predictions for {task.name} are not finite (the first is number {broken[0]}: "
            f"{predictions[broken[0]]}), so no metric is defined; find out why"
        )
    return {name: _METRICS[name](labels, predictions) for name in task.metrics}


def accuracy(labels: Real[np.ndarray, " examples"], predictions: Real[np.ndarray, " examples"]) -> float:
    """The share of examples whose class is right."""
    return float(np.mean(labels == predictions))


def f1(labels: Real[np.ndarray, " examples"], predictions: Real[np.ndarray, " examples"]) -> float:
    """The harmonic mean of precision and recall of class 1; 0 if there is none, as in
    scikit-learn.
    """
    true_positives = int(np.sum((labels == 1) & (predictions == 1)))
    positives = int(np.sum(labels == 1)) + int(np.sum(predictions == 1))
    return 2 * true_positives / positives if positives else 0.0


def matthews(labels: Real[np.ndarray, " examples"], predictions: Real[np.ndarray, " examples"]) -> float:
    """Matthews' correlation, for any number of classes (Gorodkin 2004, R_K); 0 if all labels or all
    predictions are of one class, as in scikit-learn.
    """
    classes = np.union1d(labels, predictions)
    # Python integers, because products of counts may exceed 64 bits.
    label_counts = [int(count) for count in np.sum(labels == classes[:, None], axis=1)]
    predicted_counts = [int(count) for count in np.sum(predictions == classes[:, None], axis=1)]
    correct, total = int(np.sum(labels == predictions)), labels.size
    covariance = correct * total - sum(a * b for a, b in zip(label_counts, predicted_counts, strict=True))
    variances = [total**2 - sum(count**2 for count in counts) for counts in (label_counts, predicted_counts)]
    return covariance / math.sqrt(variances[0] * variances[1]) if all(variances) else 0.0


def correlation(name: str, labels: Real[np.ndarray, " examples"], predictions: Real[np.ndarray, " examples"]) -> float:
    """pearsonr or spearmanr of scipy; nan if the labels or the predictions are all equal."""
    from scipy import stats  # takes a second to import, and one task needs it

    if any(np.all(values == values[0]) for values in (labels, predictions)):
        return math.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.NearConstantInputWarning)
        return float(getattr(stats, name)(labels, predictions).statistic)


_METRICS = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews": matthews,
    "pearson": functools.partial(correlation, "pearsonr"),
    "spearman": functools.partial(correlation, "spearmanr"),
}
