"""The files in configs/, and configs by their names."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mhsh import configs
from mhsh.cli.finetune import fine_tuning_fields
from mhsh.config.resolve import from_dict
from mhsh.config.schema import to_dict
from mhsh.configs import parse_fields, shipped_names, take_changes, take_config
from mhsh.data.glue import find_task
from mhsh.errors import UserError
from mhsh.models.costs import step_flops
from mhsh.storage.run_folder import RunFolder
from mhsh.training.optimizer import learning_rate
from tests.conftest import ROOT, load_fields

TASKS = shipped_names()


# Their configs are whole with the model of a pre-trained run only.
FINE_TUNING = ("glue", "squad")
EVERY_VARIANT = [(task, variant) for task in TASKS if task not in FINE_TUNING for variant in configs.load(task).VARIANTS]
LARGE, RECIPES = "384l1h", tuple(configs.load("bert").RECIPES)
EVERY_FINE_TUNING = [(task, variant) for task in FINE_TUNING for variant in configs.load(task).VARIANTS]


@pytest.mark.parametrize(("task", "variant"), EVERY_VARIANT)
def test_every_variant_is_a_config_and_comes_back_from_json(task, variant):
    fields = configs.load(task).get_config(variant)
    assert fields.is_locked
    config = from_dict(fields.to_dict())
    # A sweep's base has no shape of its own to be named for.
    named = re.search(f"(^|_){config.model.num_layers}l{config.model.num_heads}h", variant)
    assert named or variant in ("small", "tiny") or task in ("evidence", "study")
    again = from_dict(json.loads(json.dumps(to_dict(config))))
    assert again == config
    assert "heads_per_layer" not in to_dict(config)["model"]


@pytest.mark.parametrize(("variant", "length"), [("384l1h", 128), ("8l1h", 32)])
@pytest.mark.parametrize("prefix", ["phase", "lamb"])
def test_two_phases_are_one_training_at_one_falling_rate(variant, length, prefix):
    module = configs.load("bert")
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
    whole = configs.get(f"bert:{variant}")
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


@pytest.mark.parametrize(("task", "variant"), [*EVERY_VARIANT, *(("bert", f"{LARGE}-{recipe}") for recipe in RECIPES)])
def test_no_large_step_starts_from_a_profiled_omega(task, variant):
    """microsoft/admin-torch at 08b6605, example/README.md: it fails at 128 x 4,096 tokens."""
    fields = configs.load(task).get_config(variant)
    if fields.train.batch_size * fields.data.sequence_length >= 128 * 4_096:
        assert (fields.model.residual, fields.model.admin_omega) == ("admin", "closed_log")
    else:
        assert fields.model.admin_omega == "profiled" and not variant.endswith(("-day", "-lamb1", "-lamb2"))


def test_a_day_is_the_same_day_for_both_shapes():
    shallow, deep = configs.get("bert:12l12h-day"), configs.get("bert:144l1h-day")
    assert (shallow.data, shallow.optimizer, shallow.train) == (deep.data, deep.optimizer, deep.train)
    # What the comment beside the recipe says of it.
    assert shallow.train.num_steps * step_flops(shallow) == pytest.approx(1.2e19, rel=0.05)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A pre-trained run, without its checkpoints."""
    return RunFolder.open_for_training(tmp_path / "run", configs.get("bert:12l12h-day"))


@pytest.mark.parametrize(
    ("config", "path", "value", "message"),
    [
        ("glue:cola", "model.num_classes", 0, " = 0; allowed with model.objective = 'classification': 1 or more$"),
        ("squad:v1", "model.num_classes", 2, " = 2; allowed with model.objective = 'span': 0$"),
        ("glue:cola", "train.eval_batches", 3, " = 3; allowed with model.objective = 'classification': 0, all"),
        ("squad:v1", "train.label_smoothing", 0.1, " = 0.1; allowed with model.objective = 'span': 0$"),
        ("squad:v1", "data.stride", 400, " = 400; allowed with .*: up to 317, or some of the context would"),
    ],
)
def test_what_no_fine_tuning_can_be(run, config, path, value, message):
    fields = configs.override(configs.load_fields(config), [(path, value)], "")
    with pytest.raises(UserError, match=f"^{path}{message}"):
        from_dict(fine_tuning_fields(run, fields, seed=0, fresh=True))


@pytest.mark.parametrize(("task", "variant"), EVERY_FINE_TUNING)
def test_every_fine_tuning_is_a_config_with_the_model_of_a_run(task, variant, run):
    """It drops a tenth, whatever pre-training dropped."""
    there = run.read_config()
    fields = configs.load(task).get_config(variant)
    assert fields.is_locked
    config = from_dict(fine_tuning_fields(run, fields.to_dict(), seed=3, fresh=False))
    assert (config.train.seed, config.train.start_from) == (3, str(run.path))
    assert config.data.vocab_path == str(run.path / "vocab.txt")
    assert 0 < config.train.checkpoint_interval <= 1_000  # a crash does not cost the hours of a large task
    head = dict(objective=config.model.objective, num_classes=config.model.num_classes, next_sentence=False)
    dropout = dict(hidden_dropout=0.1, attention_dropout=0.1, mlp_dropout=0.0, embedding_dropout=0.1)
    assert there.model.hidden_dropout == 0 and config.model == replace(there.model, **head, **dropout)
    assert from_dict(fine_tuning_fields(run, fields.to_dict(), seed=3, fresh=True)).train.start_from == ""
    if task == "glue" and variant != "stsb":
        assert config.model.num_classes == find_task(variant).num_classes == len(find_task(variant).label_names)


@pytest.mark.parametrize(("changes", "policy"), [([], "auto"), ([("model.remat_policy", "groups")], "groups")])
def test_a_fine_tuning_may_need_less_memory_than_pre_training(make_config, tmp_path, changes, policy):
    there = RunFolder.open_for_training(tmp_path / "run", make_config("bert", "12l12h-day", **{"model.remat_policy": "none"}))
    fields = configs.override(configs.load_fields("squad:v2"), changes, "")
    assert from_dict(fine_tuning_fields(there, fields, seed=0, fresh=True)).model.remat_policy == policy


def test_an_unknown_variant_is_refused_with_those_there_are():
    for module in map(configs.load, TASKS):
        for unknown in ("1l1h1x", f"{next(iter(module.VARIANTS))}-phase3"):
            with pytest.raises(UserError, match=f"no variant '{unknown}'; there are {', '.join(module.VARIANTS)}"):
                module.get_config(unknown)


def regrouped_fields(task: str, variant: str) -> dict[str, Any]:
    """A variant's fields without those that regrouping changes."""
    fields = to_dict(configs.get(f"{task}:{variant}"))
    for name in ("num_layers", "num_decoder_layers", "num_heads", "mlp_dim", "layers_per_group"):
        del fields["model"][name]
    return fields


@pytest.mark.parametrize(("task", "size"), [(task, size) for task in ("bert", "translation") for size in ("base", "small", "tiny")])
def test_configs_of_one_size_share_every_hyper_parameter(task, size):
    variants = [variant for variant, (of_size, _) in configs.load(task).VARIANTS.items() if of_size == size]
    first, *others = (regrouped_fields(task, variant) for variant in variants)
    assert len(others) >= 2
    for other in others:
        assert other == first


def test_the_quickstart_varies_the_grouping_and_the_residual_alone():
    first, *others = (regrouped_fields("quickstart", variant) for variant in configs.load("quickstart").VARIANTS)
    residuals = {fields["model"].pop("residual") for fields in (first, *others)}
    assert residuals == {"post_ln", "admin", "pre_ln"}
    for other in others:
        assert other == first


OWN = """
from mhsh.configs.base import make_config

def get_config(variant="x"):
    return make_config(dict(train=dict(num_steps=777)))
"""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder that is not a checkout."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fields(config: str, *overrides: str) -> dict:
    changes, left = take_changes("config", overrides)
    found = parse_fields("config", config, changes)
    assert found is not None and not left
    return found


@pytest.mark.parametrize("config", ["bert:2l8h", f"{ROOT}/configs/bert.py:2l8h"])
def test_a_shipped_config_from_anywhere(elsewhere: Path, config: str) -> None:
    assert fields(config) == load_fields("bert", "2l8h")
    assert fields(config, "--config.model.num_layers=3")["model"]["num_layers"] == 3


@pytest.mark.parametrize("name", ["brt", "base", "brt:2l8h", "__init__"])
def test_a_name_that_is_no_shipped_config(name: str) -> None:
    with pytest.raises(UserError, match=r"unknown config .*; there are bert, .*, and any FILE.py:VARIANT"):
        configs.load_fields(name)


def test_a_file_of_the_user_imports_what_is_shipped(elsewhere: Path) -> None:
    (elsewhere / "mine.py").write_text(OWN)
    assert fields("mine.py")["train"]["num_steps"] == 777
    assert configs.get("mine.py").train.num_steps == 777
    (elsewhere / "larger.py").write_text("from mhsh.configs.bert import get_config\n")
    assert fields("larger.py:2l8h") == load_fields("bert", "2l8h")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("model=dict(objective='mml')", "^model.objective = 'mml'; allowed: mlm, clm, translation, classification, span$"),
        ("modle=dict(num_layers=1)", "^modle = {'num_layers': 1} is not a field of the config; did you mean model\\?$"),
    ],
)
def test_a_wrong_field_in_a_file_of_the_user_is_one_line(elsewhere: Path, changes: str, message: str) -> None:
    (elsewhere / "mine.py").write_text(OWN.replace("train=dict(num_steps=777)", changes))
    with pytest.raises(UserError, match=message):
        configs.get("mine.py")


def test_from_python_as_from_the_command_line() -> None:
    found = configs.get("bert:2l8h", train={"num_steps": 10}, model={"heads_per_layer": 1, "residual": "pre_ln"})
    flags = ["--config.train.num_steps=10", "--config.model.heads_per_layer=1", "--config.model.residual=pre_ln"]
    assert (found, []) == take_config("config", "bert:2l8h", flags)
    assert (found.model.num_layers, found.model.num_heads) == (16, 1)


@pytest.mark.parametrize(
    ("name", "sections", "message"),
    [
        ("bert:2l8h", {"training": {"num_steps": 1}}, "training.num_steps: the config has no section 'training'"),
        ("bert:2l8h", {"train": 3}, "train = 3 is not a section; give its fields, as in train={'FIELD': VALUE}"),
        ("bert:2l8h", {"train": {"num_steps": "3"}}, "train.num_steps = '3' is of type str; allowed: int"),
    ],
)  # fmt: skip
def test_what_no_config_can_be(name: str, sections: Mapping[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        configs.get(name, **sections)
    assert message in str(caught.value) and "\n" not in str(caught.value)
