"""The model of a config, and its forward pass."""

from __future__ import annotations

import functools
from typing import Any, cast

import jax
from msgspec.structs import replace

from mhsh.config.entries import SCHEMES
from mhsh.config.schema import ModelConfig
from mhsh.models.bert import Bert
from mhsh.models.dropout import DropoutKey
from mhsh.models.kernels.attention import attention_obstacle
from mhsh.models.kernels.select import asks_for_kernels, mesh_obstacle
from mhsh.models.seq2seq import Seq2Seq
from mhsh.models.types import Batch, Outputs

Model = Bert | Seq2Seq

# By objective.
MODELS: dict[str, type[Model]] = {"mlm": Bert, "clm": Bert, "classification": Bert, "span": Bert, "translation": Seq2Seq}

# What the models of all objectives read of a batch.
_INPUTS = (
    "inputs",
    "inputs_position",
    "inputs_segmentation",
    "token_types",
    "decoder_inputs",
    "targets_position",
    "targets_segmentation",
)


def build_model(config: ModelConfig) -> Model:
    """The model of a config, with the residual scheme `model.residual`. Raises UserError where
    there is no such scheme.
    """
    return MODELS[config.objective](config, SCHEMES[config.residual].residual)


def xla_config(config: ModelConfig) -> ModelConfig:
    """The config without kernels of our own, which are for training: XLA computes the same function
    of the same parameters, on any device.
    """
    return replace(config, kernels="xla")


def describe_fallbacks(config: ModelConfig) -> str:
    """The parts of the model that XLA computes on the current mesh though `model.kernels` asks for
    kernels, and why, in a line; empty: there are none, or it does not.
    """
    if not asks_for_kernels(config):
        return ""
    everything = mesh_obstacle()
    parts = {"everything": everything}
    if not everything:
        parts = {
            "attention": attention_obstacle(config),
            "sums with the stream": SCHEMES[config.residual].residual.kernel_obstacle(config),
        }
    fallbacks = [f"{part}, as {reason}" for part, reason in parts.items() if reason]
    return f"model.kernels = {config.kernels}: XLA computes {'; '.join(fallbacks)}" if fallbacks else ""


def boxed_parameters(config: ModelConfig) -> Any:
    """The parameter tree as shapes and dtypes, boxed with their logical axis names. Allocates
    nothing.
    """
    return _boxed_parameters(replace(xla_config(config), remat_policy="none"))  # which change no parameter


@functools.cache  # tracing takes a third of a second
def _boxed_parameters(config: ModelConfig) -> Any:
    batch = {key: jax.ShapeDtypeStruct((1, 1), "int32") for key in _INPUTS}
    model = build_model(config)
    return jax.eval_shape(lambda batch: model.init(jax.random.key(0), batch, None), batch)["params"]


def forward(model: Model, params: Any, batch: Batch, dropout_key: DropoutKey) -> Outputs:
    """The model's outputs; a key of None drops nothing."""
    return cast(Outputs, model.apply({"params": params}, batch, dropout_key))
