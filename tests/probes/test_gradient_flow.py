"""Gradient norms: the parts make the whole, and the whole is that of the loss's gradient, by finite
differences.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest

from mhsh.config.schema import RESIDUALS
from mhsh.models.build import build_model, forward
from mhsh.models.losses import compute_metrics, loss_weights, total_loss
from mhsh.probes.gradient_flow import gradient_flow

SEGMENTS = [[1] * 8, [1, 1, 1, 2, 2, 2, 2, 0]]


@pytest.mark.parametrize(
    "residual",
    ["hybrid_norm", *(pytest.param(name, marks=pytest.mark.slow) for name in RESIDUALS if name != "hybrid_norm")],
)
def test_parts_add_up_and_the_slope_along_a_layers_gradient_is_its_norm(tiny, make_batch, random_params, residual):
    config = tiny(residual=residual)
    params, batch = random_params(config), make_batch(SEGMENTS)
    found = gradient_flow(config, params, batch)
    norms = {part: np.array(values) for part, values in found["stacks"]["encoder"].items()}
    assert set(norms) == {"layer", "attention", "feed_forward", "joins"}
    np.testing.assert_allclose(norms["layer"] ** 2, sum(norms[part] ** 2 for part in norms if part != "layer"), rtol=1e-4)

    model = build_model(config)

    @jax.jit
    def loss(tree):
        return total_loss(compute_metrics(forward(model, tree, batch, None), batch), loss_weights(batch))

    assert found["loss"] == pytest.approx(float(loss(params)), rel=1e-5)
    # A step of length h along the gradient of one sublayer of one layer changes the loss by h times
    # its norm.
    gradient = jax.grad(loss)(params)["encoder"]["layers"]["feed_forward"]
    for layer in range(3):
        direction = jax.tree.map(lambda leaf: (np.arange(3) == layer).reshape(-1, *[1] * (leaf.ndim - 1)) * leaf, gradient)  # noqa: B023
        h = 1e-2 / norms["feed_forward"][layer]

        def moved(sign, h=h, direction=direction):
            layers = params["encoder"]["layers"]
            there = jax.tree.map(lambda leaf, along: leaf + sign * h * along, layers["feed_forward"], direction)
            return float(loss(params | {"encoder": params["encoder"] | {"layers": layers | {"feed_forward": there}}}))

        slope = (moved(1) - moved(-1)) / (2 * h * norms["feed_forward"][layer])
        assert slope == pytest.approx(norms["feed_forward"][layer], rel=0.02)


def test_both_stacks_of_a_translation_model(tiny_seq2seq, make_pairs, random_params):
    config = tiny_seq2seq()
    found = gradient_flow(config, random_params(config), make_pairs([[1, 1, 1, 2, 2]], [[1, 1, 2, 2]]))["stacks"]
    assert {stack: len(parts["layer"]) for stack, parts in found.items()} == {"encoder": 2, "decoder": 3}
    assert set(found["decoder"]) == {"layer", "self_attention", "cross_attention", "feed_forward", "joins"}
