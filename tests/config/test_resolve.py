"""What configs are refused, and how they say so."""

from __future__ import annotations

import copy
import math
import re
from typing import Any

import numpy as np
import pytest

from mhsh import configs
from mhsh.config.fields import all_fields, parse_value
from mhsh.config.resolve import from_dict
from mhsh.config.schema import OBJECTIVES
from mhsh.config.shapes import regroup
from mhsh.configs.base import defaults
from mhsh.errors import UserError

FIELDS = configs.load("bert").get_config("2l8h").to_dict()
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


def test_heads_per_layer_regroups_on_the_way_in():
    assert from_dict(overridden({"model.heads_per_layer": 2})).model == regroup(BERT.model, 2)
    for keep in (0, 8, ...):
        assert from_dict(overridden({"model.heads_per_layer": keep})) == BERT


# What no field with these bounds takes.
BEYOND = {
    "1 or more": 0,
    "0 or more": -1,
    "more than 0": 0,
    "from 0 to less than 1": 1,
    "1 or more, or -1 for the rest": 0,
    "1 to 6": 7,
}
BOUNDED = {
    (objective, field.path): field
    for objective in OBJECTIVES
    for field in all_fields(objective)
    if field.allowed and (objective == "clm" or field.path.startswith("data."))
}


@pytest.mark.parametrize(("objective", "path"), BOUNDED)
def test_every_field_refuses_what_is_beyond_its_bounds(objective, path):
    field = BOUNDED[objective, path]
    value = field.kind(BEYOND.get(field.allowed, "other"))
    said = re.escape(f"{path} = {value!r}; allowed: {field.allowed}")
    with pytest.raises(UserError, match=f"^{said}$"):
        from_dict(overridden({path: value}, defaults(objective)))


# (overrides, what the message must match)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"mesh.tensor": -1}, "'data': -1, 'fsdp': -1, 'tensor': -1}: with tensor = -1 .* name data and fsdp"),
    ({"mesh.fsdp": 2, "mesh.tensor": -1}, "'data': -1, 'fsdp': 2, 'tensor': -1}: with tensor = -1"),
    ({"data.sequence_length": 65}, "^data.sequence_length = 65 is longer than model.max_positions = 64; "),
    ({"train.accumulation_steps": 3}, "^train.batch_size = 8 is not divisible by train.accumulation_steps = 3; add --config"),
    ({"optimizer.warmup_steps": 41}, "^optimizer.warmup_steps = 41 is more than train.num_steps = 40; add --config"),
    ({"model.objective": "clm"}, "^model.next_sentence = True needs model.objective = 'mlm'"),
    ({"model.num_token_types": 1}, "^model.next_sentence = True needs model.num_token_types of 2 or more, not 1$"),
    ({"data.max_predictions": 65}, "^data.max_predictions = 65; allowed with model.objective = 'mlm': 1 to .*= 64$"),
    ({"data.mask_fraction": 0.0}, "^data.mask_fraction = 0.0; allowed with model.objective = 'mlm': more than 0$"),
    ({"model.num_decoder_layers": 2}, "^model.num_decoder_layers = 2; allowed with model.objective = 'mlm': 0$"),
    ({"optimizer.schedule": "inverse_sqrt", "optimizer.warmup_steps": 0}, "^optimizer.schedule = 'inverse_sqrt' falls from"),
    # Names.
    ({"model.num_layer": 3}, "^model.num_layer = 3 is not a field of the config; did you mean model.num_layers\\?$"),
    ({"train.qqq": 1}, "^train.qqq = 1 is not a field of the config; allowed: seed, start_from, keep_moments, num_steps, "),
    ({"optimiser": {}}, "^optimiser = {} is not a field of the config; did you mean optimizer\\?$"),
    ({"train.seed": ...}, "^train.seed is missing from the config; give every field$"),
    ({"mesh": 3}, "^mesh = 3 is not a section; allowed: data, fsdp, tensor$"),
    # Types.
    ({"train.num_steps": True}, "^train.num_steps = True is of type bool; allowed: int$"),
    ({"train.num_steps": 3.0}, "^train.num_steps = 3.0 is of type float; allowed: int$"),
    ({"optimizer.learning_rate": "1e-3"}, "^optimizer.learning_rate = '1e-3' is of type str; allowed: float$"),
    ({"optimizer.learning_rate": math.nan}, "^optimizer.learning_rate = nan is not a finite number$"),
    ({"optimizer.weight_decay": -math.inf}, "^optimizer.weight_decay = -inf is not a finite number$"),
    ({"model.next_sentence": 1}, "^model.next_sentence = 1 is of type int; allowed: bool$"),
    ({"model.objective": ["mlm"]}, r"^model.objective = \['mlm'\] is of type list; allowed: str$"),
]


DECODER = configs.load("gpt").get_config("6l4h_gqa").to_dict()
DECODER_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model.num_kv_heads": 3}, "^model.num_kv_heads = 3 does not divide model.num_heads = 4; a head of keys and values is read"),
    ({"model.num_kv_heads": 8}, "^model.num_kv_heads = 8 does not divide model.num_heads = 4"),
    ({"model.num_kv_heads": 8, "model.heads_per_layer": 1}, "^model.num_kv_heads = 8 does not divide model.num_heads = 4"),
    ({"model.num_kv_heads": 3, "model.heads_at_equal_width": 2}, "^model.num_kv_heads = 3 does not divide model.num_heads = 4"),
    ({"model.head_dim": 5}, "^model.head_dim = 5; allowed with model.positions = 'rotary', which turns pairs: an even number$"),
    ({"model.loops": 2, "model.residual": "admin"}, "^model.admin_omega = 'profiled'; allowed with model.loops = 2: closed_log, "),
    ({"model.heads_per_layer": 1}, "^model.heads_per_layer = 1: 2 heads of queries share one .* give a multiple of 2, or"),
]
# What only a language model has.
CAUSAL_ALONE = {
    "positions": ("rotary", "learned, sinusoidal"),
    "num_kv_heads": (4, "0"),
    "mlp": ("gated", "plain"),
    "bias": (False, "True"),
    "norm": ("rms", "layer"),
    "head": ("tied", "bert"),
}
REFUSED += [
    ({f"model.{name}": value}, f"^model.{name} = {value!r}; allowed with model.objective = 'mlm': {allowed}$")
    for name, (value, allowed) in CAUSAL_ALONE.items()
]


TRANSLATION_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model.num_decoder_layers": 0}, "^model.num_decoder_layers = 0; allowed with model.objective = 'translation': 1 or more$"),
    ({"model.num_token_types": 2}, "^model.num_token_types = 2; allowed with model.objective = 'translation': 0$"),
    ({"model.next_sentence": True}, "^model.next_sentence = True needs model.objective = 'mlm'; 'translation' sees no"),
    ({"data.max_predictions": 3}, "^data.max_predictions = 3 is not a field of the config; allowed: source, validation_source, "),
]


def test_refusals_name_the_field_the_value_and_what_is_allowed():
    translation = configs.load("translation").get_config("tiny").to_dict()
    for fields, refused in ((FIELDS, REFUSED), (translation, TRANSLATION_REFUSED), (DECODER, DECODER_REFUSED)):
        for overrides, message in refused:
            with pytest.raises(UserError, match=message) as caught:
                from_dict(overridden(overrides, fields))
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        {"model.num_layers": 1, "train.batch_size": 1, "train.seed": 0, "optimizer.warmup_steps": 0, "model.hidden_dropout": 0.0},
        {"data.sequence_length": 64, "data.max_predictions": 64},
        {"optimizer.warmup_steps": 40},
        {"model.next_sentence": False, "model.num_token_types": 0},
        {"model.next_sentence": False, "model.objective": "clm", "data.max_predictions": 0, "data.mask_fraction": 0.0},
        {"mesh.data": 2, "mesh.fsdp": -1},
        {"mesh.data": -1, "mesh.fsdp": -1},
        {"mesh.data": 2, "mesh.fsdp": 1, "mesh.tensor": -1},
    ],
    ids=str,
)
def test_the_edges_of_what_is_allowed(overrides):
    overrides = {"model.heads_per_layer": 0} | overrides
    config = from_dict(overridden(overrides))
    for name, value in overrides.items():
        section, field = name.split(".")
        assert field == "heads_per_layer" or getattr(getattr(config, section), field) == value


def test_numbers_of_arrays_are_numbers():
    """As a loop over np.logspace or np.arange gives them."""
    rate, seed = np.logspace(-3, -2, 2)[0], np.arange(3)[2]
    config = configs.get("bert:2l8h", optimizer={"learning_rate": rate}, train={"seed": seed})
    assert [(type(value), value) for value in (config.optimizer.learning_rate, config.train.seed)] == [(float, 1e-3), (int, 2)]


def test_a_whole_number_may_stand_for_a_float_and_becomes_one():
    config = from_dict(overridden({"optimizer.clip_norm": 1, "model.hidden_dropout": 0}))
    assert type(config.optimizer.clip_norm) is float and type(config.model.hidden_dropout) is float
    assert config.optimizer.clip_norm == 1.0


@pytest.mark.parametrize(
    "wrong",
    [{"train.num_steps": 5}, {"train.accumulation_steps": 6}, {"data.sequence_length": 128}, {"model.objective": "clm"}],
    ids=str,
)
def test_the_flag_that_a_refusal_names_mends_it(wrong):
    with pytest.raises(UserError) as refused:
        from_dict(overridden(wrong))
    found = re.search(r"add --config\.(\S+)=(\S+)$", str(refused.value))
    assert found, refused.value
    from_dict(overridden(wrong | {found[1]: parse_value(found[1], found[2])}))
