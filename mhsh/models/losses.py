"""Losses and metrics as (sum, weight) pairs, so that the parts of a batch add up."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mhsh.models.types import Batch, Outputs


class WeightedSum(NamedTuple):
    """A mean before its division."""

    sum: Float[Array, ""]
    weight: Float[Array, ""]

    def value(self) -> Float[Array, ""]:
        """sum / weight."""
        return self.sum / self.weight


WeightedSums = dict[str, WeightedSum]


def weighted_mean(total: float, weight: float) -> float:
    """The mean of numbers on the host; nan where nothing was weighed, as of text that is all
    [UNK].
    """
    return total / weight if weight else math.nan


def loss_weights(batch: Batch) -> dict[str, Float[Array, ""]]:
    """The divisor of each loss of a batch: its predictions, or its rows, without padding.

    Needs no model, so the global divisors are known before any micro-batch runs.
    """
    weights = {"target": jnp.sum(batch["weights"])}
    if "next_sentence" in batch:
        weights["next_sentence"] = jnp.sum(batch["row_weights"])
    return weights


def compute_metrics(outputs: Outputs, batch: Batch, label_smoothing: float = 0.0) -> WeightedSums:
    """Loss (nats, fp32) and accuracy of the targets, and of the next-sentence head if there is one.

    Targets of a floating dtype are numbers: their loss is the squared error (num_classes = 1).

    `label_smoothing` eps > 0 adds the smoothed loss (Szegedy et al. 2016, section 7): (1 - eps) *
    (-log p(target)) + eps * mean over V of -log p. In fairseq's version the target has 1 - eps in
    all, here eps / V more.
    """
    targets, weights = jnp.asarray(batch["targets"]), jnp.asarray(batch["weights"])
    if jnp.issubdtype(targets.dtype, jnp.floating):
        error = outputs.logits[..., 0].astype(jnp.float32) - targets
        return {"target_loss": WeightedSum((error**2 * weights).sum(), weights.sum())}
    metrics = _classification("target", outputs.logits, targets, weights, label_smoothing)
    if outputs.next_sentence is not None:
        metrics |= _classification("next_sentence", outputs.next_sentence, batch["next_sentence"], batch["row_weights"], 0.0)
    return metrics


def total_loss(metrics: WeightedSums, weights: dict[str, Float[Array, ""]]) -> Float[Array, ""]:
    """The loss to minimise: the sum of all losses, smoothed if there is smoothing, each divided by
    its global weight.
    """
    losses = {name: metrics.get(f"{name}_smoothed_loss", metrics[f"{name}_loss"]) for name in weights}
    return sum((losses[name].sum / weight for name, weight in weights.items()), start=jnp.zeros(()))


def _classification(
    name: str, logits: Array, labels: Array | np.ndarray, weights: Array | np.ndarray, label_smoothing: float
) -> WeightedSums:
    labels, weights, logits = jnp.asarray(labels), jnp.asarray(weights), logits.astype(jnp.float32)
    # Written out because log_softmax and argmax are not fused: with their gradient they take three
    # times as long on a CPU.
    shifted = logits - jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    log_sum = jnp.log(jnp.sum(jnp.exp(shifted), axis=-1))
    of_label = jnp.take_along_axis(shifted, labels[..., None], axis=-1)[..., 0]
    nats = log_sum - of_label
    # As argmax: the first of equal largest logits counts; with a NaN, none does.
    larger_before = jnp.any((shifted >= 0) & (jnp.arange(logits.shape[-1]) < labels[..., None]), axis=-1)
    correct = ((of_label >= 0) & ~larger_before).astype(jnp.float32)
    weight = weights.sum()
    metrics = {
        f"{name}_loss": WeightedSum((nats * weights).sum(), weight),
        f"{name}_accuracy": WeightedSum((correct * weights).sum(), weight),
    }
    if label_smoothing:
        smoothed = (1 - label_smoothing) * nats + label_smoothing * (log_sum - shifted.mean(axis=-1))
        metrics[f"{name}_smoothed_loss"] = WeightedSum((smoothed * weights).sum(), weight)
    return metrics
