"""Tests of the bench JSON read back: what was written is found again, and what is damaged is
refused with its place.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mhsh.bench.candidate import Candidate
from mhsh.bench.results import cell, document
from mhsh.bench.results import write as write_bench
from mhsh.bench.rounds import Times
from mhsh.bench.schema import Interval, read_bench
from mhsh.errors import UserError
from tests.conftest import MakeConfig
from tests.report.speed_files import two_shapes, write


@pytest.fixture
def good(make_config: MakeConfig) -> dict[str, Any]:
    config = make_config("bert", "2l8h")
    return two_shapes({"config": config, "against": config})


def test_what_mhsh_bench_writes_is_read(tmp_path: Path, make_config: MakeConfig) -> None:
    facts = {"config": "config", "implementation": "mhsh", "devices": 2, "memory": {"arguments": 30, "temporaries": 20, "peak": 40}}
    candidates = [
        Candidate(name="config", label="first", run=lambda _: None, work=100, baseline=None, facts=facts),
        Candidate(name="torch", label="second", run=lambda _: None, work=50, baseline="config", facts=facts | {"memory": {}}),
    ]
    times = {"config": Times(1, [[2.0], [4.0], [3.0]], [1.0] * 3), "torch": Times(1, [[4.0], [2.0], [3.0]], [1.0] * 3)}
    made = document(
        "train",
        "token",
        {},
        {"config": make_config("bert", "2l8h")},
        [cell({"batch": 2, "length": 50}, candidates, times)],
        {},
        None,
    )
    write_bench(made, str(tmp_path / "bench.json"))
    found = read_bench(str(tmp_path / "bench.json"))
    assert found.kind == "train" and found.device.startswith(made["environment"]["devices"]["kind"])
    (only,) = found.cells
    assert (only.batch, only.length) == (2, 50)
    first, second = only.entries
    assert first.seconds == Interval(3.0, 2.0, 4.0, 0.75) and first.time_ratio is None and first.devices == 2
    assert first.memory == 50  # arguments and temporaries, which the peak leaves out on a CPU
    # rounds: 4 / 2, 2 / 4, 3 / 3, each twice as much for a token
    assert second.time_ratio == Interval(2.0, 1.0, 4.0, 0.75) and second.memory is None


def test_an_inverse_keeps_its_order() -> None:
    assert Interval(2.0, 1.0, 4.0, 0.9).inverse() == Interval(0.5, 0.25, 1.0, 0.9)


def entry(found: dict[str, Any]) -> dict[str, Any]:
    return found["cells"][2]["candidates"][1]


DAMAGES: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda found: found.update(format=2), "format 2, and this mhsh reads format 1"),
    (lambda found: found.update(kind="decode"), "of mhsh bench decode; shapes are compared by train and inference alone"),
    (lambda found: found.pop("cells"), "is not what mhsh bench wrote"),
    (lambda found: found.update(cells=[]), r"cells is no list of anything"),
    (lambda found: found["environment"].pop("devices"), r"environment.devices is no object"),
    (lambda found: found["configs"]["against"]["model"].update(num_heads="1"), "configs.against.model.num_heads is no whole"),
    (lambda found: entry(found)["seconds"].pop("low"), r"cells\[2\].candidates\[1\].seconds.low is no number"),
    (lambda found: entry(found)["seconds"].update(high=float("inf")), "seconds.high is no number above 0"),
    (lambda found: entry(found)["seconds"].update(median=float("nan")), "seconds.median is no number above 0"),
    (lambda found: entry(found)["time_ratio"].update(low=-1), "time_ratio.low is no number above 0"),
    (lambda found: entry(found)["time_ratio"].update(low=1.1), "time_ratio has its median outside its interval"),
    (lambda found: entry(found).update(work=True), "work is no whole number"),
    (lambda found: entry(found).update(devices=0), "devices is 0"),
    (lambda found: entry(found).update(label=None), "label is no text"),
    (lambda found: entry(found).update(baseline="nobody"), r"cells\[2\] has no nobody, the baseline of against"),
    (lambda found: entry(found).update(name="config"), r"cells\[2\] has config more than once"),
    (lambda found: entry(found).update(config="other"), "config is the name of no config in it"),
    (lambda found: found["cells"].append(found["cells"][0]), "measured batch 1 x length 32 more than once"),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGES, ids=[words[:30] for _, words in DAMAGES])
def test_damage_is_named_in_one_line(good: dict[str, Any], tmp_path: Path, damage, words: str) -> None:
    damage(good)
    with pytest.raises(UserError, match=words) as raised:
        read_bench(write(tmp_path / "bench.json", good))
    assert "\n" not in str(raised.value) and "bench.json" in str(raised.value)


@pytest.mark.parametrize("text", ["", "[1, 2]", "null", "[" * 100_000, '{"format": 1, "kind": "tr', "\x00"])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bench.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"bench\.json is"):
        read_bench(str(path))


def test_bytes_that_are_no_text_and_missing_files_are_refused(tmp_path: Path, good: dict[str, Any]) -> None:
    path = tmp_path / "bench.json"
    path.write_bytes(json.dumps(good).encode("utf-16"))
    with pytest.raises(UserError, match="is no JSON"):
        read_bench(str(path))
    with pytest.raises(UserError, match="No such file"):
        read_bench(str(tmp_path / "none.json"))
