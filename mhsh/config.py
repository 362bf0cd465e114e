"""What a run is: frozen dataclasses, their validation, and `regroup`, which trades heads against depth."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mhsh.errors import UserError

OBJECTIVES = ("mlm", "clm", "translation")
POSITIONS = ("learned", "sinusoidal")
RESIDUALS = ("post_ln", "pre_ln", "admin", "deepnorm", "rezero")
ADMIN_OMEGAS = ("profiled", "closed_log", "closed_one")
INITS = ("bert", "xavier")
ACTIVATIONS = ("gelu", "gelu_tanh", "relu")
DTYPES = ("float32", "bfloat16")
REMAT_POLICIES = ("none", "full", "dots", "dots_no_batch")
TOKENIZERS = ("wordpiece", "bytes")
TRANSLATION_TOKENIZERS = ("bpe", "unigram")
LAYOUTS = ("packed", "bucketed")
OPTIMIZERS = ("adamw", "lamb", "radam")
SCHEDULES = ("linear", "constant", "inverse_sqrt")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The shape and the mathematics of one Transformer; letters as in docs/design.md."""

    objective: str  # mlm: predict masked tokens; clm: predict the next token; translation: an encoder and a decoder
    vocab_size: int  # V, rows of the embedding table; at least the tokenizer's vocabulary
    max_positions: int  # rows of the position table
    positions: str  # learned, or the fixed sines of Vaswani et al. 2017
    num_token_types: int  # rows of the token-type table; 0 leaves it out
    next_sentence: bool  # whether the pooler and the next-sentence head exist (mlm only)
    num_layers: int  # L, of the encoder
    num_decoder_layers: int  # of the decoder; 0 where there is none (mlm, clm)
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
    mlp_dropout: float  # after the activation of the feed-forward sublayer
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
class TranslationDataConfig:
    """Which sentence pairs, how they become tokens, and how tokens become rows."""

    source: str  # numbers, text:SOURCE_GLOB,TARGET_GLOB, tfds:NAME or arrayrecord:DIR
    validation_source: str  # as source; empty: pairs of `source` held out by validation_fraction, or its own held-out part
    tokenizer: str
    vocab_path: str  # a vocabulary to load; empty: the one prepared with the rows, or learnt from the training pairs
    sequence_length: int  # S = T, tokens in a row of each side; the longest sentence kept, its end mark included
    layout: str  # packed: several pairs in a row; bucketed: one pair a row, rows of like length together
    max_length_ratio: float  # pairs whose sides differ more in tokens are left out
    validation_fraction: float  # share of the pairs held out where validation_source is empty
    validation_sentences: int  # of the validation pairs, translated and scored at every evaluation; 0: none
    seed: int  # of held-out pairs and row order


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The update rule and its schedule."""

    name: str
    learning_rate: float
    schedule: str  # after the warm-up: linear to zero after the last step, constant, or falling as step ** -0.5
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
    batch_size: int  # B, rows of data.sequence_length of one step over all devices; shorter rows are more by as much
    label_smoothing: float  # share of the target probability that is spread evenly over the vocabulary
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
    data: DataConfig | TranslationDataConfig  # the latter where model.objective is translation
    optimizer: OptimizerConfig
    train: TrainConfig
    mesh: MeshConfig


# In this order: the model's objective decides of what kind the data section is.
_SECTIONS = ("model", "data", "optimizer", "train", "mesh")

# The objectives whose data section is not DataConfig.
_DATA_SECTIONS: dict[str, type] = {"translation": TranslationDataConfig}

# What a value may be, beyond its type; a field named in none of these tables is checked by type alone.
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
    },
    DataConfig: {"tokenizer": TOKENIZERS},
    TranslationDataConfig: {"tokenizer": TRANSLATION_TOKENIZERS, "layout": LAYOUTS},
    OptimizerConfig: {"name": OPTIMIZERS, "schedule": SCHEDULES},
}
_AT_LEAST_ONE = {
    ModelConfig: ("vocab_size", "max_positions", "num_layers", "num_heads", "head_dim", "embed_dim", "mlp_dim", "scan_unroll"),
    DataConfig: ("sequence_length",),
    TranslationDataConfig: ("sequence_length", "max_length_ratio"),
    TrainConfig: ("num_steps", "batch_size", "accumulation_steps", "log_interval", "keep_checkpoints", "max_skipped_steps"),
}
_AT_LEAST_ZERO = {
    ModelConfig: ("num_token_types", "num_decoder_layers"),
    DataConfig: ("max_predictions", "seed"),
    TranslationDataConfig: ("validation_sentences", "seed"),
    OptimizerConfig: ("warmup_steps", "weight_decay", "clip_norm"),
    TrainConfig: ("seed", "eval_interval", "eval_batches", "checkpoint_interval", "keep_every", "hang_seconds"),
}
_POSITIVE = {ModelConfig: ("layer_norm_epsilon",), OptimizerConfig: ("learning_rate", "epsilon")}
_FRACTIONS = {
    ModelConfig: ("hidden_dropout", "attention_dropout", "mlp_dropout", "embedding_dropout"),
    DataConfig: ("mask_fraction", "validation_fraction"),
    TranslationDataConfig: ("validation_fraction",),
    OptimizerConfig: ("beta1", "beta2"),
    TrainConfig: ("label_smoothing",),
}
_MESH_AXES = {MeshConfig: ("data", "fsdp", "tensor")}


def regroup(model: ModelConfig, heads_per_layer: int) -> ModelConfig:
    """The same heads stacked in depth, in both stacks: L' = L N / n, N' = n, F' = F n / N; H and D unchanged.

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
        num_decoder_layers=model.num_decoder_layers * num_heads // n,
        num_heads=n,
        mlp_dim=model.mlp_dim * n // num_heads,
    )


def rows_in_batch(config: Config, length: int | None = None) -> int:
    """B of a batch whose rows have `length` tokens (None: data.sequence_length): every batch has as many places."""
    return config.train.batch_size * config.data.sequence_length // (length or config.data.sequence_length)


def to_dict(config: Config) -> dict[str, Any]:
    """The plain nested dictionary that `config.json` holds."""
    return dataclasses.asdict(config)


def from_dict(fields: Mapping[str, Any]) -> Config:
    """Builds and validates a Config; `model.heads_per_layer`, where given and not 0, regroups the model on the way.

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
    """`value` as the annotated type; a whole number may stand where a float is wanted, nothing else is converted."""
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
            model.num_token_types and model.objective == "translation",
            f"model.num_token_types = {model.num_token_types}; allowed with model.objective = 'translation': 0",
        ),
        *(_masking_problems(model, data) if isinstance(data, DataConfig) else _translation_problems(data)),
    )
    for wrong, message in problems:
        if wrong:
            raise UserError(message)


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
