"""Tests of the mean over validation batches and of its parts."""

from __future__ import annotations

import math

import jax.numpy as jnp
import pytest

from mhsh.evaluation.evaluate import evaluate
from mhsh.models.losses import WeightedSum


def test_a_batch_without_predictions_adds_nothing() -> None:
    """As one of a document in a script that the vocabulary does not know, which is all [UNK]."""
    batches = [{"sum": jnp.float32(total), "weight": jnp.float32(weight)} for total, weight in [(6.0, 3.0), (4.0, 1.0), (0.0, 0.0)]]
    validated = evaluate(lambda _, batch: {"target_loss": WeightedSum(batch["sum"], batch["weight"])}, None, batches)
    assert validated.values == {"target_loss": 2.5}
    assert validated.loss_parts == pytest.approx([2.0, 4.0, math.nan], nan_ok=True)
