"""Small standard decoders for the tests of import and export."""

from __future__ import annotations

from typing import Any

from mhsh import configs
from mhsh.config.schema import Config, ModelConfig
from tests.interop.small_bert import LENGTH


def small_config(**model: Any) -> Config:
    """configs/gpt.py:6l4h with two narrow layers and `model` in the model section."""
    shape = dict(num_layers=2, num_heads=4, head_dim=4, embed_dim=12, mlp_dim=20, max_positions=32)
    return configs.get("gpt:6l4h", model=shape | {"heads_per_layer": 0} | model, data={"sequence_length": LENGTH})


def small_model(**model: Any) -> ModelConfig:
    """The model section of it."""
    return small_config(**model).model
