"""Planted runs and configs for the tests of reports."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mhsh.config.schema import Config
from tests.planted import make_run, make_shared_run

__all__ = ["make_run", "make_shared_run"]  # fixtures


@pytest.fixture
def shapes(make_config: Callable[..., Config]) -> dict[str, Config]:
    """Of a bench file: the shallow config and the deep one."""
    fixed = {"model.heads_per_layer": 0}
    deep = fixed | {"model.num_layers": 16, "model.num_heads": 1, "model.mlp_dim": 32}
    return {"config": make_config("bert", "2l8h", **fixed), "against": make_config("bert", "2l8h", **deep)}
