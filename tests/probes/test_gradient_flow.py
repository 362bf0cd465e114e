"""Gradient norms: those of the loss's gradient, part by part."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from mhsh.config.entries import SCHEMES
from mhsh.models.build import build_model, forward
from mhsh.models.losses import compute_metrics, loss_weights, total_loss
from mhsh.probes.gradient_flow import gradient_flow

SEGMENTS = [[1] * 8, [1, 1, 1, 2, 2, 2, 2, 0]]


@pytest.mark.parametrize(
    "residual", ["hybrid_norm", *(pytest.param(name, marks=pytest.mark.slow) for name in SCHEMES.names() if name != "hybrid_norm")]
)
def test_the_norms_are_those_of_the_gradient_and_the_parts_add_up(tiny, make_batch, random_params, residual):
    config = tiny(residual=residual)
    params, batch = random_params(config), make_batch(SEGMENTS)
    found = gradient_flow(config, params, batch)
    model = build_model(config)

    def loss(tree):
        return total_loss(compute_metrics(forward(model, tree, batch, None), batch), loss_weights(batch))

    value, gradient = jax.jit(jax.value_and_grad(loss))(params)
    assert found["loss"] == pytest.approx(float(value), rel=1e-5)
    layers = gradient["encoder"]["layers"]
    joins = {name: part for name, part in layers.items() if name.endswith("_residual")}
    parts = {"layer": layers, "attention": layers["attention"], "feed_forward": layers["feed_forward"], "joins": joins}
    norms = found["stacks"]["encoder"]
    assert norms.keys() == parts.keys()
    for name, part in parts.items():
        squares = [sum((np.asarray(leaf[layer], np.float64) ** 2).sum() for leaf in jax.tree.leaves(part)) for layer in range(3)]
        np.testing.assert_allclose(norms[name], np.sqrt(squares), rtol=1e-4, err_msg=name)


def test_both_stacks_of_a_translation_model(tiny_seq2seq, make_pairs, random_params):
    config = tiny_seq2seq()
    found = gradient_flow(config, random_params(config), make_pairs([[1, 1, 1, 2, 2]], [[1, 1, 2, 2]]))["stacks"]
    assert {stack: len(parts["layer"]) for stack, parts in found.items()} == {"encoder": 2, "decoder": 3}
    assert set(found["decoder"]) == {"layer", "self_attention", "cross_attention", "feed_forward", "joins"}
