"""From plain fields to a Config: every name, type, value and combination is checked, and every
error names its field.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mhsh.config.schema import (
    ACTIVATIONS,
    ADMIN_OMEGAS,
    DTYPES,
    INITS,
    KERNELS,
    LAYOUTS,
    OBJECTIVES,
    OPTIMIZERS,
    POSITIONS,
    REMAT_POLICIES,
    RESIDUALS,
    SCHEDULES,
    TOKENIZERS,
    TRANSLATION_TOKENIZERS,
    AnyDataConfig,
    ClassificationDataConfig,
    Config,
    DataConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    SpanDataConfig,
    TrainConfig,
    TranslationDataConfig,
    regroup,
)
from mhsh.errors import UserError

# In this order: the model's objective decides of what kind the data section is.
_SECTIONS = ("model", "data", "optimizer", "train", "mesh")

# The objectives whose data section is not DataConfig.
_DATA_SECTIONS: dict[str, type] = {
    "translation": TranslationDataConfig,
    "classification": ClassificationDataConfig,
    "span": SpanDataConfig,
}

# What a value may be, beyond its type; a field named in none of these tables is checked by type
# alone.
_CHOICES: dict[type, dict[str, Sequence[str]]] = {
    ModelConfig: {
        "objective": OBJECTIVES,
        "positions": POSITIONS,
        "activation": ACTIVATIONS,
        "residual": RESIDUALS,
        "admin_omega": ADMIN_OMEGAS,
        "init": INITS,
        "compute_dtype": DTYPES,
        "residual_dtype": DTYPES,
        "remat_policy": REMAT_POLICIES,
        "kernels": KERNELS,
    },
    DataConfig: {"tokenizer": TOKENIZERS},
    TranslationDataConfig: {"tokenizer": TRANSLATION_TOKENIZERS, "layout": LAYOUTS},
    OptimizerConfig: {"name": OPTIMIZERS, "schedule": SCHEDULES},
}
_AT_LEAST_ONE = {
    ModelConfig: ("vocab_size", "max_positions", "num_layers", "num_heads", "head_dim", "embed_dim", "mlp_dim", "scan_unroll"),
    DataConfig: ("sequence_length",),
    TranslationDataConfig: ("sequence_length", "max_length_ratio"),
    ClassificationDataConfig: ("sequence_length",),
    SpanDataConfig: ("sequence_length", "stride", "max_question_length"),
    TrainConfig: ("num_steps", "batch_size", "accumulation_steps", "log_interval", "keep_checkpoints", "max_skipped_steps"),
}
_AT_LEAST_ZERO = {
    ModelConfig: ("num_token_types", "num_decoder_layers", "num_classes"),
    DataConfig: ("max_predictions", "seed"),
    TranslationDataConfig: ("validation_sentences", "seed"),
    ClassificationDataConfig: ("seed",),
    SpanDataConfig: ("seed",),
    OptimizerConfig: ("end_learning_rate", "warmup_steps", "weight_decay", "clip_norm"),
    TrainConfig: ("seed", "eval_interval", "eval_batches", "checkpoint_interval", "keep_every", "hang_seconds"),
}
_POSITIVE = {ModelConfig: ("layer_norm_epsilon",), OptimizerConfig: ("learning_rate", "epsilon")}
_FRACTIONS = {
    ModelConfig: ("hidden_dropout", "attention_dropout", "mlp_dropout", "embedding_dropout"),
    DataConfig: ("mask_fraction", "validation_fraction"),
    TranslationDataConfig: ("validation_fraction",),
    SpanDataConfig: ("validation_fraction",),
    OptimizerConfig: ("beta1", "beta2"),
    TrainConfig: ("label_smoothing",),
}
_MESH_AXES = {MeshConfig: ("data", "fsdp", "tensor")}


# Fields that older config.json files lack, and what runs did before there was a choice.
_ADDED_LATER: dict[str, dict[str, Any]] = {
    "model": {"num_classes": 0, "kernels": "plain"},
    "optimizer": {"end_learning_rate": 0.0},
    "train": {"start_from": "", "keep_moments": False},
}


def from_saved(fields: Mapping[str, Any]) -> Config:
    """As `from_dict`, of a run's config.json, which an older version may have written."""
    complete = dict(fields)
    for section, added in _ADDED_LATER.items():
        if isinstance(complete.get(section), Mapping):
            complete[section] = added | dict(complete[section])
    return from_dict(complete)


def from_dict(fields: Mapping[str, Any]) -> Config:
    """Builds and validates a Config; `model.heads_per_layer`, where given and not 0, regroups the
    model on the way.

    Raises:
      UserError: naming the field, its value and what is allowed.
    """
    _check_names("", fields, _SECTIONS)
    sections: dict[str, Any] = {}
    heads_per_layer = 0
    for section in _SECTIONS:
        cls = _section_class(section, sections)
        values = fields[section]
        if not isinstance(values, Mapping):
            raise UserError(f"{section} = {values!r} is not a section; allowed: {_names(cls)}")
        values = dict(values)
        optional = ("heads_per_layer",) if section == "model" else ()
        _check_names(section + ".", values, [field.name for field in dataclasses.fields(cls)], optional)
        if optional:
            heads_per_layer = _typed("model.heads_per_layer", values.get("heads_per_layer", 0), "int")
        sections[section] = cls(
            **{
                field.name: _typed(f"{section}.{field.name}", values[field.name], str(field.type))
                for field in dataclasses.fields(cls)
            }
        )
        _check_values(section, sections[section])
    config = Config(**sections)
    if heads_per_layer:
        config = dataclasses.replace(config, model=regroup(config.model, heads_per_layer))
    _check_together(config)
    return config


def _names(cls: type) -> str:
    return ", ".join(field.name for field in dataclasses.fields(cls))


def _check_names(prefix: str, given: Mapping[str, Any], required: Sequence[str], optional: Sequence[str] = ()) -> None:
    known = [*required, *optional]
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            hint = f"did you mean {prefix}{close[0]}?" if close else f"allowed: {', '.join(known)}"
            raise UserError(f"{prefix}{name} = {given[name]!r} is not a field of the config; {hint}")
    for name in required:
        if name not in given:
            raise UserError(f"{prefix}{name} is missing from the config; it has no default")


def _typed(name: str, value: Any, kind: str) -> Any:
    """`value` as the annotated type; a whole number may stand where a float is wanted, nothing else
    is converted.
    """
    if kind == "float" and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    actual = type(value).__name__
    if actual != kind:
        raise UserError(f"{name} = {value!r} is of type {actual}; allowed: {kind}")
    if kind == "float" and not abs(value) < float("inf"):
        raise UserError(f"{name} = {value!r} is not a finite number")
    return value


def _section_class(section: str, before: Mapping[str, Any]) -> type:
    if section == "data":
        return _DATA_SECTIONS.get(before["model"].objective, DataConfig)
    return {"model": ModelConfig, "optimizer": OptimizerConfig, "train": TrainConfig, "mesh": MeshConfig}[section]


def _check_values(section: str, values: Any) -> None:
    for field, choices in _CHOICES.get(type(values), {}).items():
        _require(section, values, {type(values): (field,)}, choices.__contains__, ", ".join(choices))
    _require(section, values, _AT_LEAST_ONE, lambda v: v >= 1, "1 or more")
    _require(section, values, _AT_LEAST_ZERO, lambda v: v >= 0, "0 or more")
    _require(section, values, _POSITIVE, lambda v: v > 0, "more than 0")
    _require(section, values, _FRACTIONS, lambda v: 0 <= v < 1, "from 0 to less than 1")
    _require(section, values, _MESH_AXES, lambda v: v >= 1 or v == -1, "1 or more, or -1 for the rest")


def _require(section: str, values: Any, fields: Mapping[type, tuple[str, ...]], test: Callable[[Any], bool], allowed: str) -> None:
    for name in fields.get(type(values), ()):
        value = getattr(values, name)
        if not test(value):
            raise UserError(f"{section}.{name} = {value!r}; allowed: {allowed}")


def _check_together(config: Config) -> None:
    """What single fields cannot tell: combinations that could not train."""
    model, data, optimizer, train, mesh = config.model, config.data, config.optimizer, config.train, config.mesh
    problems = (
        (
            data.sequence_length > model.max_positions,
            f"data.sequence_length = {data.sequence_length} is longer than model.max_positions = {model.max_positions}; "
            "shorten the sequence or raise model.max_positions",
        ),
        (
            train.batch_size % train.accumulation_steps,
            f"train.batch_size = {train.batch_size} is not divisible by train.accumulation_steps = {train.accumulation_steps}",
        ),
        (
            optimizer.warmup_steps > train.num_steps,
            f"optimizer.warmup_steps = {optimizer.warmup_steps} is more than train.num_steps = {train.num_steps}",
        ),
        (
            optimizer.schedule == "inverse_sqrt" and not optimizer.warmup_steps,
            "optimizer.schedule = 'inverse_sqrt' falls from the end of the warm-up; optimizer.warmup_steps must be 1 or more",
        ),
        (
            optimizer.end_learning_rate and optimizer.schedule != "linear",
            f"optimizer.end_learning_rate = {optimizer.end_learning_rate}; allowed with optimizer.schedule = "
            f"{optimizer.schedule!r}: 0",
        ),
        (
            train.keep_moments and not train.start_from,
            "train.keep_moments = True needs the run whose moments are kept: give --config.train.start_from=DIR",
        ),
        (
            model.next_sentence and model.objective != "mlm",
            f"model.next_sentence = True needs model.objective = 'mlm'; {model.objective!r} sees no sentence pairs",
        ),
        (
            model.next_sentence and model.num_token_types < 2,
            f"model.next_sentence = True needs model.num_token_types of 2 or more, not {model.num_token_types}",
        ),
        (
            [mesh.data, mesh.fsdp, mesh.tensor].count(-1) > 1,
            f"mesh = {dataclasses.asdict(mesh)}: only one axis can be -1 (whatever the others leave)",
        ),
        (
            (model.num_decoder_layers > 0) != (model.objective == "translation"),
            f"model.num_decoder_layers = {model.num_decoder_layers}; allowed with model.objective = {model.objective!r}: "
            + ("1 or more" if model.objective == "translation" else "0"),
        ),
        (
            (model.num_classes > 0) != (model.objective == "classification"),
            f"model.num_classes = {model.num_classes}; allowed with model.objective = {model.objective!r}: "
            + ("1 or more" if model.objective == "classification" else "0"),
        ),
        (
            train.eval_batches and model.objective in ("classification", "span"),
            f"train.eval_batches = {train.eval_batches}; allowed with model.objective = {model.objective!r}: 0, all of them",
        ),
        (
            train.label_smoothing and model.objective == "span",
            f"train.label_smoothing = {train.label_smoothing}; allowed with model.objective = 'span': 0",
        ),
        (
            model.num_token_types and model.objective == "translation",
            f"model.num_token_types = {model.num_token_types}; allowed with model.objective = 'translation': 0",
        ),
        *_data_problems(model, data),
    )
    for wrong, message in problems:
        if wrong:
            raise UserError(message)


def _data_problems(model: ModelConfig, data: AnyDataConfig) -> tuple[tuple[bool, str], ...]:
    match data:
        case DataConfig():
            return _masking_problems(model, data)
        case TranslationDataConfig():
            return _translation_problems(data)
        case SpanDataConfig():
            return _span_problems(data)
        case ClassificationDataConfig():
            return ()


def _masking_problems(model: ModelConfig, data: DataConfig) -> tuple[tuple[bool, str], ...]:
    masked = model.objective == "mlm"
    return (
        (
            masked and data.tokenizer == "bytes" and data.whole_word_masking,
            "data.whole_word_masking = True needs data.tokenizer = 'wordpiece'; bytes have no words",
        ),
        (
            masked and not 1 <= data.max_predictions <= data.sequence_length,
            f"data.max_predictions = {data.max_predictions}; allowed with model.objective = 'mlm': 1 to "
            f"data.sequence_length = {data.sequence_length}",
        ),
        (
            masked and data.mask_fraction <= 0,
            f"data.mask_fraction = {data.mask_fraction}; allowed with model.objective = 'mlm': more than 0",
        ),
    )


def _translation_problems(data: TranslationDataConfig) -> tuple[tuple[bool, str], ...]:
    return (
        (
            data.layout == "bucketed" and data.sequence_length % 8 != 0,
            f"data.sequence_length = {data.sequence_length} with data.layout = 'bucketed' must be divisible by 8: the buckets hold "
            "rows of an eighth, a quarter, a half and the whole of it",
        ),
    )


def _span_problems(data: SpanDataConfig) -> tuple[tuple[bool, str], ...]:
    room = data.sequence_length - data.max_question_length - 3
    return (
        (
            room < data.stride,
            f"data.stride = {data.stride}; allowed with data.sequence_length = {data.sequence_length} and "
            f"data.max_question_length = {data.max_question_length}: up to {room}, or some of the context would never be read",
        ),
    )
