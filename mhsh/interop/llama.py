"""Standard decoders as Hugging Face has them, in and out: Llama, and Qwen3 where queries and keys
are normalised. Both compute what mhsh does, so that the numbers are passed on as they are.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from mhsh.config.schema import ModelConfig
from mhsh.data.wordpiece import Tokenizer
from mhsh.errors import UserError
from mhsh.interop.bert_config import OF_TRAINING, Real, Size, Table, check_fields
from mhsh.interop.tensors import (
    LAYERS,
    ImportedCheckpoint,
    Parameter,
    Tensors,
    check_tensors,
    kernel_parameter,
    plain_parameter,
    read_params,
    to_tensors,
)
from mhsh.interop.vocabulary import write_tokenizer
from mhsh.interop.weights import CONFIG_FILE, open_weights, wrap_file_errors, write_weights
from mhsh.models.parameters import KERNELS
from mhsh.storage.files import read_object
from mhsh.storage.questions import exists, is_dir

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}  # by model_type
_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}  # by transformers' names
_TABLE, _OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
# Which field of the model section each field of config.json is.
_FIELDS = {
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_positions",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "head_dim": "head_dim",
    "hidden_size": "embed_dim",
    "intermediate_size": "mlp_dim",
    "attention_dropout": "attention_dropout",
    "rms_norm_eps": "layer_norm_epsilon",
}
# What every one of them is.
_DECODER: dict[str, Any] = dict(
    objective="clm", residual="pre_ln", num_token_types=0, positions="rotary", loops=1, norm="rms", mlp="gated", bias=False
)
_EXPORTABLE: Table = {
    **{field: (value,) for field, value in _DECODER.items()},
    "num_decoder_layers": (0,),
    "next_sentence": (False,),
    "num_classes": (0,),
    "head": ("tied", "untied"),
    "activation": tuple(_ACTIVATIONS.values()),
    **dict.fromkeys((*_FIELDS.values(), "num_kv_heads", "qk_norm")),
    **OF_TRAINING,
}


class _Rope(Struct, forbid_unknown_fields=True):  # a factor, or a part of a head, is another model
    rope_theta: Annotated[float, Meta(gt=0)] | None = None
    rope_type: Literal["default"] = "default"
    type: Literal["default"] = "default"  # the older name


class LlamaConfig(Struct, kw_only=True):
    """A config.json, by transformers' names. Other values are other models."""

    model_type: Literal["llama", "qwen3"]
    architectures: list[Literal["LlamaForCausalLM", "Qwen3ForCausalLM"]] | None = None
    vocab_size: Size
    max_position_embeddings: Size
    num_hidden_layers: Size
    num_attention_heads: Annotated[int, Meta(ge=1, lt=2**31)]
    num_key_value_heads: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    head_dim: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    hidden_size: Size
    intermediate_size: Size
    hidden_act: Literal["silu", "gelu", "gelu_pytorch_tanh", "relu"]
    attention_dropout: Real = 0.0
    rms_norm_eps: Real = 1e-6
    tie_word_embeddings: bool = False
    attention_bias: Literal[False] = False
    mlp_bias: Literal[False] = False
    use_sliding_window: Literal[False] = False
    layer_types: list[Literal["full_attention"]] | None = None
    rope_parameters: _Rope | None = None  # of transformers 5
    rope_theta: Annotated[float, Meta(gt=0)] = 10_000.0
    rope_scaling: _Rope | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of ModelConfig that this config describes."""
        width = 128 if self.model_type == "qwen3" else self.hidden_size // self.num_attention_heads  # their defaults
        kv_heads = self.num_key_value_heads or self.num_attention_heads
        rope = self.rope_scaling or self.rope_parameters  # the first goes before the second, as in transformers 5
        return _DECODER | {
            **{ours: getattr(self, name) for name, ours in _FIELDS.items()},
            "head_dim": self.head_dim or width,
            "num_kv_heads": 0 if kv_heads == self.num_attention_heads else kv_heads,
            "rope_theta": (rope and rope.rope_theta) or self.rope_theta,
            "activation": _ACTIVATIONS[self.hidden_act],
            "head": "tied" if self.tie_word_embeddings else "untied",
            "qk_norm": self.model_type == "qwen3",
            **dict.fromkeys(("hidden_dropout", "mlp_dropout", "embedding_dropout"), 0.0),
        }


def is_llama(folder: Path) -> bool:
    """Whether the config.json in `folder` is one of these models'."""
    path = folder / CONFIG_FILE
    return exists(path) and read_object(path).get("model_type") in [*ARCHITECTURES]  # a list or an object is in no dict


def read_llama_config(path: Path) -> LlamaConfig:
    """The config.json at `path`. Raises UserError where it is of a model that mhsh has not."""
    with wrap_file_errors(path, "mhsh imports Llama and Qwen3 with their plain rotary positions, without biases"):
        return msgspec.convert(read_object(path), LlamaConfig)


def import_llama(source: Path, base: ModelConfig) -> ImportedCheckpoint:
    """Reads the checkpoint in the folder `source`, or the .safetensors file `source` with the
    config.json beside it; `base` gives the fields that a checkpoint knows nothing of. Raises
    UserError as `import_bert`.
    """
    files = open_weights(source)
    config = read_llama_config((source if is_dir(source) else source.parent) / CONFIG_FILE)
    tensors = Tensors({name: name for name in files}, files)
    with wrap_file_errors(source, "give --config=gpt:..., and config.json and weights of one model"):
        if base.objective != "clm":
            raise ValueError(f"it is a language model, the --config has model.objective = {base.objective!r}")
        model = replace(base, **config.fields)
        check_fields("model", model, _EXPORTABLE, "Llama or Qwen3", "import")
        if model.num_heads % model.kv_heads or model.head_dim % 2:
            raise ValueError("num_attention_heads must be a multiple of num_key_value_heads, and head_dim even")
        # Older versions of transformers saved the frequencies, which follow from rope_theta.
        others = {name for name in files if name.endswith("rotary_emb.inv_freq")}
        check_tensors(model, parameters(model), tensors, others | ({_OUTPUT} if model.head == "tied" else set()))
        if model.head == "tied" and _OUTPUT in files and not tensors.equal(_OUTPUT, _TABLE):
            raise ValueError(f"the tensor {_OUTPUT} differs from {_TABLE}, which config.json says is used instead")
    return ImportedCheckpoint(
        model=model,
        params=read_params(model, parameters(model), tensors),
        left_out=tuple(sorted(others)),
        architecture=ARCHITECTURES[config.model_type],
        files=tuple(sorted({file.path for file in files.values()})),
    )


def check_exportable(model: ModelConfig) -> None:
    """Raises UserError where neither Llama nor Qwen3 computes what the model does."""
    check_fields("model", model, _EXPORTABLE, "Llama or Qwen3")
    if not model.qk_norm and model.embed_dim % model.num_heads:
        raise UserError(
            f"model.num_heads = {model.num_heads} cannot be exported: transformers' Llama wants a divisor of model.embed_dim = "
            f"{model.embed_dim}, though it does not divide by it"
        )


def architecture_of(model: ModelConfig) -> str:
    """The class of transformers that computes what the model does."""
    return ARCHITECTURES["qwen3" if model.qk_norm else "llama"]


def export_llama(folder: Path, model: ModelConfig, params: Any, tokenizer: Tokenizer) -> ModelConfig:
    """Writes config.json, weights and tokenizer into `folder`; returns the same model.
    Raises UserError as `check_exportable`, or a file cannot be written.
    """
    check_exportable(model)
    content = {
        "architectures": [architecture_of(model)],
        "model_type": "qwen3" if model.qk_norm else "llama",
        **{name: getattr(model, ours) for name, ours in _FIELDS.items()},
        "num_key_value_heads": model.kv_heads,
        "hidden_act": {ours: name for name, ours in _ACTIVATIONS.items()}[model.activation],
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": model.head == "tied",
        "rope_theta": model.rope_theta,
        "rope_parameters": {"rope_theta": model.rope_theta, "rope_type": "default"},  # transformers 5 reads it here
        "pad_token_id": tokenizer.pad_id,
        "bos_token_id": None,
        "eos_token_id": tokenizer.sep_id,
    }
    (folder / CONFIG_FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    write_tokenizer(folder, tokenizer, max_positions=model.max_positions)
    write_weights(folder, to_tensors(model, parameters(model), params))
    return model


def parameters(model: ModelConfig) -> tuple[Parameter, ...]:
    """Every parameter of such a model, in the order of computation."""
    d = model.embed_dim
    sides = {name: weights.sides(model) for name, weights in KERNELS.items()}
    attention, feed_forward, layer = LAYERS + "attention/", LAYERS + "feed_forward/", "model.layers.{}."
    head_norms = [
        plain_parameter(f"{attention}{part}_norm/scale", f"{layer}self_attn.{part[0]}_norm.weight", model.head_dim)
        for part in ("query", "key")
    ]
    return (
        plain_parameter("embeddings/token", _TABLE, model.vocab_size, d),
        plain_parameter(LAYERS + "attention_residual/norm/scale", layer + "input_layernorm.weight", d),
        kernel_parameter(attention + "query_", layer + "self_attn.q_proj", *sides["query_kernel"]),
        kernel_parameter(attention + "key_", layer + "self_attn.k_proj", *sides["key_kernel"]),
        kernel_parameter(attention + "value_", layer + "self_attn.v_proj", *sides["value_kernel"]),
        *(head_norms if model.qk_norm else ()),
        kernel_parameter(attention + "out_", layer + "self_attn.o_proj", *sides["out_kernel"]),
        plain_parameter(LAYERS + "feed_forward_residual/norm/scale", layer + "post_attention_layernorm.weight", d),
        kernel_parameter(feed_forward + "gate_", layer + "mlp.gate_proj", *sides["gate_kernel"]),
        kernel_parameter(feed_forward + "up_", layer + "mlp.up_proj", *sides["up_kernel"]),
        kernel_parameter(feed_forward + "down_", layer + "mlp.down_proj", *sides["down_kernel"]),
        plain_parameter("encoder/final_norm/scale", "model.norm.weight", d),
        *([kernel_parameter("prediction/", "lm_head", (d,), (model.vocab_size,))] if model.head == "untied" else ()),
    )
