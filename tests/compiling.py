"""Compiling less: programs that run once are not optimised, equal ones are compiled once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax

from mhsh.config.schema import ModelConfig
from mhsh.models.build import build_model, forward
from mhsh.models.types import Outputs


def least_optimized() -> Iterator[None]:
    """For a fixture: programs compile fast and run slowly."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@functools.cache
def compiled_forward(config: ModelConfig) -> Callable[[Any, Any, Any], Outputs]:
    """compiled_forward(config)(params, batch, dropout_key), compiled once for all tests."""
    model = build_model(config)
    return jax.jit(lambda params, batch, dropout_key: forward(model, params, batch, dropout_key))
