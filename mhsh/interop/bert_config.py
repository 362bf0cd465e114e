"""config.json of a Hugging Face BERT, read and written: the fields of the model section that it
decides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mhsh.config.schema import ModelConfig
from mhsh.errors import UserError
from mhsh.files import read_object

CONFIG_FILE = "config.json"
# The objective that each trains; a BertModel has no head.
ARCHITECTURES = {
    "BertModel": None,
    "BertForMaskedLM": "mlm",
    "BertForPreTraining": "mlm",
    "BertForSequenceClassification": "classification",
    "BertForQuestionAnswering": "span",
}
# By transformers' names: the two of GELU's tanh form are one formula.
_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}
_SIZES = {
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_positions",
    "type_vocab_size": "num_token_types",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "hidden_size": "embed_dim",
    "intermediate_size": "mlp_dim",
}
_DROPOUTS = {"hidden_dropout_prob": "hidden_dropout", "attention_probs_dropout_prob": "attention_dropout"}
# Of the fields that a checkpoint of 2018 could leave out: Devlin et al.'s code has this as a
# constant.
_LAYER_NORM_EPSILON = 1e-12


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """What a config.json says."""

    architecture: str | None  # a key of ARCHITECTURES; None: it does not say
    fields: Mapping[str, Any]  # of ModelConfig, without those that depend on the heads
    labels: tuple[str, ...]  # of the classes, by number
    problem_type: str | None  # of a classification, where it says
    is_tied: bool  # the output matrix is the token table
    notes: tuple[str, ...]  # what the person who imports it should know


def read_bert_config(path: Path) -> BertConfig:
    """The config.json at `path`.

    Raises:
      UserError: it cannot be read, lacks a field or has one of another type, or is of a model that
        mhsh has not.
    """
    if not path.exists():
        raise UserError(f"there is no {path}; without it the weights mean nothing: fetch it into the folder of the weights")
    there = read_object(path)
    _check_kind(there, path)
    fields: dict[str, Any] = {ours: _whole(there, name, path) for name, ours in _SIZES.items()}
    fields |= {ours: _number(there, name, path) for name, ours in _DROPOUTS.items()}
    if not fields["num_heads"] or fields["embed_dim"] % fields["num_heads"]:
        raise UserError(
            f"{path}: hidden_size = {fields['embed_dim']} is no multiple of num_attention_heads = {fields['num_heads']}"
        )
    notes = []
    if "layer_norm_eps" not in there:
        notes.append(f"config.json has no layer_norm_eps; taken: {_LAYER_NORM_EPSILON}, the original BERT's constant")
    classifier_dropout = there.get("classifier_dropout")
    if classifier_dropout not in (None, there["hidden_dropout_prob"]):
        notes.append(f"config.json has classifier_dropout = {classifier_dropout!r}; here hidden_dropout stands before the classes")
    fields |= {
        "head_dim": fields["embed_dim"] // fields["num_heads"],
        "num_decoder_layers": 0,
        "positions": "learned",
        "activation": _ACTIVATIONS[there["hidden_act"]],
        "residual": "post_ln",
        "qk_norm": False,
        "init": "bert",
        "embedding_dropout": fields["hidden_dropout"],
        "mlp_dropout": 0.0,
        "layer_norm_epsilon": _number({"layer_norm_eps": _LAYER_NORM_EPSILON} | there, "layer_norm_eps", path),
    }
    return BertConfig(
        architecture=_architecture(there, path),
        fields=fields,
        labels=_labels(there, path),
        problem_type=there.get("problem_type"),
        is_tied=there.get("tie_word_embeddings", True) is not False,
        notes=tuple(notes),
    )


def bert_config(model: ModelConfig, pad_id: int, labels: Sequence[str]) -> dict[str, Any]:
    """The config.json of a Post-LN BERT with learned positions and token types, N H = D.

    Args:
      pad_id: of [PAD].
      labels: the names of the classes by number; empty: LABEL_0, LABEL_1, ...
    """
    from mhsh.models.layers import BERT_STDDEV  # not above: it imports jax

    there: dict[str, Any] = {
        "architectures": [architecture_of(model)],
        "model_type": "bert",
        "hidden_act": {ours: name for name, ours in reversed(_ACTIVATIONS.items())}[model.activation],
        "initializer_range": BERT_STDDEV,
        "layer_norm_eps": model.layer_norm_epsilon,
        "pad_token_id": pad_id,
        **{name: getattr(model, ours) for name, ours in (_SIZES | _DROPOUTS).items()},
    }
    if model.objective == "classification":
        labels = labels or [f"LABEL_{number}" for number in range(model.num_classes)]
        there["id2label"] = {str(number): label for number, label in enumerate(labels)}
        there["label2id"] = {label: number for number, label in enumerate(labels)}
        there["problem_type"] = "regression" if model.num_classes == 1 else "single_label_classification"
    return there


def architecture_of(model: ModelConfig) -> str:
    """The class of transformers that has the heads of the model."""
    if model.objective == "mlm":
        return "BertForPreTraining" if model.next_sentence else "BertForMaskedLM"
    return {"classification": "BertForSequenceClassification", "span": "BertForQuestionAnswering"}[model.objective]


def check_classification(there: BertConfig, num_classes: int, where: Path) -> None:
    """Raises UserError where `there` is no choice of one among `num_classes`, or no regression on
    one number for 1.
    """
    if len(there.labels) != num_classes:
        raise UserError(
            f"{where} has {len(there.labels)} labels, the --config model.num_classes = {num_classes}; give a --config of that "
            "many, or --fresh-heads to take the body alone"
        )
    regression = there.problem_type == "regression" or (there.problem_type is None and len(there.labels) == 1)
    if there.problem_type not in (None, "regression", "single_label_classification") or regression != (len(there.labels) == 1):
        raise UserError(
            f"{where}: problem_type = {there.problem_type!r} with {len(there.labels)} labels; mhsh has a regression on one number "
            "and the choice of one class among two or more"
        )


def _check_kind(there: Mapping[str, Any], path: Path) -> None:
    """Refuses what computes something else than mhsh's Post-LN BERT."""
    allowed: dict[str, tuple[Any, ...]] = {
        "model_type": ("bert",),
        "hidden_act": tuple(_ACTIVATIONS),
        "position_embedding_type": ("absolute",),
        "is_decoder": (False,),
        "add_cross_attention": (False,),
    }
    for name, values in allowed.items():
        if name not in there and name not in ("model_type", "hidden_act"):
            continue
        value = there.get(name)
        # By identity for the bools: 0 is no False.
        if not any(value is each or (isinstance(each, str) and value == each) for each in values):
            given = f"{name} = {value!r}" if name in there else f"no {name}"
            raise UserError(f"{path} has {given}; mhsh imports BERT encoders with {name} = {', '.join(map(repr, values))}")


def _architecture(there: Mapping[str, Any], path: Path) -> str | None:
    given = there.get("architectures")
    if given is None:
        return None
    if not isinstance(given, list) or len(given) != 1 or given[0] not in ARCHITECTURES:
        raise UserError(f"{path} has architectures = {given!r:.80}; mhsh imports one of {', '.join(ARCHITECTURES)}")
    return given[0]


def _labels(there: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    """Those of id2label; where that is missing two, which is what transformers means by it."""
    labels = there.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})
    if not isinstance(labels, dict) or sorted(labels) != sorted(str(number) for number in range(len(labels))):
        raise UserError(f"{path} has id2label = {labels!r:.80}; it must name the classes 0, 1, ... without a gap")
    return tuple(str(labels[str(number)]) for number in range(len(labels)))


def _whole(there: Mapping[str, Any], name: str, path: Path) -> int:
    value = _present(there, name, path)
    if type(value) is not int or not 0 <= value < 2**31:
        raise UserError(f"{path}: {name} = {value!r:.40} is no size; correct it")
    return value


def _number(there: Mapping[str, Any], name: str, path: Path) -> float:
    value = _present(there, name, path)
    if type(value) not in (int, float) or not abs(value) < 2.0**31:  # NaN is not
        raise UserError(f"{path}: {name} = {value!r:.40} is no number; correct it")
    return float(value)


def _present(there: Mapping[str, Any], name: str, path: Path) -> Any:
    if name not in there:
        raise UserError(f"{path} has no {name}; add the one that the checkpoint was made with")
    return there[name]
