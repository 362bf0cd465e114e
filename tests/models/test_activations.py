"""The activations: GELU by erf is the exact one, and the derivatives are those of jax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mhsh.models.layers import ACTIVATIONS


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_derivatives_are_jaxs_own(name):
    x = jnp.linspace(-12.0, 12.0, 100_001)
    plain = jax.vmap(jax.grad(lambda value: jax.nn.gelu(value, approximate=name == "gelu_tanh")))
    assert np.abs(jax.vmap(jax.grad(ACTIVATIONS[name]))(x) - plain(x)).max() < 1e-6


def test_gelu_is_the_exact_one():
    x = jnp.linspace(-12.0, 12.0, 100_001)
    assert np.abs(ACTIVATIONS["gelu"](x) - jax.nn.gelu(x, approximate=False)).max() < 1e-6
