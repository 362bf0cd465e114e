"""What a run is: frozen dataclasses, their validation, and `regroup`, which trades heads against depth."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mhsh.errors import UserError

OBJECTIVES = ("mlm", "clm")
RESIDUALS = ("post_ln", "pre_ln", "admin", "deepnorm", "rezero")
ADMIN_OMEGAS = ("profiled", "closed_log", "closed_one")
INITS = ("bert", "xavier")
ACTIVATIONS = ("gelu", "gelu_tanh", "relu")
DTYPES = ("float32", "bfloat16")
REMAT_POLICIES = ("none", "full", "dots", "dots_no_batch")
TOKENIZERS = ("wordpiece", "bytes")
OPTIMIZERS = ("adamw", "lamb")
SCHEDULES = ("linear", "constant")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The shape and the mathematics of one Transformer; letters as in docs/design.md."""

    objective: str  # mlm: predict masked tokens; clm: predict the next token
    vocab_size: int  # V, rows of the embedding table; at least the tokenizer's vocabulary
    max_positions: int  # rows of the learned position table
    num_token_types: int  # rows of the token-type table; 0 leaves it out
    next_sentence: bool  # whether the pooler and the next-sentence head exist (mlm only)
    num_layers: int  # L
    num_heads: int  # N, heads in one layer
    head_dim: int  # H, explicit: N * H need not equal D
    embed_dim: int  # D
    mlp_dim: int  # F
    activation: str
    residual: str
    admin_omega: str  # how Admin's omega starts; read only where residual is admin
    init: str
    hidden_dropout: float
    attention_dropout: float
    embedding_dropout: float
    layer_norm_epsilon: float
    compute_dtype: str
    residual_dtype: str
    remat_policy: str
    scan_unroll: int


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Which text, how it becomes tokens, and how tokens become rows."""

    source: str  # stdlib, or text:GLOB (.txt, .gz, .xz)
    tokenizer: str
    vocab_path: str  # a vocab.txt to load; empty: trained on the source's training documents
    lowercase: bool
    sequence_length: int  # T, tokens in a row
    max_predictions: int  # P, the fixed number of predicted positions a row (mlm)
    mask_fraction: float  # share of a row's tokens that are predicted (mlm)
    whole_word_masking: bool
    validation_fraction: float  # share of the documents held out
    seed: int  # of document split, row order and masking


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The update rule and its schedule."""

    name: str
    learning_rate: float
    schedule: str  # after the warm-up: linear to zero after the last step, or constant
    warmup_steps: int
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    clip_norm: float  # of the global gradient norm; 0: no clipping


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """How long, how much at once, and what is written when."""

    seed: int  # of initialisation and dropout
    num_steps: int
    batch_size: int  # B, rows of one step over all devices
    accumulation_steps: int  # micro-batches that one step is cut into
    log_interval: int
    eval_interval: int  # 0: only after the last step
    eval_batches: int  # validation batches per evaluation; 0: all of them
    checkpoint_interval: int  # 0: only after the last step
    keep_checkpoints: int
    keep_every: int  # checkpoints at multiples of this step are kept for good; 0: none
    max_skipped_steps: int  # so many steps in a row with a non-finite loss or gradient end the run
    hang_seconds: int  # a step, evaluation batch or save that takes longer ends the process with its stacks; 0: never


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each mesh axis; -1 on one axis: whatever the others leave."""

    data: int
    fsdp: int
    tensor: int


@dataclasses.dataclass(frozen=True)
class Config:
    """Everything a run is made of; `config.json` is this, and a restore reads nothing else."""

    model: ModelConfig
    data: DataConfig
    optimizer: OptimizerConfig
    train: TrainConfig
    mesh: MeshConfig


_SECTIONS: dict[str, type] = {
    "model": ModelConfig,
    "data": DataConfig,
    "optimizer": OptimizerConfig,
    "train": TrainConfig,
    "mesh": MeshConfig,
}

# What a value may be, beyond its type; a field named in none of these tables is checked by type alone.
_CHOICES = {
    "model.objective": OBJECTIVES,
    "model.activation": ACTIVATIONS,
    "model.residual": RESIDUALS,
    "model.admin_omega": ADMIN_OMEGAS,
    "model.init": INITS,
    "model.compute_dtype": DTYPES,
    "model.residual_dtype": DTYPES,
    "model.remat_policy": REMAT_POLICIES,
    "data.tokenizer": TOKENIZERS,
    "optimizer.name": OPTIMIZERS,
    "optimizer.schedule": SCHEDULES,
}
_AT_LEAST_ONE = {
    "model": ("vocab_size", "max_positions", "num_layers", "num_heads", "head_dim", "embed_dim", "mlp_dim", "scan_unroll"),
    "data": ("sequence_length",),
    "train": ("num_steps", "batch_size", "accumulation_steps", "log_interval", "keep_checkpoints", "max_skipped_steps"),
}
_AT_LEAST_ZERO = {
    "model": ("num_token_types",),
    "data": ("max_predictions", "seed"),
    "optimizer": ("warmup_steps", "weight_decay", "clip_norm"),
    "train": ("seed", "eval_interval", "eval_batches", "checkpoint_interval", "keep_every", "hang_seconds"),
}
_POSITIVE = {"model": ("layer_norm_epsilon",), "optimizer": ("learning_rate", "epsilon")}
_FRACTIONS = {
    "model": ("hidden_dropout", "attention_dropout", "embedding_dropout"),
    "data": ("mask_fraction", "validation_fraction"),
    "optimizer": ("beta1", "beta2"),
}
_MESH_AXES = {"mesh": ("data", "fsdp", "tensor")}


def regroup(model: ModelConfig, heads_per_layer: int) -> ModelConfig:
    """The same heads stacked in depth: L' = L N / n, N' = n, F' = F n / N; H and D unchanged.

    Source: Liu, Liu and Han, arXiv 2106.09650, section 3 (the shapes of their single-head models).

    Raises:
      UserError: n does not divide N, or N does not divide F n.
    """
    n, num_heads = heads_per_layer, model.num_heads
    if n < 1 or num_heads % n:
        raise UserError(
            f"model.heads_per_layer = {n} does not divide model.num_heads = {num_heads}; "
            f"allowed: {', '.join(str(d) for d in range(1, num_heads + 1) if num_heads % d == 0)}"
        )
    if (model.mlp_dim * n) % num_heads:
        raise UserError(
            f"model.heads_per_layer = {n}: the feed-forward width {model.mlp_dim} x {n} is not divisible by "
            f"model.num_heads = {num_heads}; choose another model.mlp_dim"
        )
    return dataclasses.replace(
        model,
        num_layers=model.num_layers * num_heads // n,
        num_heads=n,
        mlp_dim=model.mlp_dim * n // num_heads,
    )


def to_dict(config: Config) -> dict[str, Any]:
    """The plain nested dictionary that `config.json` holds."""
    return dataclasses.asdict(config)


def from_dict(fields: Mapping[str, Any]) -> Config:
    """Builds and validates a Config; `model.heads_per_layer`, where given and not 0, regroups the model on the way.

    Raises:
      UserError: naming the field, its value and what is allowed.
    """
    _check_names("", fields, list(_SECTIONS))
    sections: dict[str, Any] = {}
    heads_per_layer = 0
    for section, cls in _SECTIONS.items():
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
    config = Config(**sections)
    _check_values(config)
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
    """`value` as the annotated type; a whole number may stand where a float is wanted, nothing else is converted."""
    if kind == "float" and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    actual = type(value).__name__
    if actual != kind:
        raise UserError(f"{name} = {value!r} is of type {actual}; allowed: {kind}")
    if kind == "float" and not abs(value) < float("inf"):
        raise UserError(f"{name} = {value!r} is not a finite number")
    return value


def _check_values(config: Config) -> None:
    for name, choices in _CHOICES.items():
        section, field = name.split(".")
        _require(config, {section: (field,)}, choices.__contains__, ", ".join(choices))
    _require(config, _AT_LEAST_ONE, lambda v: v >= 1, "1 or more")
    _require(config, _AT_LEAST_ZERO, lambda v: v >= 0, "0 or more")
    _require(config, _POSITIVE, lambda v: v > 0, "more than 0")
    _require(config, _FRACTIONS, lambda v: 0 <= v < 1, "from 0 to less than 1")
    _require(config, _MESH_AXES, lambda v: v >= 1 or v == -1, "1 or more, or -1 for the rest")


def _require(config: Config, fields: Mapping[str, tuple[str, ...]], test: Callable[[Any], bool], allowed: str) -> None:
    for section, names in fields.items():
        for name in names:
            value = getattr(getattr(config, section), name)
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
            model.objective == "clm" and model.next_sentence,
            "model.next_sentence = True needs model.objective = 'mlm'; a causal model sees no sentence pairs",
        ),
        (
            model.next_sentence and model.num_token_types < 2,
            f"model.next_sentence = True needs model.num_token_types of 2 or more, not {model.num_token_types}",
        ),
        (
            model.objective == "mlm" and data.tokenizer == "bytes" and data.whole_word_masking,
            "data.whole_word_masking = True needs data.tokenizer = 'wordpiece'; bytes have no words",
        ),
        (
            model.objective == "mlm" and not 1 <= data.max_predictions <= data.sequence_length,
            f"data.max_predictions = {data.max_predictions}; allowed with model.objective = 'mlm': 1 to "
            f"data.sequence_length = {data.sequence_length}",
        ),
        (
            model.objective == "mlm" and data.mask_fraction <= 0,
            f"data.mask_fraction = {data.mask_fraction}; allowed with model.objective = 'mlm': more than 0",
        ),
        (
            [mesh.data, mesh.fsdp, mesh.tensor].count(-1) > 1,
            f"mesh = {dataclasses.asdict(mesh)}: only one axis can be -1 (whatever the others leave)",
        ),
    )
    for wrong, message in problems:
        if wrong:
            raise UserError(message)
