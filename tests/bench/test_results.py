"""Tests of bench files: what is written is read again, and damage is named with its place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mhsh.bench.results import BenchResults, SettingResults, read_grid, write
from mhsh.errors import UserError
from tests.conftest import MakeConfig
from tests.report.speed_files import two_shapes
from tests.report.speed_files import write as write_fields


@pytest.fixture
def good(make_config: MakeConfig) -> dict[str, Any]:
    config = make_config("bert", "2l8h")
    return two_shapes({"config": config, "against": config})


def test_what_is_written_is_read(tmp_path: Path, good: dict[str, Any]) -> None:
    results = msgspec.convert(good, BenchResults)
    out = tmp_path / "bench.json"
    write(results, str(out))
    assert read_grid(str(out)) == results
    with pytest.raises(UserError, match="exists"):
        write(results, str(out))


def test_memory_is_all_that_has_to_fit_at_once(good: dict[str, Any]) -> None:
    cell = msgspec.convert(good["cells"][0], SettingResults)
    candidate = cell.candidates[0]
    candidate.memory = {"arguments": 30, "temporaries": 20, "peak": 40}
    assert candidate.memory_bytes == 50  # on a CPU the peak leaves out the temporaries
    candidate.memory = {"peak": 40}
    assert candidate.memory_bytes == 40
    candidate.memory = {}
    assert candidate.memory_bytes is None


def entry(found: dict[str, Any]) -> dict[str, Any]:
    return found["cells"][2]["contestants"][1]


DAMAGES: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda found: found.update(format=2), "format 2, and this mhsh reads format 1"),
    (lambda found: found.update(kind="decode"), "of mhsh bench decode; only train and inference can be compared"),
    (lambda found: found.pop("cells"), "is not a result of mhsh bench"),
    (lambda found: found["environment"].pop("devices"), r"environment: Object missing required field `devices`"),
    (lambda found: found["configs"]["against"]["model"].update(num_heads="1"), r"configs\[...\].model.num_heads: Expected `int`"),
    (lambda found: entry(found)["seconds"].pop("low"), r"cells\[2\].contestants\[1\].seconds: Object missing required field `low`"),
    (lambda found: entry(found)["seconds"].update(high=float("inf")), "seconds.high: Expected `float` < 1e\\+300"),
    (lambda found: entry(found).update(devices=0), "devices: Expected `int` >= 1"),
    (lambda found: found["cells"][1]["setting"].pop("length"), r"cells\[1\].setting: Object missing required field `length`"),
]


def test_damage_is_named_in_one_line(good: dict[str, Any], tmp_path: Path) -> None:
    for damage, words in DAMAGES:
        damaged = copy.deepcopy(good)
        damage(damaged)
        with pytest.raises(UserError, match=words) as raised:
            read_grid(write_fields(tmp_path / "bench.json", damaged))
        assert "\n" not in str(raised.value) and "bench.json" in str(raised.value)
