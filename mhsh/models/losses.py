"""What is minimised, and what is reported: every figure is a (sum, weight) pair, so that any cut of
a batch adds up.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mhsh.models.types import Batch, Outputs


class WeightedSum(NamedTuple):
    """A mean that has not been divided yet."""

    sum: Float[Array, ""]
    weight: Float[Array, ""]

    def value(self) -> Float[Array, ""]:
        """sum / weight."""
        return self.sum / self.weight


WeightedSums = dict[str, WeightedSum]


def loss_weights(batch: Batch) -> dict[str, Float[Array, ""]]:
    """What each loss of a batch is divided by: real predictions, and real rows. Needs no model, so
    the global figure is known before any micro-batch runs.
    """
    weights = {"target": jnp.sum(batch["weights"])}
    if "next_sentence" in batch:
        weights["next_sentence"] = jnp.sum(batch["row_weights"])
    return weights


def compute_metrics(outputs: Outputs, batch: Batch, label_smoothing: float = 0.0) -> WeightedSums:
    """Loss (nats) and accuracy of the targets; with a next-sentence head, its loss and accuracy
    too. Losses are fp32.

    Targets in floating point are not classes but numbers: their loss is the squared error
    (num_classes = 1).

    With `label_smoothing` eps > 0 also the loss against targets that are spread out (Szegedy et al.
    2016, section 7): (1 - eps) * (-log p(target)) + eps * mean over V of -log p. In fairseq's the
    target has 1 - eps in all, here eps / V more.
    """
    targets, weights = jnp.asarray(batch["targets"]), jnp.asarray(batch["weights"])
    if jnp.issubdtype(targets.dtype, jnp.floating):
        error = outputs.logits[..., 0].astype(jnp.float32) - targets
        return {"target_loss": WeightedSum((error**2 * weights).sum(), weights.sum())}
    means = _classification("target", outputs.logits, targets, weights, label_smoothing)
    if outputs.next_sentence is not None:
        means |= _classification("next_sentence", outputs.next_sentence, batch["next_sentence"], batch["row_weights"], 0.0)
    return means


def total_loss(means: WeightedSums, weights: dict[str, Float[Array, ""]]) -> Float[Array, ""]:
    """What is minimised: the sum of the losses, smoothed where they are, each divided by its global
    weight.
    """
    losses = {name: means.get(f"{name}_smoothed_loss", means[f"{name}_loss"]) for name in weights}
    return sum((losses[name].sum / weight for name, weight in weights.items()), start=jnp.zeros(()))


def _classification(
    name: str, logits: Array, labels: Array | np.ndarray, weights: Array | np.ndarray, label_smoothing: float
) -> WeightedSums:
    labels, weights, logits = jnp.asarray(labels), jnp.asarray(weights), logits.astype(jnp.float32)
    # Spelt out, because log_softmax and argmax fuse with nothing: with their gradient they take
    # three times as long on a CPU.
    shifted = logits - jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    log_sum = jnp.log(jnp.sum(jnp.exp(shifted), axis=-1))
    of_label = jnp.take_along_axis(shifted, labels[..., None], axis=-1)[..., 0]
    nats = log_sum - of_label
    # As argmax: of several largest the first counts, and where anything is NaN none.
    larger_before = jnp.any((shifted >= 0) & (jnp.arange(logits.shape[-1]) < labels[..., None]), axis=-1)
    correct = ((of_label >= 0) & ~larger_before).astype(jnp.float32)
    weight = weights.sum()
    means = {
        f"{name}_loss": WeightedSum((nats * weights).sum(), weight),
        f"{name}_accuracy": WeightedSum((correct * weights).sum(), weight),
    }
    if label_smoothing:
        smoothed = (1 - label_smoothing) * nats + label_smoothing * (log_sum - shifted.mean(axis=-1))
        means[f"{name}_smoothed_loss"] = WeightedSum((smoothed * weights).sum(), weight)
    return means
