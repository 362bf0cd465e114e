"""Losses and accuracies against hand computations, and their sums over any cut of a batch."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from mhsh.models.losses import compute_metrics, loss_weights, total_loss
from mhsh.models.types import Outputs

B, P, V = 4, 3, 7


@pytest.fixture
def case():
    """Outputs and a batch; rows 0 and 1 are partly, row 3 is wholly without weight."""
    rng = np.random.default_rng(0)
    outputs = Outputs(
        jnp.asarray(3 * rng.standard_normal((B, P, V)), jnp.float32), jnp.asarray(rng.standard_normal((B, 2)), jnp.float32)
    )
    batch = {
        "targets": rng.integers(0, V, (B, P)).astype(np.int32),
        "weights": np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0]], np.float32),
        "next_sentence": np.array([0, 1, 1, 0], np.int32),
        "row_weights": np.array([1, 1, 1, 0], np.float32),
    }
    batch["targets"][0, 0] = int(np.argmax(outputs.logits[0, 0]))  # at least one right answer
    return outputs, batch


def expected_mean(logits, labels, weights):
    """Loss and accuracy, summed answer by answer."""
    loss = correct = 0.0
    for index in np.ndindex(labels.shape):
        scores = np.asarray(logits[index], np.float64)
        loss += weights[index] * -log_softmax(scores)[labels[index]]
        correct += weights[index] * (scores.argmax() == labels[index])
    return loss, correct, weights.sum()


@pytest.mark.parametrize(
    ("name", "logits", "labels", "weights"),
    [("target", "logits", "targets", "weights"), ("next_sentence", "next_sentence", "next_sentence", "row_weights")],
)
def test_loss_and_accuracy(case, name, logits, labels, weights):
    """Of the next sentence the loss is never smoothed."""
    outputs, batch = case
    means = compute_metrics(outputs, batch, 0.1)
    assert set(means) == {
        *(f"{kind}_{what}" for kind in ("target", "next_sentence") for what in ("loss", "accuracy")),
        "target_smoothed_loss",
    }
    loss, correct, weight = expected_mean(getattr(outputs, logits), batch[labels], batch[weights])
    assert means[f"{name}_loss"].sum == pytest.approx(loss, rel=1e-6)
    assert means[f"{name}_accuracy"].sum == pytest.approx(correct)
    assert means[f"{name}_loss"].weight == means[f"{name}_accuracy"].weight == weight
    assert 0 < correct < weight


def test_numbers_are_held_against_numbers():
    outputs = Outputs(jnp.array([[1.0], [3.0], [9.0]]), None)
    batch = {"targets": np.array([2.0, 3.5, 0.0], np.float32), "weights": np.array([1, 1, 0], np.float32)}
    means = compute_metrics(outputs, batch)
    assert set(means) == {"target_loss"}
    assert means["target_loss"].value() == pytest.approx((1.0 + 0.25) / 2)


def test_of_several_largest_logits_the_first_is_the_answer():
    logits = np.array([[[2.0, 2.0, 1.0], [2.0, 2.0, 1.0], [0.0, 0.0, 0.0], [np.nan, 1.0, 0.0]]], np.float32)
    batch = {"targets": np.array([[0, 1, 2, 1]], np.int32), "weights": np.ones((1, 4), np.float32)}
    assert compute_metrics(Outputs(jnp.asarray(logits), None), batch)["target_accuracy"].sum == 1


def test_the_parts_of_a_cut_batch_add_up_to_the_sum_of_the_two_means(case):
    outputs, batch = case
    whole, weights = compute_metrics(outputs, batch), loss_weights(batch)
    assert weights == {"target": 6.0, "next_sentence": 3.0}
    parts = [
        compute_metrics(
            Outputs(outputs.logits[rows], outputs.next_sentence[rows]), {key: value[rows] for key, value in batch.items()}
        )
        for rows in (slice(None, 1), slice(1, None))
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), jax.tree.map(jnp.add, *parts), whole)
    expected = pytest.approx(float(whole["target_loss"].sum / 6 + whole["next_sentence_loss"].sum / 3), rel=1e-6)
    assert sum(float(total_loss(part, weights)) for part in parts) == expected
    assert total_loss(whole, weights) == expected


def test_losses_are_fp32_whatever_the_logits_are(case):
    outputs, batch = case
    rounded = Outputs(outputs.logits.astype(jnp.bfloat16), None)
    mean = compute_metrics(rounded, batch)["target_loss"]
    loss, _, _ = expected_mean(rounded.logits, batch["targets"], batch["weights"])
    assert mean.sum.dtype == "float32"
    assert mean.sum == pytest.approx(loss, rel=1e-6)


def test_very_large_logits_stay_finite():
    outputs = Outputs(jnp.array([[[1e30, -1e30, 0.0]]]), None)
    loss = compute_metrics(outputs, {"targets": np.zeros((1, 1), np.int32), "weights": np.ones((1, 1), np.float32)})["target_loss"]
    assert loss.value() == 0.0


@pytest.mark.parametrize("shape", [(1, 2), (2,)])
def test_by_hand_without_and_with_label_smoothing(shape):
    """p = (1/2, 1/4, 1/4), target 1, eps = 0.3: 0.7 ln 4 + 0.3 (ln 2 + 2 ln 4) / 3; and one answer
    without weight: a position, or a row.
    """
    outputs = Outputs(jnp.log(jnp.array([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]])).reshape(*shape, 3), None)
    batch = {"targets": np.ones(shape, np.int32), "weights": np.array([1, 0], np.float32).reshape(shape)}
    plain, smoothed = compute_metrics(outputs, batch), compute_metrics(outputs, batch, 0.3)
    assert set(plain) == {"target_loss", "target_accuracy"}
    assert total_loss(plain, loss_weights(batch)) == plain["target_loss"].value() == pytest.approx(math.log(4), rel=1e-6)
    assert smoothed["target_loss"].value() == plain["target_loss"].value()
    expected = 0.7 * math.log(4) + 0.3 * (math.log(2) + 2 * math.log(4)) / 3
    assert smoothed["target_smoothed_loss"].value() == pytest.approx(expected, rel=1e-6)
    assert total_loss(smoothed, loss_weights(batch)) == pytest.approx(expected, rel=1e-6)
