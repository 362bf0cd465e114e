"""config.json of a Hugging Face BERT, read and written: the fields of the model section that it
decides; and which models transformers computes too, by tables of what is known of every field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from mhsh.config.fields import fields_of
from mhsh.config.schema import ModelConfig, Section
from mhsh.errors import UserError
from mhsh.interop.weights import wrap_file_errors
from mhsh.storage.files import read_object
from mhsh.storage.questions import exists

# By field, the values that are exportable; None: all of them.
Table = Mapping[str, Sequence[Any] | None]

# Fields of the model that act on its start, its training or its rounding, or are read only with a
# residual scheme or positions, of which the tables name those that they know.
OF_TRAINING: Table = dict.fromkeys(
    (
        *("init", "fans", "layers_per_group", "hidden_dropout", "attention_dropout", "mlp_dropout", "embedding_dropout"),
        *("compute_dtype", "residual_dtype", "kernels", "remat_policy", "scan_unroll"),
        *("admin_omega", "depth_exponent", "base_layers", "residual_blocks", "residual_streams", "rope_theta"),
    )
)
# Fields of the data section: the files of a tokenizer are written by its kind and `lowercase`.
DATA: Table = dict.fromkeys(
    (
        *("source", "validation_source", "validation_fraction", "task", "seed", "vocab_path", "lowercase"),
        *("sequence_length", "max_predictions", "mask_fraction", "stride", "max_question_length"),
    )
)

# The objective that each trains; a BertModel has no head.
ARCHITECTURES = {
    "BertModel": None,
    "BertForMaskedLM": "mlm",
    "BertForPreTraining": "mlm",
    "BertForSequenceClassification": "classification",
    "BertForQuestionAnswering": "span",
}
# By transformers' names: the two of GELU's tanh form are one formula.
_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu", "silu": "silu"}
# Which field of the model section each field of config.json is.
_FIELDS = {
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_positions",
    "type_vocab_size": "num_token_types",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "hidden_size": "embed_dim",
    "intermediate_size": "mlp_dim",
    "hidden_dropout_prob": "hidden_dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "layer_norm_eps": "layer_norm_epsilon",
}
# The models that it computes, after their residual scheme is folded and their heads are padded.
EXPORTABLE: Table = {
    "objective": ("mlm", "classification", "span"),
    "residual": ("post_ln", "admin", "deepnorm"),  # what LN(omega x + f(x)) is
    "qk_norm": (False,),
    "loops": (1,),
    "positions": ("learned", "sinusoidal"),
    "num_decoder_layers": (0,),
    "num_kv_heads": (0,),
    "mlp": ("plain",),
    "bias": (True,),
    "norm": ("layer",),
    "head": ("bert",),
    "activation": tuple(_ACTIVATIONS.values()),
    **dict.fromkeys((*_FIELDS.values(), "head_dim", "next_sentence", "num_classes")),
    **OF_TRAINING,
}


Size = Annotated[int, Meta(ge=0, lt=2**31)]
Real = Annotated[float, Meta(gt=-(2.0**31), lt=2.0**31)]  # NaN is not


class BertConfig(Struct, kw_only=True):
    """A config.json, by transformers' names. Other values are other models."""

    model_type: Literal["bert"]
    architectures: Annotated[list[str], Meta(min_length=1, max_length=1)] | None = None
    vocab_size: Size
    max_position_embeddings: Size
    type_vocab_size: Size
    num_hidden_layers: Size
    num_attention_heads: Annotated[int, Meta(ge=1, lt=2**31)]
    hidden_size: Size
    intermediate_size: Size
    hidden_act: Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"]
    hidden_dropout_prob: Real
    attention_probs_dropout_prob: Real
    layer_norm_eps: Real = 1e-12  # a checkpoint of 2018 may leave it out: Devlin et al.'s code has this as a constant
    classifier_dropout: Real | None = None
    position_embedding_type: Literal["absolute"] = "absolute"
    is_decoder: bool = False
    add_cross_attention: bool = False
    tie_word_embeddings: bool | None = True
    id2label: dict[str, str | int | bool] | None = None
    num_labels: Annotated[int, Meta(ge=0, lt=2**16)] | None = None  # read where there is no id2label, as in transformers
    problem_type: Literal["regression", "single_label_classification", "multi_label_classification"] | None = None

    def __post_init__(self) -> None:
        if self.architecture is not None and self.architecture not in ARCHITECTURES:
            raise ValueError(f"architectures = {self.architectures} is none of {', '.join(ARCHITECTURES)}")
        if self.hidden_size % self.num_attention_heads:
            heads = self.num_attention_heads
            raise ValueError(f"hidden_size = {self.hidden_size} is not a multiple of num_attention_heads = {heads}")
        if self.is_decoder or self.add_cross_attention:
            raise ValueError("is_decoder and add_cross_attention must be false")
        names = self.id2label or {}
        if sorted(names) != sorted(str(number) for number in range(len(names))):
            raise ValueError("id2label must name the classes 0, 1, ... without a gap")

    @property
    def architecture(self) -> str | None:
        """A key of ARCHITECTURES; None: it does not say."""
        return self.architectures[0] if self.architectures else None

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the classes by number; two by default, as in transformers."""
        names = self.id2label or {str(number): f"LABEL_{number}" for number in range(self.num_labels or 2)}
        return tuple(str(names[str(number)]) for number in range(len(names)))

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of ModelConfig, without those that depend on the heads."""
        return {ours: getattr(self, name) for name, ours in _FIELDS.items()} | {
            "head_dim": self.hidden_size // self.num_attention_heads,
            "num_decoder_layers": 0,
            "loops": 1,
            "positions": "learned",
            "activation": _ACTIVATIONS[self.hidden_act],
            "residual": "post_ln",
            "qk_norm": False,
            "init": "bert",
            "embedding_dropout": self.hidden_dropout_prob,
            "mlp_dropout": 0.0,
        }


def read_bert_config(path: Path) -> tuple[BertConfig, tuple[str, ...]]:
    """The config.json at `path`, and what the person who imports it should know. Raises UserError
    where it cannot be read, or is of a model that mhsh has not.
    """
    if not exists(path):
        raise UserError(f"{path} does not exist; without it the weights mean nothing: fetch it into the folder of the weights")
    content = read_object(path)
    with wrap_file_errors(path, "mhsh imports BERT encoders alone, with the config.json that they were saved with"):
        config = msgspec.convert(content, BertConfig)
    notes = []
    if "layer_norm_eps" not in content:
        notes.append(f"config.json has no layer_norm_eps; taken: {config.layer_norm_eps}, the original BERT's constant")
    if config.classifier_dropout not in (None, config.hidden_dropout_prob):
        notes.append(
            f"config.json has classifier_dropout = {config.classifier_dropout}; here hidden_dropout stands before the classes"
        )
    return config, tuple(notes)


def bert_config(model: ModelConfig, pad_id: int, labels: Sequence[str]) -> dict[str, Any]:
    """The config.json of a Post-LN BERT with learned positions and token types, N H = D. `labels`
    name the classes by number (empty: LABEL_0, LABEL_1, ...).
    """
    from mhsh.models.layers import BERT_STDDEV  # not above: it imports jax

    content: dict[str, Any] = {
        "architectures": [architecture_of(model)],
        "model_type": "bert",
        "hidden_act": {ours: name for name, ours in reversed(_ACTIVATIONS.items())}[model.activation],
        "initializer_range": BERT_STDDEV,
        "layer_norm_eps": model.layer_norm_epsilon,
        "pad_token_id": pad_id,
        **{name: getattr(model, ours) for name, ours in _FIELDS.items() if name != "layer_norm_eps"},
    }
    if model.objective == "classification":
        labels = labels or [f"LABEL_{number}" for number in range(model.num_classes)]
        content["id2label"] = {str(number): label for number, label in enumerate(labels)}
        content["label2id"] = {label: number for number, label in enumerate(labels)}
        content["problem_type"] = "regression" if model.num_classes == 1 else "single_label_classification"
    return content


def architecture_of(model: ModelConfig) -> str:
    """The class of transformers that has the heads of the model."""
    if model.objective == "mlm":
        return "BertForPreTraining" if model.next_sentence else "BertForMaskedLM"
    return {"classification": "BertForSequenceClassification", "span": "BertForQuestionAnswering"}[model.objective]


def check_fields(section: str, config: Section, table: Table, architectures: str, verb: str = "export") -> None:
    """Raises UserError where a field of a section has a value that is not in the table: nobody has
    shown that `architectures` of transformers compute the same. A field that the table does not
    name is a later one, and has the value that stands for what was done before.
    """
    fields = fields_of(section, type(config))
    later = {name: (field.before,) for name, field in fields.items() if name not in table}
    for name, values in {**table, **later}.items():
        if name not in fields or values is None:
            continue
        value = getattr(config, name)
        if value not in values:
            raise UserError(
                f"{section}.{name} = {value!r} cannot be {verb}ed: no {architectures} of transformers computes what this model "
                f"does; {verb}able: {', '.join(map(str, values))}"
            )
