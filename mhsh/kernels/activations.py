"""The activations of the feed-forward sublayer, for plain code and kernels alike."""

from __future__ import annotations

import math

import jax

ACTIVATIONS = {
    # jax.nn.gelu writes it with erfc, which Pallas lowers for no accelerator and XLA's CPU backend takes apart into seven passes;
    # PyTorch writes it with erf too. In fp32 the two differ by 3e-7 at most.
    "gelu": lambda x: 0.5 * x * (1.0 + jax.lax.erf(x * math.sqrt(0.5))),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
}
