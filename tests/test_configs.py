"""Configs by their names, from Python, and what a user's own config file imports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mhsh import configs
from mhsh.config.loading import load_fields as load_plain
from mhsh.config.loading import take_config, take_fields
from mhsh.errors import UserError
from tests.conftest import ROOT, load_fields

OWN = """
from mhsh.configs.base import make_config

def get_config(variant="x"):
    return make_config(dict(train=dict(num_steps=777)))
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder that is no checkout."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fields(config: str, *overrides: str) -> dict:
    found, left = take_fields("config", config, overrides)
    assert found is not None and not left
    return found


@pytest.mark.parametrize("config", ["bert:2l8h", f"{ROOT}/mhsh/configs/bert.py:2l8h"])
def test_a_shipped_config_from_anywhere(config: str) -> None:
    assert fields(config) == load_fields("bert", "2l8h")
    assert fields(config, "--config.model.num_layers=3")["model"]["num_layers"] == 3


def test_a_name_that_is_no_shipped_config() -> None:
    for name in ("brt", "base", "brt:2l8h", "__init__"):
        with pytest.raises(UserError, match=r"there is no config .*; there are bert, .*, and any FILE.py:VARIANT"):
            load_plain(name)
    with pytest.raises(UserError, match=r"there is no config 'base'; there are bert, "):
        configs.load("base")


def test_a_file_of_the_user_imports_what_is_shipped(elsewhere: Path) -> None:
    (elsewhere / "mine.py").write_text(OWN)
    assert fields("mine.py")["train"]["num_steps"] == 777
    assert configs.get("mine.py").train.num_steps == 777
    (elsewhere / "larger.py").write_text("from mhsh.configs.bert import get_config\n")
    assert fields("larger.py:2l8h") == load_fields("bert", "2l8h")


def test_from_python_as_from_the_command_line() -> None:
    found = configs.get("bert:2l8h", train={"num_steps": 10}, model={"heads_per_layer": 1, "residual": "pre_ln"})
    flags = ["--config.train.num_steps=10", "--config.model.heads_per_layer=1", "--config.model.residual=pre_ln"]
    assert (found, []) == take_config("config", "bert:2l8h", flags)
    assert (found.model.num_layers, found.model.num_heads) == (16, 1)


@pytest.mark.parametrize(
    ("name", "sections", "message"),
    [
        ("brt:2l8h", {}, "there is no config 'brt'"),
        ("bert:2l9h", {}, "bert has no variant '2l9h'"),
        ("bert", {}, "bert needs a variant"),
        ("bert:2l8h", {"training": {"num_steps": 1}}, "training.num_steps: the config has no section 'training'"),
        ("bert:2l8h", {"train": {"num_step": 1}}, "the config has no field 'train.num_step'; did you mean train.num_steps"),
        ("bert:2l8h", {"train": 3}, "train = 3 is not a section; give its fields, as in train={'FIELD': VALUE}"),
        ("bert:2l8h", {"train": {"num_steps": "3"}}, "train.num_steps = '3' is of type str; allowed: int"),
        ("bert:2l8h", {"model": {"heads_per_layer": 3}}, "heads_per_layer"),
    ],
)  # fmt: skip
def test_what_no_config_can_be(name: str, sections: Mapping[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        configs.get(name, **sections)
    assert message in str(caught.value) and "\n" not in str(caught.value)
