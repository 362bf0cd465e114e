"""Equal programs are compiled once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from mhsh.config.schema import ModelConfig
from mhsh.models.build import build_model, forward
from mhsh.models.types import Outputs


@functools.cache
def compiled_forward(config: ModelConfig) -> Callable[[Any, Any, Any], Outputs]:
    """compiled_forward(config)(params, batch, dropout_key), compiled once for all tests."""
    model = build_model(config)
    return jax.jit(lambda params, batch, dropout_key: forward(model, params, batch, dropout_key))
