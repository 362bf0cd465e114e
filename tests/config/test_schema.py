"""Configs: what they refuse and how they say so, regrouping, and that nothing in them goes
unread.
"""

from __future__ import annotations

import ast
import copy
import json
import math
import re
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mhsh.cli.finetune import fine_tuning_config
from mhsh.config.resolve import from_dict
from mhsh.config.schema import Config, ModelConfig, regroup, to_dict
from mhsh.data.fine_tuning.glue import find_task
from mhsh.errors import UserError
from mhsh.models.costs import step_flops
from mhsh.run_folder import RunFolder
from mhsh.training.optimizer import learning_rate
from tests.conftest import load_task

ROOT = Path(__file__).resolve().parents[2]
TASKS = sorted(path.stem for path in (ROOT / "configs").glob("*.py") if path.stem != "base")


# Their configs are whole with the model of a pre-trained run only.
FINE_TUNING = ("glue", "squad")
EVERY_VARIANT = [(task, variant) for task in TASKS if task not in FINE_TUNING for variant in load_task(task).VARIANTS]
EVERY_FINE_TUNING = [(task, variant) for task in FINE_TUNING for variant in load_task(task).VARIANTS]
FIELDS = load_task("bert").get_config("2l8h").to_dict()
BERT = from_dict(FIELDS)


def overridden(overrides: dict[str, Any], fields: dict[str, Any] = FIELDS) -> dict[str, Any]:
    """The tiny BERT's fields (or others) with some replaced, added, or (`...`) taken out."""
    fields = copy.deepcopy(fields)
    for name, value in overrides.items():
        *sections, field = name.split(".")
        where = fields[sections[0]] if sections else fields
        if value is ...:
            del where[field]
        else:
            where[field] = value
    return fields


# Regrouping.

# (L, N, F) of every grouping of BERT-large's and BERT-base's heads, from the most heads a layer to
# one.
GROUPINGS = {
    "24l16h": [(24, 16, 4096), (48, 8, 2048), (96, 4, 1024), (192, 2, 512), (384, 1, 256)],
    "12l12h": [(12, 12, 3072), (24, 6, 1536), (36, 4, 1024), (48, 3, 768), (72, 2, 512), (144, 1, 256)],
}


@pytest.mark.parametrize(("base", "shape"), [(base, shape) for base, shapes in GROUPINGS.items() for shape in shapes])
def test_regrouped_shapes(make_config, base, shape):
    shallow = make_config("bert", base).model
    num_layers, num_heads, mlp_dim = shape
    expected = replace(shallow, num_layers=num_layers, num_heads=num_heads, mlp_dim=mlp_dim)
    assert regroup(shallow, num_heads) == expected
    assert make_config("bert", f"{num_layers}l{num_heads}h").model == expected


@pytest.mark.parametrize("heads_per_layer", [3, 5, 7, 16, 32, 0, -1, -8])
def test_regroup_refuses_what_does_not_divide_the_heads(heads_per_layer):
    with pytest.raises(UserError, match=f"heads_per_layer = {heads_per_layer} does not divide model.num_heads = 8; .*1, 2, 4, 8$"):
        regroup(BERT.model, heads_per_layer)


def test_regroup_refuses_a_feed_forward_width_that_cannot_be_shared_out():
    odd = replace(BERT.model, mlp_dim=100)
    assert regroup(odd, 2).mlp_dim == 25
    with pytest.raises(UserError, match=r"width 100 x 1 is not divisible by model.num_heads = 8; choose another model.mlp_dim"):
        regroup(odd, 1)


SHAPES = st.tuples(st.integers(1, 64), st.integers(1, 48), st.integers(1, 512), st.integers(1, 48))


@settings(deadline=None, database=None)
@given(SHAPES)
def test_regroup_keeps_what_it_must_or_refuses(shape):
    num_layers, num_heads, mlp_dim, n = shape
    before = replace(BERT.model, num_layers=num_layers, num_heads=num_heads, mlp_dim=mlp_dim)
    if num_heads % n or (mlp_dim * n) % num_heads:
        with pytest.raises(UserError):
            regroup(before, n)
        return
    after = regroup(before, n)
    assert after.num_heads == n
    assert after.num_layers * after.num_heads == num_layers * num_heads
    assert after.num_layers * after.mlp_dim == num_layers * mlp_dim
    unchanged = dict(num_layers=num_layers, num_heads=num_heads, mlp_dim=mlp_dim)
    assert replace(after, **unchanged) == before
    assert regroup(after, n) == after


@settings(deadline=None, database=None)
@given(SHAPES)
def test_regroup_to_the_same_heads_is_the_identity(shape):
    num_layers, num_heads, mlp_dim, _ = shape
    model = replace(BERT.model, num_layers=num_layers, num_heads=num_heads, mlp_dim=mlp_dim)
    assert regroup(model, num_heads) == model


def test_heads_per_layer_regroups_on_the_way_in():
    assert from_dict(overridden({"model.heads_per_layer": 2})).model == regroup(BERT.model, 2)
    for keep in (0, 8, ...):
        assert from_dict(overridden({"model.heads_per_layer": keep})) == BERT


# Refusals.

COUNTS = [
    *(f"model.{name}" for name in ("vocab_size", "max_positions", "num_layers", "num_heads", "head_dim", "embed_dim", "mlp_dim")),
    *("model.scan_unroll", "data.sequence_length"),
    *(f"train.{name}" for name in ("num_steps", "batch_size", "accumulation_steps", "log_interval", "keep_checkpoints")),
]
NOT_NEGATIVE = [
    *("model.num_token_types", "model.num_decoder_layers", "data.max_predictions", "data.seed", "optimizer.warmup_steps"),
    *(f"train.{name}" for name in ("seed", "eval_interval", "eval_batches", "checkpoint_interval", "keep_every")),
]
CHOICES = {
    "model.objective": "mlm, clm, translation, classification, span",
    "model.positions": "learned, sinusoidal",
    "model.activation": "gelu, gelu_tanh, relu",
    "model.residual": "post_ln, pre_ln, admin, deepnorm, rezero",
    "model.admin_omega": "profiled, closed_log, closed_one",
    "model.init": "bert, xavier",
    "model.compute_dtype": "float32, bfloat16",
    "model.residual_dtype": "float32, bfloat16",
    "model.remat_policy": "auto, none, dots, dots_no_batch, full, groups",
    "model.kernels": "auto, plain, fused",
    "model.attention_implementation": "xla, cudnn",
    "data.tokenizer": "wordpiece, bytes",
    "optimizer.name": "adamw, lamb, radam",
    "optimizer.schedule": "linear, constant, inverse_sqrt",
}
FRACTIONS = [
    *("model.hidden_dropout", "model.attention_dropout", "model.mlp_dropout", "model.embedding_dropout"),
    "train.label_smoothing",
    *("data.mask_fraction", "data.validation_fraction", "optimizer.beta1", "optimizer.beta2"),
]
POSITIVE = ["model.layer_norm_epsilon", "optimizer.learning_rate", "optimizer.epsilon"]

# (overrides, what the message must match)
REFUSED: list[tuple[dict[str, Any], str]] = [
    *(({name: 0}, f"^{name} = 0; allowed: 1 or more$") for name in COUNTS),
    *(({name: -1}, f"^{name} = -1; allowed: 0 or more$") for name in NOT_NEGATIVE),
    *(({name: -0.5}, f"^{name} = -0.5; allowed: 0 or more$") for name in ("optimizer.weight_decay", "optimizer.clip_norm")),
    *(({name: 0.0}, f"^{name} = 0.0; allowed: more than 0$") for name in POSITIVE),
    *(({name: "other"}, f"^{name} = 'other'; allowed: {allowed}$") for name, allowed in CHOICES.items()),
    *(({name: 1.0}, f"^{name} = 1.0; allowed: from 0 to less than 1$") for name in FRACTIONS),
    *(({name: -0.1}, f"^{name} = -0.1; allowed: from 0 to less than 1$") for name in FRACTIONS),
    *(({f"mesh.{axis}": 0}, f"^mesh.{axis} = 0; allowed: 1 or more, or -1 for the rest$") for axis in ("data", "fsdp", "tensor")),
    ({"mesh.tensor": -2}, "^mesh.tensor = -2; allowed: 1 or more, or -1"),
    ({"mesh.fsdp": -1}, "'data': -1, 'fsdp': -1, 'tensor': 1}: only one axis can be -1"),
    ({"data.sequence_length": 65}, "^data.sequence_length = 65 is longer than model.max_positions = 64; "),
    ({"train.accumulation_steps": 3}, "^train.batch_size = 8 is not divisible by train.accumulation_steps = 3$"),
    ({"optimizer.warmup_steps": 41}, "^optimizer.warmup_steps = 41 is more than train.num_steps = 40$"),
    ({"model.objective": "clm"}, "^model.next_sentence = True needs model.objective = 'mlm'"),
    ({"model.num_token_types": 1}, "^model.next_sentence = True needs model.num_token_types of 2 or more, not 1$"),
    ({"data.tokenizer": "bytes", "data.whole_word_masking": True}, "^data.whole_word_masking = True needs data.tokenizer = 'word"),
    ({"data.max_predictions": 0}, "^data.max_predictions = 0; allowed with model.objective = 'mlm': 1 to .*= 64$"),
    ({"data.max_predictions": 65}, "^data.max_predictions = 65; allowed with model.objective = 'mlm': 1 to .*= 64$"),
    ({"data.mask_fraction": 0.0}, "^data.mask_fraction = 0.0; allowed with model.objective = 'mlm': more than 0$"),
    ({"model.heads_per_layer": 3}, "^model.heads_per_layer = 3 does not divide model.num_heads = 8; allowed: 1, 2, 4, 8$"),
    ({"model.heads_per_layer": 1, "model.mlp_dim": 100}, "width 100 x 1 is not divisible by model.num_heads = 8"),
    ({"model.num_decoder_layers": 2}, "^model.num_decoder_layers = 2; allowed with model.objective = 'mlm': 0$"),
    (
        {"optimizer.schedule": "inverse_sqrt", "optimizer.warmup_steps": 0},
        "^optimizer.schedule = 'inverse_sqrt' falls from the end",
    ),
    # Names.
    ({"model.num_layer": 3}, "^model.num_layer = 3 is not a field of the config; did you mean model.num_layers\\?$"),
    ({"model.head_per_layer": 3}, "^model.head_per_layer = 3 is not a field .*; did you mean model.heads_per_layer\\?$"),
    ({"train.qqq": 1}, "^train.qqq = 1 is not a field of the config; allowed: seed, start_from, keep_moments, num_steps, "),
    ({"optimiser": {}}, "^optimiser = {} is not a field of the config; did you mean optimizer\\?$"),
    ({"train.seed": ...}, "^train.seed is missing from the config; it has no default$"),
    ({"mesh": ...}, "^mesh is missing from the config; it has no default$"),
    ({"mesh": 3}, "^mesh = 3 is not a section; allowed: data, fsdp, tensor$"),
    # Types.
    ({"train.num_steps": True}, "^train.num_steps = True is of type bool; allowed: int$"),
    ({"train.num_steps": 3.0}, "^train.num_steps = 3.0 is of type float; allowed: int$"),
    ({"train.num_steps": "3"}, "^train.num_steps = '3' is of type str; allowed: int$"),
    ({"train.num_steps": None}, "^train.num_steps = None is of type NoneType; allowed: int$"),
    ({"model.heads_per_layer": "2"}, "^model.heads_per_layer = '2' is of type str; allowed: int$"),
    ({"optimizer.learning_rate": True}, "^optimizer.learning_rate = True is of type bool; allowed: float$"),
    ({"optimizer.learning_rate": "1e-3"}, "^optimizer.learning_rate = '1e-3' is of type str; allowed: float$"),
    ({"optimizer.learning_rate": math.nan}, "^optimizer.learning_rate = nan is not a finite number$"),
    ({"optimizer.learning_rate": math.inf}, "^optimizer.learning_rate = inf is not a finite number$"),
    ({"optimizer.weight_decay": -math.inf}, "^optimizer.weight_decay = -inf is not a finite number$"),
    ({"model.next_sentence": 1}, "^model.next_sentence = 1 is of type int; allowed: bool$"),
    ({"model.objective": ["mlm"]}, r"^model.objective = \['mlm'\] is of type list; allowed: str$"),
    ({"data.source": 5}, "^data.source = 5 is of type int; allowed: str$"),
]


TRANSLATION_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model.num_decoder_layers": 0}, "^model.num_decoder_layers = 0; allowed with model.objective = 'translation': 1 or more$"),
    ({"model.num_token_types": 2}, "^model.num_token_types = 2; allowed with model.objective = 'translation': 0$"),
    ({"model.next_sentence": True}, "^model.next_sentence = True needs model.objective = 'mlm'; 'translation' sees no"),
    ({"data.tokenizer": "wordpiece"}, "^data.tokenizer = 'wordpiece'; allowed: bpe, unigram$"),
    ({"data.layout": "loose"}, "^data.layout = 'loose'; allowed: packed, bucketed$"),
    (
        {"data.layout": "bucketed", "data.sequence_length": 60},
        "^data.sequence_length = 60 with data.layout = 'bucketed' must be div",
    ),
    ({"data.max_length_ratio": 0.9}, "^data.max_length_ratio = 0.9; allowed: 1 or more$"),
    ({"data.max_predictions": 3}, "^data.max_predictions = 3 is not a field of the config; allowed: source, validation_source, "),
]


@pytest.mark.parametrize(
    ("overrides", "message"), TRANSLATION_REFUSED, ids=[str(overrides) for overrides, _ in TRANSLATION_REFUSED]
)
def test_a_translation_config_has_refusals_of_its_own(overrides, message):
    with pytest.raises(UserError, match=message):
        from_dict(overridden(overrides, load_task("translation").get_config("tiny").to_dict()))


@pytest.mark.parametrize(("overrides", "message"), REFUSED, ids=[str(overrides) for overrides, _ in REFUSED])
def test_refusals_name_the_field_the_value_and_what_is_allowed(overrides, message):
    with pytest.raises(UserError, match=message) as caught:
        from_dict(overridden(overrides))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        *({name: 1} for name in ("model.vocab_size", "model.num_layers", "train.batch_size", "model.mlp_dim")),
        *({name: 0} for name in NOT_NEGATIVE if name not in ("model.num_token_types", "data.max_predictions")),
        *({name: 0.0} for name in FRACTIONS if name != "data.mask_fraction"),
        {"data.sequence_length": 64, "data.max_predictions": 64},
        {"optimizer.warmup_steps": 40},
        {"model.next_sentence": False, "model.num_token_types": 0},
        {"model.next_sentence": False, "model.objective": "clm", "data.max_predictions": 0, "data.mask_fraction": 0.0},
        {"mesh.data": 2, "mesh.fsdp": -1},
    ],
    ids=str,
)
def test_the_edges_of_what_is_allowed(overrides):
    overrides = {"model.heads_per_layer": 0} | overrides
    config = from_dict(overridden(overrides))
    for name, value in overrides.items():
        section, field = name.split(".")
        assert field == "heads_per_layer" or getattr(getattr(config, section), field) == value


def test_a_whole_number_may_stand_for_a_float_and_becomes_one():
    config = from_dict(overridden({"optimizer.clip_norm": 1, "model.hidden_dropout": 0}))
    assert type(config.optimizer.clip_norm) is float and type(config.model.hidden_dropout) is float
    assert config.optimizer.clip_norm == 1.0


def test_a_config_cannot_be_changed():
    with pytest.raises(AttributeError, match="immutable"):
        BERT.model.num_layers = 3  # type: ignore[misc]


# The files in configs/.


def test_there_are_configs():
    assert {"bert", "quickstart"} <= set(TASKS)
    assert {"12l12h", "144l1h", "24l16h", "384l1h", "2l8h", "16l1h"} <= set(load_task("bert").VARIANTS)


@pytest.mark.parametrize(("task", "variant"), EVERY_VARIANT)
def test_every_variant_is_a_config_and_comes_back_from_json(task, variant):
    fields = load_task(task).get_config(variant)
    assert fields.is_locked
    config = from_dict(fields.to_dict())
    # A sweep's base has no shape of its own to be named for.
    named = re.search(f"(^|_){config.model.num_layers}l{config.model.num_heads}h", variant)
    assert named or variant in ("small", "tiny") or task == "evidence"
    again = from_dict(json.loads(json.dumps(to_dict(config))))
    assert again == config
    assert "heads_per_layer" not in to_dict(config)["model"]


@pytest.mark.parametrize(("variant", "length"), [("24l16h", 128), ("384l1h", 128), ("8l1h", 32)])
@pytest.mark.parametrize("prefix", ["phase", "lamb"])
def test_two_phases_are_one_training_at_one_falling_rate(variant, length, prefix):
    module = load_task("bert")
    first, second = module.get_config(f"{variant}-{prefix}1"), module.get_config(f"{variant}-{prefix}2")
    with pytest.raises(UserError, match=r"train.keep_moments = True needs the run .* --config.train.start_from=DIR"):
        from_dict(second.to_dict())
    second.train.start_from = "runs/first"
    one, two = from_dict(first.to_dict()), from_dict(second.to_dict())
    assert (one.data.sequence_length, two.data.sequence_length) == (length, 4 * length)
    assert two.data.max_predictions == 4 * one.data.max_predictions and two.model.max_positions >= 4 * length
    assert one.train.num_steps == 9 * two.train.num_steps or prefix == "lamb"
    # The whole, as a config without phases has it: linear from 0 to the peak, and to 0 one step
    # after the last.
    whole = from_dict(module.get_config(variant).to_dict())
    if prefix == "lamb":
        whole = replace(whole, optimizer=one.optimizer, train=replace(one.train, num_steps=15_625))
        whole = replace(whole, optimizer=replace(whole.optimizer, end_learning_rate=0.0))
    steps = one.train.num_steps + two.train.num_steps
    assert whole.train.num_steps == steps
    rate, rate_one, rate_two = (learning_rate(each.optimizer, each.train) for each in (whole, one, two))
    rounding = 1e-7 * whole.optimizer.learning_rate  # the schedules are sums in float32
    for step in (0, 10, steps // 2, one.train.num_steps - 1):
        assert float(rate_one(step)) == pytest.approx(float(rate(step)), abs=rounding)
    for step in (one.train.num_steps, (one.train.num_steps + steps) // 2, steps - 1):
        assert float(rate_two(step - one.train.num_steps)) == pytest.approx(float(rate(step)), abs=rounding)


def test_a_day_is_the_same_day_for_both_shapes():
    shallow, deep = (from_dict(load_task("bert").get_config(f"{variant}-day").to_dict()) for variant in ("12l12h", "144l1h"))
    assert (shallow.data, shallow.optimizer, shallow.train) == (deep.data, deep.optimizer, deep.train)
    # What the comment beside the recipe says of it.
    assert shallow.train.num_steps * step_flops(shallow) == pytest.approx(1.2e19, rel=0.05)


@pytest.mark.parametrize(
    ("task", "overrides", "message"),
    [
        ("glue", {"model.num_classes": 0}, "^model.num_classes = 0; allowed with model.objective = 'classification': 1 or more$"),
        ("squad", {"model.num_classes": 2}, "^model.num_classes = 2; allowed with model.objective = 'span': 0$"),
        ("glue", {"train.eval_batches": 3}, "^train.eval_batches = 3; allowed with model.objective = 'classification': 0, all"),
        ("squad", {"train.label_smoothing": 0.1}, "^train.label_smoothing = 0.1; allowed with model.objective = 'span': 0$"),
        (
            "squad",
            {"data.stride": 400},
            "^data.stride = 400; allowed with .*: up to 317, or some of the context would",
        ),
        ("squad", {"data.stride": 0}, "^data.stride = 0; allowed: 1 or more$"),
    ],
)
def test_what_no_fine_tuning_can_be(task, overrides, message, tmp_path):
    run = RunFolder.open_for_training(tmp_path / "run", from_dict(load_task("bert").get_config("12l12h").to_dict()))
    fields = overridden(overrides, load_task(task).get_config().to_dict())
    with pytest.raises(UserError, match=message):
        fine_tuning_config(run, fields, seed=0, fresh=True)


@pytest.mark.parametrize(("task", "variant"), EVERY_FINE_TUNING)
def test_every_fine_tuning_is_a_config_with_the_model_of_a_run(task, variant, tmp_path):
    there = from_dict(load_task("bert").get_config("12l12h").to_dict())
    run = RunFolder.open_for_training(tmp_path / "run", there)
    fields = load_task(task).get_config(variant)
    assert fields.is_locked
    config = fine_tuning_config(run, fields.to_dict(), seed=3, fresh=False)
    assert (config.train.seed, config.train.start_from) == (3, str(tmp_path / "run"))
    assert config.data.vocab_path == str(tmp_path / "run" / "vocab.txt")
    head = dict(objective=config.model.objective, num_classes=config.model.num_classes, next_sentence=False)
    assert config.model == replace(there.model, **head)
    assert fine_tuning_config(run, fields.to_dict(), seed=3, fresh=True).train.start_from == ""
    if task == "glue":
        assert (
            config.model.num_classes == find_task(variant).num_classes == len(find_task(variant).label_names) or variant == "stsb"
        )


@pytest.mark.parametrize("task", TASKS)
def test_an_unknown_variant_is_refused_with_those_there_are(task):
    module = load_task(task)
    for unknown in ("1l1h1x", f"{next(iter(module.VARIANTS))}-phase3"):
        with pytest.raises(UserError, match=f"no variant '{unknown}'; there are {', '.join(module.VARIANTS)}"):
            module.get_config(unknown)
    assert module.get_config().to_dict() == module.get_config(next(iter(module.VARIANTS))).to_dict()


def regrouped_fields(task: str, variant: str) -> dict[str, Any]:
    """A variant's fields without the four that regrouping changes."""
    fields = to_dict(from_dict(load_task(task).get_config(variant).to_dict()))
    for name in ("num_layers", "num_decoder_layers", "num_heads", "mlp_dim"):
        del fields["model"][name]
    return fields


@pytest.mark.parametrize(
    ("task", "size"),
    [
        ("bert", "base"),
        ("bert", "large"),
        ("bert", "tiny"),
        ("translation", "base"),
        ("translation", "small"),
        ("translation", "tiny"),
    ],
)
def test_configs_of_one_size_share_every_hyper_parameter(task, size):
    variants = [variant for variant, (of_size, _) in load_task(task).VARIANTS.items() if of_size == size]
    first, *others = (regrouped_fields(task, variant) for variant in variants)
    assert len(others) >= 2
    for other in others:
        assert other == first


def test_the_quickstart_varies_the_grouping_and_the_residual_alone():
    first, *others = (regrouped_fields("quickstart", variant) for variant in load_task("quickstart").VARIANTS)
    residuals = {fields["model"].pop("residual") for fields in (first, *others)}
    assert residuals == {"post_ln", "admin", "pre_ln"}
    for other in others:
        assert other == first


# Every field is read.


def attributes_read(source: str) -> set[tuple[str, str]]:
    """(owner, attribute) of every attribute read in a source text; owner is the last name before
    the dot.
    """
    owners = {ast.Name: "id", ast.Attribute: "attr"}
    return {
        (getattr(node.value, owners[type(node.value)]), node.attr)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and type(node.value) in owners
    }


def unread(config_class: type, read: set[tuple[str, str]]) -> list[str]:
    """The section.field names of a config class that no (owner, attribute) reads; only a model is
    also called `config`.
    """
    return [
        f"{section}.{name}"
        for section, annotation in typing.get_type_hints(config_class).items()
        for cls in typing.get_args(annotation) or (annotation,)
        for name in cls.__struct_fields__
        if not any((owner, name) in read for owner in ({section, "config"} if section == "model" else {section}))
    ]


def test_every_field_of_every_section_is_read_outside_config():
    sources = [path.read_text() for path in (ROOT / "mhsh").rglob("*.py") if path.parent.name != "config"]
    assert len(sources) > 20
    assert unread(Config, set().union(*map(attributes_read, sources))) == []


def test_a_field_that_nobody_reads_would_be_found():
    model = msgspec.defstruct("Model", [("depth", int), ("colour", str)], bases=(ModelConfig,), frozen=True, kw_only=True)
    config = msgspec.defstruct("Extended", [("model", model), ("mesh", msgspec.defstruct("Mesh", ["data"]))])
    inherited = [f"model.{name}" for name in ModelConfig.__struct_fields__]
    read = attributes_read("x = config.model.depth\nconfig.colour = 1\nother.colour\nconfig.data\n" + "\n".join(inherited))
    assert unread(config, read) == ["model.colour", "mesh.data"]
