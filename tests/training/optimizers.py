"""Tiny optimizers, parameters and gradients, and what some updates make of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from msgspec.structs import replace

from mhsh.models.parameters import parameter_path
from mhsh.training.optimizer import build_optimizer, learning_rate

STEPS = 4
CLOSE = dict(rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def settings(make_config):
    """settings(name="lamb", num_steps=5): tiny BERT's config, fields of the optimiser replaced."""
    config = make_config("bert", "2l8h", **{"optimizer.warmup_steps": 2, "train.num_steps": 10, "optimizer.learning_rate": 0.1})

    def make(num_steps=10, **fields):
        return replace(config, optimizer=replace(config.optimizer, **fields), train=replace(config.train, num_steps=num_steps))

    return make


def rate_of(config):
    """The schedule of a config."""
    return learning_rate(config.optimizer, config.train)


def optimizer_with_rate(config):
    """The optimizer of a config, whose `update` takes the step in place of its learning rate."""
    optimizer, rate = build_optimizer(config), rate_of(config)

    def update(updates, state, params=None, *, step, **extra):
        return optimizer.update(updates, state, params, learning_rate=rate(step), **extra)

    return optax.GradientTransformationExtraArgs(optimizer.init, update)


SHAPES = {
    "embeddings": {"token": (16, 8)},
    "encoder": {
        "layers": {
            "attention": {"query_kernel": (4, 8, 2, 3), "query_bias": (4, 2, 3)},
            "attention_residual": {"omega": (4, 8), "norm": {"scale": (4, 8)}},
            "feed_forward": {"up_kernel": (4, 8, 6)},
        }
    },
    "prediction": {"kernel": (8, 8), "output_bias": (16,)},
}


@pytest.fixture(scope="module")
def params():
    """Some of an Admin model's parameters, four layers stacked, random, their scale growing from
    layer to layer.
    """
    rng = np.random.default_rng(0)

    def leaf(shape):
        growing = np.arange(1, shape[0] + 1).reshape(-1, *[1] * (len(shape) - 1))
        return jnp.asarray(0.1 * growing * rng.standard_normal(shape), jnp.float32)

    return jax.tree.map(leaf, SHAPES, is_leaf=lambda shape: isinstance(shape, tuple))


def gradients(params, step):
    """Random gradients of one step."""
    rng = np.random.default_rng(100 + step)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape), jnp.float32), params)


def trained(optimizer, params, gradients_of=gradients):
    """The parameters after STEPS updates."""
    state = optimizer.init(params)
    update = jax.jit(optax.with_extra_args_support(optimizer).update)
    all_gradients = [gradients_of(params, step) for step in range(STEPS)]
    for step, step_gradients in enumerate(all_gradients):
        grad_norm = optax.tree.norm(step_gradients)
        updates, state = update(step_gradients, state, params, step=step, grad_norm=grad_norm)
        params = optax.apply_updates(params, updates)
    return params


def by_path(tree):
    """{path: leaf} with paths such as encoder/layers/attention/query_kernel."""
    return {parameter_path(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
