"""The vectors of a layer as one array: nothing is lost, and nothing changes."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from mhsh.models import transformer
from mhsh.models.build import build_model, forward
from mhsh.models.vectors import packed, unpacked, vector_shapes
from tests.training.batches import random_batch
from tests.training.states import fresh_state


def test_each_layer_is_unpacked_as_it_was(make_config):
    layers = fresh_state(make_config("bert", "2l8h")).params["encoder"]["layers"]
    joined = packed({"params": layers})
    shapes = vector_shapes(layers)
    assert len(jax.tree.leaves(joined)) == 6 + 1, "kernels, and one array"
    found = flatten_dict(jax.vmap(lambda layer: unpacked(shapes, layer))(joined)["params"])
    expected = flatten_dict(layers)
    assert found.keys() == expected.keys()
    for path, leaf in found.items():
        np.testing.assert_array_equal(leaf, expected[path], err_msg="/".join(path))


@pytest.mark.parametrize("policy", ["none", "groups"])
def test_outputs_and_gradients_are_those_of_unpacked_vectors(make_config, monkeypatch, policy):
    config = make_config("bert", "2l8h", **{"model.num_layers": 4, "model.remat_policy": policy, "model.residual": "admin"})
    batch, params = random_batch(config, 2), fresh_state(config).params

    def run():
        model = build_model(config.model)
        loss = lambda params: (forward(model, params, batch, jax.random.key(1)).logits ** 2).mean()  # noqa: E731
        return jax.jit(jax.value_and_grad(loss))(params)

    together = run()
    monkeypatch.setattr(transformer, "vector_shapes", lambda layers: {})
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), together, run())
