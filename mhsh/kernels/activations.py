"""The activations of the feed-forward sublayer, for plain code and kernels alike."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
from jax import Array


def _keeping_input(activation: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """`activation`, whose backward pass keeps its argument alone and computes the derivative again:
    JAX would keep three arrays of the hidden layer's size between the passes, and the few
    operations cost no time that could be measured.
    """

    @jax.custom_vjp
    def kept(x: Array) -> Array:
        return activation(x)

    def backward(x: Array, gradient: Array) -> tuple[Array, ...]:
        return jax.vjp(activation, x)[1](gradient)

    kept.defvjp(lambda x: (activation(x), x), backward)
    return kept


ACTIVATIONS = {
    # jax.nn.gelu writes it with erfc, which Pallas lowers for no accelerator and XLA's CPU backend
    # takes apart into seven passes; PyTorch writes it with erf too. In fp32 the two differ by 3e-7
    # at most.
    "gelu": _keeping_input(lambda x: 0.5 * x * (1.0 + jax.lax.erf(x * math.sqrt(0.5)))),
    "gelu_tanh": _keeping_input(functools.partial(jax.nn.gelu, approximate=True)),
    "relu": jax.nn.relu,
}
