"""The Config of plain fields: all names, types, values and combinations are checked."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from mhsh.config.fields import SHAPING, Field, fields_of, section_class, section_names
from mhsh.config.schema import (
    OBJECTIVES,
    TASKS,
    AnyDataConfig,
    Config,
    DataConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    SpanDataConfig,
    TrainConfig,
    to_dict,
)
from mhsh.config.shapes import heads_at_equal_width, kv_heads_at_equal_size, layers_at_equal_size, regroup
from mhsh.encoding import check_text
from mhsh.errors import UserError, nearest

# jax counts in 32 bits, and a seed draws what its last 32 bits draw.
_LARGEST, _LARGEST_SEED = 2**31 - 1, 2**32 - 1


def from_dict(fields: Mapping[str, Any]) -> Config:
    """The Config of plain fields, of which none may be missing but those of SHAPING, which change
    the shape of the model where they are given and not 0. Raises UserError that names the first
    wrong field, its value and what is allowed.
    """
    _check_names("", fields, section_names())
    sections: dict[str, Any] = {}
    shaping = dict.fromkeys(SHAPING, 0)
    for section in section_names():
        # The model comes before the data, whose kind depends on its objective.
        cls = section_class(section, sections["model"].objective if sections else OBJECTIVES[0])
        known = fields_of(section, cls)
        values = fields[section]
        if not isinstance(values, Mapping):
            raise UserError(f"{section} = {values!r} is not a section; allowed: {', '.join(known)}")
        optional = [path.split(".")[1] for path in SHAPING] if section == "model" else []
        _check_names(section + ".", values, list(known), optional)
        if optional:
            shaping = {path: _check_type(path, values.get(name, 0), int) for path, name in zip(SHAPING, optional, strict=True)}
        sections[section] = cls(**{name: _check_value(field, values[name]) for name, field in known.items()})
    config = Config(**sections)
    changes = (regroup, layers_at_equal_size, heads_at_equal_width, kv_heads_at_equal_size)
    for path, change in zip(SHAPING, changes, strict=True):
        if shaping[path]:
            _refuse(_decoder_problems(config.model))
            config = replace(config, model=change(config.model, shaping[path]))
    _refuse(_problems(config))
    profiled_steps(config.train.profile_steps, config.train.num_steps)
    return config


def _refuse(problems: Iterator[str]) -> None:
    """Raises the first problem as a UserError."""
    for problem in problems:
        raise UserError(problem)


def profiled_steps(steps: str, num_steps: int) -> tuple[int, int] | None:
    """The first and the last step of train.profile_steps; None: it is empty. Raises UserError where
    it names no steps of the run.
    """
    if not steps:
        return None
    match = re.fullmatch(r"(\d{1,18}):(\d{1,18})", steps)
    if not match or not 1 <= int(match[1]) <= int(match[2]) <= num_steps:
        raise UserError(
            f"train.profile_steps = {steps!r}; give FIRST:LAST, two steps from 1 to train.num_steps = {num_steps}, such as 10:13"
        )
    return int(match[1]), int(match[2])


def branch_point(start_from: str) -> tuple[str, int] | None:
    """The run folder and the step of train.start_from = RUN@STEP; None: it names no step."""
    match = re.fullmatch(r"(.+)@(\d{1,18})", start_from)
    return None if match is None else (match[1], int(match[2]))


def whole_run_as_start(folder: str) -> str:
    """The train.start_from that names the run in a folder, and no step of another: a folder named
    `bert@2` needs a slash at the end.
    """
    return folder if branch_point(folder) is None else f"{folder}/"


def decay_start(config: Config) -> int | None:
    """The step after which the rate of the wsd schedule falls, from which a longer run of the same
    config can go on; None for the other schedules.
    """
    return config.train.num_steps - config.optimizer.decay_steps if config.optimizer.schedule == "wsd" else None


def whole_run(config: Config) -> Config:
    """`config` without the run whose first steps are this one's (RUN@STEP): with it or without, the
    config describes the same run.
    """
    if branch_point(config.train.start_from) is None:
        return config
    return replace(config, train=replace(config.train, start_from=""))


def _check_names(prefix: str, given: Mapping[str, Any], required: Sequence[str], optional: Sequence[str] = ()) -> None:
    known = [*required, *optional]
    for name in given:
        if name not in known:
            hint = nearest(str(name), known, prefix)
            raise UserError(f"{prefix}{name} = {given[name]!r} is not a field of the config; {hint}")
    for name in required:
        if name not in given:
            remedy = "give every field"
            if given.get("objective") in TASKS:
                remedy = "a config for fine-tuning is one for mhsh finetune, or --task of mhsh import"
            raise UserError(f"{prefix}{name} is missing from the config; {remedy}")


def _check_value(field: Field, value: Any) -> Any:
    """Checks the value of a field, and returns it. A whole number may stand where a float is
    wanted, and a number of numpy or jax for its own; nothing else is converted.
    """
    value = _check_type(field.path, value, field.kind)
    try:
        return msgspec.convert(value, field.annotation)
    except msgspec.ValidationError:
        raise UserError(f"{field.path} = {value!r}; allowed: {field.allowed}") from None


def _check_type(path: str, value: Any, kind: type) -> Any:
    value = value.item() if getattr(value, "shape", None) == () else value
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise UserError(f"{path} = {value!r} is of type {type(value).__name__}; allowed: {kind.__name__}")
    if isinstance(value, str):
        check_text(value, path)
    largest = _LARGEST_SEED if path.endswith(".seed") else _LARGEST
    # A float may be larger, but a whole number of hundreds of digits has no float.
    if (kind is int and value > largest) or (type(value) is int and abs(value) > 2**63):
        raise UserError(f"{path} = {value!r:.40} is too large; allowed: up to {largest}")
    if kind is float and not math.isfinite(value):
        raise UserError(f"{path} = {value!r} is not a finite number")
    return value


def _problems(config: Config) -> Iterator[str]:
    """Problems of combinations of fields, each of which is allowed by itself."""
    model, data = config.model, config.data
    if data.sequence_length > model.max_positions:
        yield (
            f"data.sequence_length = {data.sequence_length} is longer than model.max_positions = {model.max_positions}; "
            f"shorten it (--config.data.sequence_length={model.max_positions}), or for a fresh model "
            f"add --config.model.max_positions={data.sequence_length}"
        )
    yield from _update_problems(config.optimizer, config.train)
    yield from _objective_problems(model, config.train)
    yield from _mesh_problems(config.mesh)
    yield from _data_problems(model, data)


def _update_problems(optimizer: OptimizerConfig, train: TrainConfig) -> Iterator[str]:
    if train.batch_size % train.accumulation_steps:
        yield (
            f"train.batch_size = {train.batch_size} is not divisible by train.accumulation_steps = {train.accumulation_steps}; "
            f"add --config.train.accumulation_steps={math.gcd(train.batch_size, train.accumulation_steps)}"
        )
    if optimizer.warmup_steps > train.num_steps:
        yield (
            f"optimizer.warmup_steps = {optimizer.warmup_steps} is more than train.num_steps = {train.num_steps}; "
            f"add --config.optimizer.warmup_steps={train.num_steps}"
        )
    if optimizer.schedule == "inverse_sqrt" and not optimizer.warmup_steps:
        yield "optimizer.schedule = 'inverse_sqrt' falls from the end of the warm-up; optimizer.warmup_steps must be 1 or more"
    falls = ("linear", "cosine", "wsd")
    if optimizer.end_learning_rate and optimizer.schedule not in falls:
        yield f"optimizer.end_learning_rate = {optimizer.end_learning_rate}; {_clause('optimizer.schedule', optimizer.schedule)}: 0"
    stable = train.num_steps - optimizer.warmup_steps
    most = stable if optimizer.schedule == "wsd" else 0
    if optimizer.decay_steps > most:
        yield (
            f"optimizer.decay_steps = {optimizer.decay_steps}; {_clause('optimizer.schedule', optimizer.schedule)}"
            + (f", {optimizer.warmup_steps} steps of warm-up and {train.num_steps} steps: up to {most}" if most else ": 0")
        )
    point = branch_point(train.start_from)
    if point and not 1 <= point[1] < train.num_steps:
        yield (
            f"train.start_from = {train.start_from!r} names step {point[1]}; allowed with train.num_steps = {train.num_steps}: "
            f"1 to {train.num_steps - 1}"
        )
    if point and train.keep_moments:
        yield f"train.keep_moments = True; allowed with train.start_from = {train.start_from!r}, which keeps them anyway: False"
    if train.keep_moments and not train.start_from:
        yield "train.keep_moments = True needs the run whose moments are kept: give --config.train.start_from=DIR"


def _objective_problems(model: ModelConfig, train: TrainConfig) -> Iterator[str]:
    objective, allowed = model.objective, _clause("model.objective", model.objective)
    # A profile has an omega for each sublayer passed, a layer one for all its passes.
    if model.loops > 1 and model.residual == "admin" and model.admin_omega == "profiled":
        yield f"model.admin_omega = 'profiled'; allowed with model.loops = {model.loops}: closed_log, closed_one"
    if model.next_sentence and objective != "mlm":
        yield (
            f"model.next_sentence = True needs model.objective = 'mlm'; {objective!r} sees no sentence pairs: "
            "add --config.model.next_sentence=False"
        )
    if model.next_sentence and model.num_token_types < 2:
        yield f"model.next_sentence = True needs model.num_token_types of 2 or more, not {model.num_token_types}"
    for name, needed_by in (("num_decoder_layers", "translation"), ("num_classes", "classification")):
        value = getattr(model, name)
        if (value > 0) != (objective == needed_by):
            yield f"model.{name} = {value}; {allowed}: {'1 or more' if objective == needed_by else 0}"
    if train.eval_batches and objective in TASKS:
        yield f"train.eval_batches = {train.eval_batches}; {allowed}: 0, all of them"
    if train.label_smoothing and objective == "span":
        yield f"train.label_smoothing = {train.label_smoothing}; {allowed}: 0"
    if model.num_token_types and objective == "translation":
        yield f"model.num_token_types = {model.num_token_types}; {allowed}: 0"
    yield from _decoder_problems(model)


def _decoder_problems(model: ModelConfig) -> Iterator[str]:
    """Problems of the parts that only a causal language model has."""
    if model.objective != "clm":
        allowed = _clause("model.objective", model.objective)
        for name, values in {
            "positions": ("learned", "sinusoidal"),
            "num_kv_heads": (0,),
            "mlp": ("plain",),
            "bias": (True,),
            "norm": ("layer",),
            "head": ("bert",),
        }.items():
            if getattr(model, name) not in values:
                yield f"model.{name} = {getattr(model, name)!r}; {allowed}: {', '.join(map(str, values))}"
    if model.num_heads % model.kv_heads:
        yield (
            f"model.num_kv_heads = {model.num_kv_heads} does not divide model.num_heads = {model.num_heads}; a head of keys and "
            "values is read by as many heads of queries as every other"
        )
    if model.positions == "rotary" and model.head_dim % 2:
        yield f"model.head_dim = {model.head_dim}; {_clause('model.positions', 'rotary')}, which turns pairs: an even number"


def _mesh_problems(mesh: MeshConfig) -> Iterator[str]:
    devices = to_dict(mesh)
    for field in fields_of("mesh", MeshConfig).values():
        if devices[field.name] == 0:
            yield f"{field.path} = 0; allowed: {field.allowed}"
    if mesh.tensor == -1 in (mesh.data, mesh.fsdp):
        yield f"mesh = {devices}: with tensor = -1 (the devices that the others leave) name data and fsdp"


def _data_problems(model: ModelConfig, data: AnyDataConfig) -> Iterator[str]:
    if isinstance(data, DataConfig) and model.objective == "mlm":
        if not 1 <= data.max_predictions <= data.sequence_length:
            yield (
                f"data.max_predictions = {data.max_predictions}; allowed with model.objective = 'mlm': 1 to "
                f"data.sequence_length = {data.sequence_length}"
            )
        if data.mask_fraction <= 0:
            yield f"data.mask_fraction = {data.mask_fraction}; allowed with model.objective = 'mlm': more than 0"
    if isinstance(data, SpanDataConfig):
        room = data.sequence_length - data.max_question_length - 3
        if room < 1:
            yield (
                f"data.max_question_length = {data.max_question_length}; allowed with data.sequence_length = "
                f"{data.sequence_length}: up to {data.sequence_length - 4}"
            )
        elif room < data.stride:
            yield (
                f"data.stride = {data.stride}; allowed with data.sequence_length = {data.sequence_length} and "
                f"data.max_question_length = {data.max_question_length}: up to {room}, or some of the context would never be read"
            )


def _clause(path: str, value: str) -> str:
    return f"allowed with {path} = {value!r}"
