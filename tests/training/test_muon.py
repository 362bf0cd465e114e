"""Muon: against a loop over matrices in numpy, and the same on a mesh."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from mhsh.training.sharding import shardings_of
from tests.training.optimizers import CLOSE, STEPS, by_path, gradients, optimizer_with_rate, rate_of, trained
from tests.training.states import ONE, fresh_state, optimizer_of

SHAPES = {
    "embeddings": {"token": (16, 8)},
    "encoder": {
        "layers": {
            "attention": {"key_kernel": (3, 8, 2, 3), "query_bias": (3, 2, 3), "out_kernel": (3, 2, 3, 8)},
            "feed_forward": {"up_kernel": (3, 8, 12), "down_kernel": (3, 12, 8)},
            "feed_forward_residual": {"gate_kernel": (3, 8)},  # of a user's scheme, which may have any name
        }
    },
    "prediction": {"kernel": (8, 8)},
}


def newton_schulz(momentum):
    """Five iterations on one matrix, with the coefficients of the post that the docstring names."""
    x = momentum / np.linalg.norm(momentum)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return 0.2 * np.sqrt(max(x.shape)) * x


def one_matrix(path, layer, heads):
    """[(index of a matrix in one layer's kernel, how it is made 2-D)], a matrix at a time."""
    count = layer.shape[1] if path.endswith("key_kernel") else layer.shape[0]
    if not path.endswith(("key_kernel", "out_kernel")):
        return [((), layer.shape)]
    if heads == "joined":
        return [((), (8, 6) if path.endswith("key_kernel") else (6, 8))]
    return [((slice(None), head) if path.endswith("key_kernel") else (head,), None) for head in range(count)]


@pytest.mark.parametrize("heads", ["joined", "each"])
def test_muon_is_a_loop_over_matrices(settings, heads):
    """Kernels of layers: Nesterov momentum, orthogonalised a matrix at a time, in numpy. All else:
    optax's AdamW.
    """
    rng = np.random.default_rng(3)
    drawn = jax.tree.map(rng.standard_normal, SHAPES, is_leaf=lambda leaf: isinstance(leaf, tuple))
    params = jax.tree.map(jnp.float32, drawn)
    config = settings(name="muon", muon_heads=heads, weight_decay=0.3, clip_norm=0.0, momentum=0.9)
    rate = rate_of(config)
    after = by_path(trained(optimizer_with_rate(config), params))
    mask = {path: path.endswith("kernel") or path == "embeddings/token" for path in by_path(params)}
    adam = optax.adamw(rate, 0.9, 0.999, 1e-6, weight_decay=0.3, mask=mask)
    plain = trained(adam, by_path(params), lambda _, step: by_path(gradients(params, step)))
    for path, leaf in by_path(params).items():
        if "layers" not in path or "residual" in path or path.endswith("bias"):
            np.testing.assert_allclose(after[path], plain[path], **CLOSE, err_msg=path)
            continue
        for number, layer in enumerate(np.asarray(leaf, np.float64)):
            for index, shape in one_matrix(path, layer, heads):
                weights, momentum = layer[index], 0.0
                for step in range(STEPS):
                    gradient = np.asarray(by_path(gradients(params, step))[path][number], np.float64)[index]
                    momentum = 0.9 * momentum + 0.1 * gradient
                    # Both are divided by what the weights of an average from zero add up to.
                    ahead = 0.9 * momentum / (1 - 0.9 ** (step + 2)) + 0.1 * gradient / (1 - 0.9 ** (step + 1))
                    update = newton_schulz(ahead.reshape(shape or ahead.shape)).reshape(ahead.shape)
                    weights = weights - float(rate(step)) * (update + 0.3 * weights)
                np.testing.assert_allclose(after[path][number][index], weights, rtol=2e-4, atol=2e-5, err_msg=path)


@pytest.mark.parametrize("heads", ["joined", "each"])
@pytest.mark.parametrize("shape", [(1, 8, 1), (2, 2, 2)])
def test_muon_is_the_same_on_a_mesh(make_config, shape, heads):
    config = make_config("bert", "2l8h", **{"optimizer.name": "muon", "optimizer.muon_heads": heads})
    optimizer, updated = optimizer_of(config), []
    for mesh_shape in (ONE, shape):
        state = fresh_state(config, mesh_shape)

        def update(state):
            updates = jax.tree.map(jnp.sin, state.params)
            figures = {"learning_rate": rate_of(config)(3), "grad_norm": optax.tree.norm(updates)}
            return optimizer.update(updates, state.opt_state, state.params, **figures)

        shardings = shardings_of(state.params), shardings_of(state.opt_state)
        updated.append(jax.jit(update, out_shardings=shardings)(state)[0])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-8), *updated)
