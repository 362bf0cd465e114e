"""Tests of speed against shape: ratios against hand-computed ones, in numbers and in words, and
what is not compared.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import astuple

from mhsh.bench.results import Interval
from mhsh.config.schema import Config
from mhsh.report.files import tables_to_csv
from mhsh.report.html import to_html
from mhsh.report.report import Row, Table
from mhsh.report.speed import Speed, faster, finding, read_speed, speed_report
from tests.report.speed_files import RATIOS, Spread, bench, candidate, two_shapes, write

Shapes = dict[str, Config]


@pytest.fixture
def speed(tmp_path: Path, shapes: Shapes) -> Speed:
    return read_speed([write(tmp_path / "bench.json", two_shapes(shapes))])


def exact(ratio: float) -> Interval:
    return Interval(ratio, ratio, ratio, 0.95)


def test_the_ratio_is_the_shallow_ones_time_over_the_deep_ones(speed: Speed) -> None:
    (pair,) = speed.pairs
    assert (pair.shallow, pair.deep, pair.device) == ("2x8 admin", "16x1 admin", "Abacus 7")
    assert pair.ratios[1, 32] == Interval(2.0, 1.25, 2.5, 0.95)
    assert [faster(pair.ratios[setting]) for setting in RATIOS] == ["deep", "shallow", "open", "deep", "open", "shallow"]


def test_the_deep_one_may_be_the_baseline(tmp_path: Path, shapes: Shapes) -> None:
    turned = two_shapes({"config": shapes["against"], "against": shapes["config"]}, labels=("mhsh 16x1", "mhsh 2x8"))
    (pair,) = read_speed([write(tmp_path / "bench.json", turned)]).pairs
    assert (pair.shallow, pair.deep) == ("2x8", "16x1")
    assert pair.ratios[1, 32] == Interval(0.5, 0.4, 0.8, 0.95)  # as the file has it: 2x8 over its baseline


@pytest.mark.parametrize("turned", [False, True])
def test_figure_and_table_have_the_same_ratios(tmp_path: Path, shapes: Shapes, turned: bool) -> None:
    configs = {"config": shapes["against"], "against": shapes["config"]} if turned else shapes
    speed = read_speed([write(tmp_path / "bench.json", two_shapes(configs))])
    report = speed_report(speed)
    (pair,) = speed.pairs
    rows = [named(report.tables[0], row) for row in report.tables[0].rows]
    shown = {
        (int(row["batch"].text), int(row["length"].text)): (row["shape"].text, row["to"].text, row["speed ratio"].value)
        for row in rows
        if row["to"].text
    }
    assert shown == {setting: (pair.deep, pair.shallow, ratio.median) for setting, ratio in pair.ratios.items()}
    drawn = {
        (point.x, series.name): (point.y, point.low, point.high, point.hollow)
        for series in report.points[0].series
        for point in series.points
    }
    assert drawn == {
        (float(batch), f"length {length}"): (ratio.median, ratio.low, ratio.high, ratio.low <= 1 <= ratio.high)
        for (batch, length), ratio in pair.ratios.items()
    }


def named(table: Table, row: Row) -> dict[str, Any]:
    return dict(zip((column.name for column in table.columns), row.full, strict=True))


def test_findings_in_words(speed: Speed) -> None:
    report = speed_report(speed)
    assert report.title == finding(speed.pairs[0])
    assert report.title == (
        "Inference: 16x1 admin is faster than 2x8 admin at 2 of 6 settings, slower at 2, with no significant difference at 2"
    )
    assert not report.summary, "the title says it"
    assert "95% or more: of many intervals up to 5% miss it by chance." in report.rules[0]


def one_cell(shapes: Shapes, setting: tuple[int, int], ratio: Spread, **facts: object) -> dict:
    found = [candidate("config", "mhsh a", (1.0, 1.0, 1.0), None), candidate("against", "mhsh b", ratio, ratio, **facts)]
    return bench("train", shapes, {setting: found})


def test_files_make_one_grid(tmp_path: Path, shapes: Shapes) -> None:
    paths = [
        write(tmp_path / f"{batch}.json", one_cell(shapes, (batch, length), (ratio, ratio, ratio)))
        for (batch, length), ratio in {(8, 32): 2.0, (2, 32): 0.5}.items()
    ]
    speed = read_speed([*paths, paths[0]])  # a file named twice counts once
    assert len(speed.rows) == 4 and not speed.problems
    (pair,) = speed.pairs
    assert {setting: ratio.median for setting, ratio in pair.ratios.items()} == {(2, 32): 2.0, (8, 32): 0.5}
    throughput = speed_report(speed).points[1]
    assert throughput.y_title == "throughput, tokens/s" and [at for at, _ in throughput.ticks] == [2.0, 8.0]
    assert [[(point.x, point.y) for point in series.points] for series in throughput.series] == [
        [(2.0, 640.0), (8.0, 640.0)],
        [(2.0, 1280.0), (8.0, 320.0)],
    ]


def test_a_setting_measured_twice_is_named(tmp_path: Path, shapes: Shapes) -> None:
    paths = [
        write(tmp_path / f"{name}.json", one_cell(shapes, (2, 32), (ratio,) * 3)) for name, ratio in (("one", 0.5), ("two", 2.0))
    ]
    speed = read_speed(paths)
    assert speed.pairs[0].ratios[2, 32].median == 2.0
    assert len(speed.problems) == 1 and "two.json, batch 2 x length 32: another file measured this too" in speed.problems[0]


def test_unequal_work_is_not_compared(tmp_path: Path, shapes: Shapes) -> None:
    speed = read_speed([write(tmp_path / "bench.json", one_cell(shapes, (2, 32), (1.0, 1.0, 1.0), work=320))])
    assert not speed.pairs
    assert "differ in tokens or devices" in speed.problems[0]


def test_two_models_of_one_label_are_two_shapes(tmp_path: Path, shapes: Shapes) -> None:
    same = two_shapes(shapes, labels=("mhsh x", "mhsh x"))
    assert {row.shape for row in read_speed([write(tmp_path / "bench.json", same)]).rows} == {"x", "x (2)"}


def test_throughput_has_the_interval_of_the_time(speed: Speed) -> None:
    # 640 tokens in 1.0 s (0.9 to 1.2)
    assert astuple(speed.rows[0].tokens_per_second) == pytest.approx((640.0, 640 / 1.2, 640 / 0.9, 0.95))


def test_the_files_have_all_digits_and_no_hostile_label(tmp_path: Path, shapes: Shapes) -> None:
    hostile = two_shapes(shapes, labels=('=HYPERLINK("http://x")', "<script>alert(1)</script>,\n\x1b[31m\u202e"))
    report = speed_report(read_speed([write(tmp_path / "bench.json", hostile)]))
    text = tables_to_csv(report.tables[:1]).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 12
    assert rows[0]["shape"] == '\'=HYPERLINK("http://x")' and "\x1b" not in text
    assert (rows[1]["speed ratio"], rows[1]["speed ratio high"], rows[0]["speed ratio"]) == ("2.0", "2.5", "")
    assert (rows[0]["time high"], rows[0]["memory"]) == ("1.2", "1500")
    page = to_html(report).decode()
    assert "<script>alert" not in page and "\x1b" not in page and "\u202e" not in page
