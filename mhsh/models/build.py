"""The model of a config, and its forward pass."""

from __future__ import annotations

from typing import Any, cast

from mhsh.config.schema import ModelConfig
from mhsh.kernels.dropout import DropoutKey
from mhsh.models.attention import check_attention
from mhsh.models.bert import Bert
from mhsh.models.residual import STRATEGIES
from mhsh.models.seq2seq import Seq2Seq
from mhsh.models.types import Batch, Outputs

Model = Bert | Seq2Seq

# By objective.
MODELS: dict[str, type[Model]] = {"mlm": Bert, "clm": Bert, "classification": Bert, "span": Bert, "translation": Seq2Seq}


def build_model(config: ModelConfig) -> Model:
    """The model of a config, with the residual scheme `model.residual`.

    Raises:
      UserError: `model.attention_implementation` cannot compute its attention.
    """
    check_attention(config)
    return MODELS[config.objective](config, STRATEGIES[config.residual])


def forward(model: Model, params: Any, batch: Batch, dropout_key: DropoutKey) -> Outputs:
    """The model's outputs; a key of None drops nothing."""
    return cast(Outputs, model.apply({"params": params}, batch, dropout_key))
