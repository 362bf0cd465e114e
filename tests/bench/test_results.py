"""Tests of bench files: what is written is read again, and damage is named with its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mhsh.bench.results import BenchResults, CandidateResult, SettingResults, read_grid, write
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


def test_a_name_is_unique_and_a_baseline_exists(good: dict[str, Any]) -> None:
    first, second = (msgspec.convert(fields, CandidateResult) for fields in good["cells"][0]["contestants"])
    with pytest.raises(ValueError, match="has config more than once"):
        SettingResults({}, [first, first])
    with pytest.raises(ValueError, match="has no config, the baseline of against"):
        SettingResults({}, [second])


def entry(found: dict[str, Any]) -> dict[str, Any]:
    return found["cells"][2]["contestants"][1]


DAMAGES: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda found: found.update(format=2), "format 2, and this mhsh reads format 1"),
    (lambda found: found.update(kind="decode"), "of mhsh bench decode; only train and inference can be compared"),
    (lambda found: found.pop("cells"), "is not a result of mhsh bench"),
    (lambda found: found.update(cells=[]), r"cells: Expected `array` of length >= 1"),
    (lambda found: found["environment"].pop("devices"), r"environment: Object missing required field `devices`"),
    (lambda found: found["configs"]["against"]["model"].update(num_heads="1"), "configs.against.model.num_heads: Expected `int`"),
    (lambda found: entry(found)["seconds"].pop("low"), r"cells\[2\].contestants\[1\].seconds: Object missing required field `low`"),
    (lambda found: entry(found)["seconds"].update(high=float("inf")), "seconds.high: Expected `float` < 1e\\+300"),
    (lambda found: entry(found)["seconds"].update(median=float("nan")), "seconds.median: Expected `float` >= 0.0"),
    (lambda found: entry(found)["seconds"].update(low=0), r"contestants\[1\]: seconds and time_ratio must be above 0"),
    (lambda found: entry(found)["time_ratio"].update(low=-1), "time_ratio.low: Expected `float` >= 0.0"),
    (lambda found: entry(found)["time_ratio"].update(low=1.1), "time_ratio: the median lies outside its interval"),
    (lambda found: entry(found).update(work=True), "work: Expected `int`, got `bool`"),
    (lambda found: entry(found).update(devices=0), "devices: Expected `int` >= 1"),
    (lambda found: entry(found).update(label=None), "label: Expected `str`, got `null`"),
    (lambda found: entry(found).update(baseline="nobody"), r"cells\[2\]: has no nobody, the baseline of against"),
    (lambda found: entry(found).update(name="config"), r"cells\[2\]: has config more than once"),
    (lambda found: entry(found).update(config="other"), r"cells\[2\]: against is of config 'other', which is missing"),
    (lambda found: found["cells"][1]["setting"].pop("length"), r"cells\[1\].setting: Object missing required field `length`"),
    (lambda found: found["cells"].append(found["cells"][0]), "has batch 1 x length 32 more than once"),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGES, ids=[words[:30] for _, words in DAMAGES])
def test_damage_is_named_in_one_line(good: dict[str, Any], tmp_path: Path, damage, words: str) -> None:
    damage(good)
    with pytest.raises(UserError, match=words) as raised:
        read_grid(write_fields(tmp_path / "bench.json", good))
    assert "\n" not in str(raised.value) and "bench.json" in str(raised.value)


@pytest.mark.parametrize("text", ["", "[1, 2]", "null", "[" * 100_000, '{"format": 1, "kind": "tr', "\x00"])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bench.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"bench\.json is"):
        read_grid(str(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no .*none\.json"):
        read_grid(str(tmp_path / "none.json"))
