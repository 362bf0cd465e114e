"""mhsh configs: what there is to run, what each field means, and one config in full."""

from __future__ import annotations

import json
import re

import pytest

from mhsh import configs
from mhsh.cli.main import main
from mhsh.config.entries import SOURCES
from mhsh.config.resolve import from_dict
from mhsh.config.schema import to_dict
from mhsh.configs import shipped_names
from tests.cli.light_process import mhsh_without_jax
from tests.conftest import load_fields


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["configs", *arguments]) == 0
    return capsys.readouterr().out


def test_it_lists_every_config_as_it_is_typed(capsys) -> None:
    text = printed(capsys)
    typed = re.findall(r"\w+:\w+(?=,|$)", text.partition("Sources of")[0], re.MULTILINE)
    tasks = shipped_names()
    assert typed == [f"{task}:{variant}" for task in tasks for variant in configs.load(task).VARIANTS]
    assert max(len(line) for line in text.partition("Sources of")[0].splitlines() if line.startswith(" ")) <= 80
    assert "each also with -phase1, -phase2, -lamb1, -lamb2, -day" in text
    assert all(f"  {source.form}\n" in text for source in SOURCES.entries())
    assert "model.num_heads (int, 1 or more; shape)\n      N, heads in one layer" in text


def test_it_prints_one_config(capsys) -> None:
    found = json.loads(printed(capsys, "bert:4l4h"))
    assert found == to_dict(from_dict(load_fields("bert", "4l4h")))
    assert found["model"]["num_layers"] == 4 and "heads_per_layer" not in found["model"]


def test_a_fine_tuning_without_what_the_run_decides(capsys) -> None:
    assert json.loads(printed(capsys, "glue:rte")) == load_fields("glue", "rte")


def test_a_number_of_numpy_is_shown_as_one(tmp_path, capsys) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy\nfrom mhsh.configs.glue import get_config as glue\n\n"
        "def get_config():\n    return glue('rte').to_dict() | {'train': {'num_steps': numpy.int64(3)}}\n"
    )
    assert json.loads(printed(capsys, str(tmp_path / "mine.py")))["train"] == {"num_steps": 3}


def test_it_never_loads_jax() -> None:
    assert mhsh_without_jax("configs").returncode == 0
