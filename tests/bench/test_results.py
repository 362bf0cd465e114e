"""Bench files: medians and intervals, what is written is read again, damage is named, the table."""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mhsh.bench.results import (
    CONFIDENCE,
    WIDTH,
    BenchResults,
    CandidateResult,
    Interval,
    SettingResults,
    coverage,
    median_interval,
    ratios,
    read,
    show,
    write,
)
from mhsh.config.schema import to_dict
from mhsh.errors import UserError
from tests.bench.test_timing import made
from tests.conftest import MakeConfig


def test_coverage_is_that_of_all_ways_to_fall_on_either_side():
    """Each value is above or below the median with probability 1/2: the 2^n cases, counted."""
    for n in range(1, 11):
        below = [sum(case) for case in itertools.product((0, 1), repeat=n)]
        for k in range(1, (n + 1) // 2 + 1):
            assert coverage(n, k) == pytest.approx(sum(k <= count <= n - k for count in below) / 2**n, abs=1e-12)


def test_estimates_by_hand():
    assert median_interval([3.0, 1.0, 2.0]) == Interval(2.0, 1.0, 3.0, 0.75)
    assert median_interval([5.0]) == Interval(5.0, 5.0, 5.0, 0.0)
    assert median_interval([4.0, 1.0, 3.0, 2.0]) == Interval(2.5, 1.0, 4.0, 0.875)
    # of nine, the second smallest and the second largest: 96.1 %
    assert median_interval([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]) == Interval(5.0, 2.0, 8.0, 1 - 20 / 512)
    with pytest.raises(ValueError, match="no values"):
        median_interval([])


@pytest.mark.parametrize("n", [6, 9, 15, 30])
def test_intervals_hold_the_true_median_as_often_as_they_say(n):
    """Of a skewed distribution, 4,000 times; within four standard deviations of the count."""
    draws = np.random.default_rng(n).exponential(size=(4_000, n))
    found = [median_interval(row.tolist()) for row in draws]
    promised = found[0].confidence
    held = np.mean([each.low <= np.log(2) <= each.high for each in found])
    assert promised >= CONFIDENCE
    assert abs(held - promised) < 4 * np.sqrt(promised * (1 - promised) / 4_000)


def test_ratios_are_of_the_same_round():
    """A machine that becomes ten times slower in the middle changes no ratio."""
    load = np.array([1.0, 1.0, 10.0, 10.0, 10.0])
    assert ratios((3 * load).tolist(), (2 * load).tolist()) == [1.5] * 5
    with pytest.raises(ValueError):
        ratios([1.0], [1.0, 2.0])


def test_a_median_lies_in_its_interval():
    with pytest.raises(ValueError, match="the median lies outside"):
        Interval(5.0, 1.0, 4.0, 0.9)


Triple = tuple[float, float, float]  # median, low, high


def interval(spread: Triple) -> dict[str, float]:
    return {**dict(zip(("median", "low", "high"), spread, strict=True)), "confidence": 0.95}


def candidate(name: str, seconds: Triple, ratio: Triple | None) -> dict[str, Any]:
    facts = {"config": name, "implementation": "mhsh", "devices": 1, "work": 640, "seconds": interval(seconds)}
    against = {"baseline": ratio and "config", "time_ratio": ratio and interval(ratio)}
    return {"name": name, "label": f"mhsh {name}", **facts, **against}


@pytest.fixture
def good(make_config: MakeConfig) -> dict[str, Any]:
    config = make_config("bert", "2l8h")
    environment = {"devices": {"platform": "gpu", "kind": "Abacus 7", "count": 1}, "processor": "x86_64", "cores": 2}
    cells = [
        {
            "setting": {"batch": rows, "length": 32},
            "candidates": [candidate("config", (1.0, 0.9, 1.2), None), candidate("against", (1.0, 0.8, 1.25), (1.0, 0.8, 1.25))],
        }
        for rows in (1, 4, 16)
    ]
    configs = dict.fromkeys(("config", "against"), to_dict(config))
    return {"format": 1, "kind": "inference", "environment": environment, "configs": configs, "cells": cells}


def test_what_is_written_is_read(tmp_path: Path, good: dict[str, Any]) -> None:
    results = msgspec.convert(good, BenchResults)
    out = tmp_path / "bench.json"
    write(results, str(out))
    assert read(str(out)) == results
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
    first, second = (msgspec.convert(fields, CandidateResult) for fields in good["cells"][0]["candidates"])
    with pytest.raises(ValueError, match="has config more than once"):
        SettingResults({}, [first, first])
    with pytest.raises(ValueError, match="has no config, the baseline of against"):
        SettingResults({}, [second])


def entry(found: dict[str, Any]) -> dict[str, Any]:
    return found["cells"][2]["candidates"][1]


DAMAGES: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda found: found.update(format=2), "format 2, and this mhsh reads format 1"),
    (lambda found: found.pop("cells"), "is not a result of mhsh bench"),
    (lambda found: found.update(cells=[]), r"cells: Expected `array` of length >= 1"),
    (lambda found: entry(found)["seconds"].pop("low"), r"cells\[2\].candidates\[1\].seconds: Object missing required field `low`"),
    (lambda found: entry(found)["seconds"].update(high=float("inf")), "seconds.high: Expected `float` < 1e\\+300"),
    (lambda found: entry(found)["seconds"].update(median=float("nan")), "seconds.median: Expected `float` >= 0.0"),
    (lambda found: entry(found)["seconds"].update(low=0), r"candidates\[1\]: seconds and time_ratio must be above 0"),
    (lambda found: entry(found)["time_ratio"].update(low=-1), "time_ratio.low: Expected `float` >= 0.0"),
    (lambda found: entry(found)["time_ratio"].update(low=1.1), "time_ratio: the median lies outside its interval"),
    (lambda found: entry(found).update(work=True), "work: Expected `int`, got `bool`"),
    (lambda found: entry(found).update(devices=0), "devices: Expected `int` >= 1"),
    (lambda found: entry(found).update(label=None), "label: Expected `str`, got `null`"),
    (lambda found: entry(found).update(baseline="nobody"), r"cells\[2\]: has no nobody, the baseline of against"),
    (lambda found: entry(found).update(name="config"), r"cells\[2\]: has config more than once"),
]


def test_damage_is_named_in_one_line(good: dict[str, Any], tmp_path: Path) -> None:
    for damage, words in DAMAGES:
        damaged = copy.deepcopy(good)
        damage(damaged)
        with pytest.raises(UserError, match=words) as raised:
            (tmp_path / "bench.json").write_text(json.dumps(damaged))
            read(str(tmp_path / "bench.json"))
        assert "\n" not in str(raised.value) and "bench.json" in str(raised.value)


@pytest.mark.parametrize("text", ["", "[1, 2]", "null", "[" * 100_000, '{"format": 1, "kind": "tr', "\x00"])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bench.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"bench\.json (is|begins with zero bytes: it is) "):
        read(str(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.json does not exist"):
        read(str(tmp_path / "none.json"))


def shown(results: BenchResults, capsys: pytest.CaptureFixture[str]) -> tuple[str, list[list[str]], str]:
    """The head, the cells of the table with its titles first, and the explanation."""
    show(results)
    text = capsys.readouterr().out
    assert max(map(len, text.split("\n"))) <= WIDTH
    head, table, foot = text.strip("\n").split("\n\n")
    return head, [re.split(r"  +", line.strip()) for line in table.split("\n")], " ".join(foot.split())


def test_the_table(make_config, capsys):
    head, (titles, config, against), foot = shown(made(make_config, [{"batch": 2, "length": 50}]), capsys)
    assert titles == ["TIME", "INTERVAL", "TOKENS/S", "RATIO", "CPU"]
    assert config == ["config", "3.00 s", "2.00 s to 4.00 s", "33.3", "-", "-"]
    assert against == ["against", "4.50 s", "2.00 s to 6.00 s", "11.1", "3.000 (1.000 to 6.000)", "2.00"]
    assert "config: config label, 1,234 parameters (234 of them omega)" in head
    assert "batch 2, length 50" in head.split("\n")[0] and "75.0%" in foot


def test_a_grid_has_a_row_for_every_setting_and_candidate(make_config, capsys):
    head, (titles, *rows), _ = shown(made(make_config, [{"batch": rows, "length": 32} for rows in (1, 4)]), capsys)
    assert titles[0] == "BATCH"
    assert [row[:2] for row in rows] == [[batch, name] for batch in "14" for name in ("config", "against")]
    assert "length 32" in head.split("\n")[0] and "batch" not in head.split("\n")[0]
