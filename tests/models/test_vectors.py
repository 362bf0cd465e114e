"""The parameters of a layer in few arrays: nothing is lost, and nothing changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import jax
import numpy as np
import pytest
from flax import linen as nn
from flax.traverse_util import flatten_dict

from mhsh.config.entries import add_residual
from mhsh.models import transformer
from mhsh.models.build import build_model, forward
from mhsh.models.kernels.select import allow_interpreter
from mhsh.models.residual import Residual, Stream
from mhsh.models.vectors import pack, packing, unpack
from mhsh.training.sharding import ROWS
from mhsh.training.shards import map_shards
from tests.training.batches import random_batch
from tests.training.states import abstract_of, fresh_state, mesh_of


@pytest.mark.parametrize(("kernels", "arrays"), [("xla", 6 + 1), ("fused", 4 + 1)])  # kernels, and one of vectors
def test_each_layer_is_unpacked_as_it_was(make_config, kernels, arrays):
    config = make_config("bert", "16l1h", **{"model.kernels": kernels})
    layers = fresh_state(config).params["encoder"]["layers"]
    with allow_interpreter():
        together = packing(config.model, layers)
    joined = pack(together, {"params": layers})
    assert len(jax.tree.leaves(joined)) == arrays
    found = flatten_dict(jax.vmap(lambda layer: unpack(together, layer))(joined)["params"])
    expected = flatten_dict(layers)
    assert found.keys() == expected.keys()
    for path, leaf in found.items():
        np.testing.assert_array_equal(leaf, expected[path], err_msg="/".join(path))


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(("name", "policy"), [("mix", "gathered_groups"), ("a_kernel", "gathered_groups"), ("a_kernel", "none")])
def test_a_matrix_of_a_scheme_of_a_users_is_gathered_as_it_is(make_config, name, policy):
    """Whatever its name: it is no vector, and the scheme may use it in fp32."""
    dtypes: set[str] = set()

    @add_residual(f"with_{name}")
    class Mixed(Residual):
        decayed: ClassVar[Mapping[str, bool]] = {"mix": True}

        @nn.compact
        def __call__(self, stream, sublayer):
            shape = self.config.embed_dim, self.config.mlp_dim
            mix = self.param(name, nn.with_logical_partitioning(nn.initializers.zeros, ("embed", "mlp")), shape)
            dtypes.add(str(mix.dtype))
            return Stream(stream.x + sublayer(stream.x) + stream.x @ mix @ mix.T, None)

    fields = {"model.residual": f"with_{name}", "model.remat_policy": policy, "model.compute_dtype": "bfloat16"}
    config = make_config("bert", "2l8h", **fields)
    batch, model, params = random_batch(config, 2), build_model(config.model), abstract_of(config, (1, 2, 1)).params
    with jax.set_mesh(mesh_of(1, 2, 1)):
        logits = jax.eval_shape(map_shards(lambda *args: forward(model, *args, None).logits, config.model, ROWS), params, batch)
    assert logits.shape[0] == 2 and dtypes == {"float32"}


@pytest.mark.parametrize("policy", [pytest.param("none", marks=pytest.mark.slow), "groups"])  # groups are scans of scans
def test_outputs_and_gradients_are_those_of_unpacked_vectors(make_config, monkeypatch, policy):
    config = make_config("bert", "2l8h", **{"model.num_layers": 4, "model.remat_policy": policy, "model.residual": "admin"})
    batch, params = random_batch(config, 2), fresh_state(config).params

    def run():
        model = build_model(config.model)
        loss = lambda params: (forward(model, params, batch, jax.random.key(1)).logits ** 2).mean()  # noqa: E731
        return jax.jit(jax.value_and_grad(loss))(params)

    together = run()
    monkeypatch.setattr(transformer, "packing", lambda config, layers: None)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), together, run())
