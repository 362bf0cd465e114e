"""The activations of the feed-forward sublayer, as XLA computes them and as a kernel does."""

from __future__ import annotations

import math

import jax

ACTIVATIONS = {
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
}

# jax writes the exact gelu with erfc, which Pallas lowers for no accelerator; erf it does. In fp32 the two differ by 3e-7 at most.
KERNEL_ACTIVATIONS = ACTIVATIONS | {"gelu": lambda x: 0.5 * x * (1.0 + jax.lax.erf(x * math.sqrt(0.5)))}
