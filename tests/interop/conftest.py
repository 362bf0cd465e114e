"""How the models of these tests are compiled."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def compile_fast() -> Iterator[None]:
    """These tests compile many programs and run each once."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
