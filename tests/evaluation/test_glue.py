"""GLUE's metrics against scikit-learn and the formulas, on random and on degenerate predictions."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn import metrics as sklearn_metrics

from mhsh.data.glue import GLUE_TASKS
from mhsh.errors import UserError
from mhsh.evaluation import glue

TOLERANCE = 1e-12
# Each of two arrays of as many of two or three classes; few values, so that constant ones and
# missing classes come often.
CLASSES = st.tuples(st.integers(1, 40), st.integers(1, 2)).flatmap(
    lambda drawn: st.tuples(*[arrays.arrays(np.int64, drawn[0], elements=st.integers(0, drawn[1]))] * 2)
)
# Quarters tie often; the others hardly ever.
SCORES = st.one_of(st.integers(0, 20).map(lambda quarters: quarters / 4), st.floats(-5, 10, width=32))
SCORE_ARRAYS = st.integers(2, 40).flatmap(lambda size: st.tuples(*[arrays.arrays(np.float64, size, elements=SCORES)] * 2))


def quietly(function: Callable[..., float], *arguments: np.ndarray) -> float:
    """What a peer says, without the warnings that it gives with it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(function(*arguments))


def plain_pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
    """By the standard library, whose sums are exact; nan where one side is constant."""
    try:
        return statistics.correlation(labels.tolist(), predictions.tolist())
    except statistics.StatisticsError:
        return math.nan


def plain_spearman(*both: np.ndarray) -> float:
    """Pearson's correlation of the ranks; equal values share the mean of their ranks."""
    return plain_pearson(*((np.sum(v[:, None] > v, axis=1) + np.sum(v[:, None] >= v, axis=1)) / 2 for v in both))


@given(CLASSES)
def test_classes_as_scikit_learn(both: tuple[np.ndarray, np.ndarray]) -> None:
    assert glue.accuracy(*both) == pytest.approx(quietly(sklearn_metrics.accuracy_score, *both), abs=TOLERANCE)
    assert glue.matthews(*both) == pytest.approx(quietly(sklearn_metrics.matthews_corrcoef, *both), abs=TOLERANCE)
    if max(map(np.max, both)) < 2:
        assert glue.f1(*both) == pytest.approx(quietly(sklearn_metrics.f1_score, *both), abs=TOLERANCE)


@given(SCORE_ARRAYS)
def test_scores_by_the_formulas(both: tuple[np.ndarray, np.ndarray]) -> None:
    # Where values that differ are equal to six digits, it is mostly their rounding that correlates.
    assume(not any(0 < np.ptp(values) < 1e-6 * np.max(np.abs(values)) for values in both))
    for name, plain in (("pearsonr", plain_pearson), ("spearmanr", plain_spearman)):
        expected = plain(*both)
        assert glue.correlation(name, *both) == pytest.approx(expected, abs=1e-9, nan_ok=True)
        assert math.isnan(expected) == any(len(set(values.tolist())) == 1 for values in both)


@pytest.mark.parametrize("name", GLUE_TASKS)
def test_a_large_random_set_of_every_task(name: str) -> None:
    task, generator = GLUE_TASKS[name], np.random.default_rng(0)
    if task.label_names:
        labels, other = generator.integers(0, task.num_classes, (2, 400_000))
        predictions = np.where(generator.random(len(labels)) < 0.8, labels, other)
    else:
        labels = np.round(generator.uniform(0, 5, 2000) * 5) / 5
        predictions = labels + generator.normal(0, 1, len(labels))
    peers = {
        "accuracy": sklearn_metrics.accuracy_score,
        "f1": sklearn_metrics.f1_score,
        "matthews": sklearn_metrics.matthews_corrcoef,
        "pearson": plain_pearson,
        "spearman": plain_spearman,
    }
    found = glue.score_glue(task, labels, predictions)
    assert found == pytest.approx({metric: peers[metric](labels, predictions) for metric in task.metrics}, abs=TOLERANCE)
    assert 0.5 < min(found.values()) < 0.95


def test_the_metrics_that_glue_publishes() -> None:
    assert {task.name: task.metrics for task in GLUE_TASKS.values()} == {
        "cola": ("matthews",),
        **dict.fromkeys(("sst2", "mnli", "qnli", "rte", "wnli"), ("accuracy",)),
        **dict.fromkeys(("mrpc", "qqp"), ("f1", "accuracy")),
        "stsb": ("pearson", "spearman"),
    }


def test_degenerate_scores() -> None:
    scores = np.array([0.0, 1.0, 1.0, 5.0, 2.5])
    for pair in ((scores, np.full(5, 2.0)), (np.full(5, 2.0), scores), (np.zeros(5), np.zeros(5)), (scores[:1], scores[:1])):
        assert all(math.isnan(value) for value in glue.score_glue(GLUE_TASKS["stsb"], *pair).values())
    assert glue.correlation("spearmanr", scores, np.exp(scores)) == pytest.approx(1.0, abs=TOLERANCE)
    assert glue.correlation("pearsonr", scores, 3 - 1e200 * scores) == pytest.approx(-1.0, abs=TOLERANCE)


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_predictions_that_are_not_finite_are_refused(broken: float) -> None:
    message = rf"^2 of 3 predictions for stsb are not finite \(the first is number 1: {broken}\), .*; find out why"
    with pytest.raises(UserError, match=message):
        glue.score_glue(GLUE_TASKS["stsb"], np.array([1.0, 2.0, 3.0]), np.array([1.0, broken, broken]))
    with pytest.raises(ValueError, match="no examples"):
        glue.score_glue(GLUE_TASKS["stsb"], np.array([]), np.array([]))
