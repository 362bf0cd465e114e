"""The activations of the feed-forward sublayer."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
from jax import Array


def _keeping_input(activation: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """`activation` with a backward pass that keeps only its argument and recomputes the derivative.

    JAX would keep three arrays of the hidden layer's size; recomputing costs no measurable time.
    """

    @jax.custom_vjp
    def function(x: Array) -> Array:
        return activation(x)

    def backward(x: Array, gradient: Array) -> tuple[Array, ...]:
        return jax.vjp(activation, x)[1](gradient)

    function.defvjp(lambda x: (activation(x), x), backward)
    return function


ACTIVATIONS = {
    # jax.nn.gelu uses erfc, which XLA's CPU backend expands into seven passes; PyTorch uses erf
    # too. In fp32 the two differ by at most 3e-7.
    "gelu": _keeping_input(lambda x: 0.5 * x * (1.0 + jax.lax.erf(x * math.sqrt(0.5)))),
    "gelu_tanh": _keeping_input(functools.partial(jax.nn.gelu, approximate=True)),
    "relu": jax.nn.relu,
}
