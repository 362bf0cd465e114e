"""Tests of speed against shape: ratios, crossings and device-hours against hand-computed ones, in
numbers and words, and what is not compared.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import astuple

from mhsh.bench.results import Interval
from mhsh.config.schema import Config
from mhsh.report.files import table_to_csv
from mhsh.report.html import to_html
from mhsh.report.report import Report, Row, Table
from mhsh.report.speed import Crossing, Speed, appended, crossings, faster, finding, read_speed, speed_report, turning_points
from mhsh.verdict.experiment import load_experiment
from mhsh.verdict.findings import compare
from tests.report.reports import planted_report
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


def test_crossings_by_hand(speed: Speed) -> None:
    ratios = speed.pairs[0].ratios
    # from 2 to 1/2 over four times the batch: half way in logarithms is twice the batch
    (at_32,) = crossings({batch: ratio for (batch, length), ratio in ratios.items() if length == 32})
    assert dataclasses.replace(at_32, at=round(at_32.at, 9)) == Crossing(2.0, False, 1, 4)
    # from 5/4 to 4/5; 4 has no significant difference, so that only 1 and 16 are certain
    (at_128,) = crossings({batch: ratio for (batch, length), ratio in ratios.items() if length == 128})
    assert dataclasses.replace(at_128, at=round(at_128.at, 9)) == Crossing(8.0, False, 1, 16)


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ({1: 0.5, 2: 0.9}, []),
        ({1: 1.0, 2: 1.0}, []),
        ({1: 1.0, 2: 2.0}, [(1.0, True)]),
        ({1: 0.5, 8: 4.0}, [(2.0, True)]),  # a third of the way from 1/2 to 4, and so from 1 to 8
        ({1: 0.5, 4: 2.0, 16: 0.5}, [(2.0, True), (8.0, False)]),
    ],
)
def test_where_lines_cross(ratios: dict[int, float], expected: list[tuple[float, bool]]) -> None:
    found = crossings({size: exact(ratio) for size, ratio in ratios.items()})
    assert [(pytest.approx(each.at), each.deep_beyond) for each in found] == expected


def test_findings_in_words(speed: Speed) -> None:
    report = speed_report(speed)
    assert report.title == finding(speed.pairs[0])
    assert report.title == (
        "Inference: 16x1 admin is faster than 2x8 admin at 2 of 6 settings, slower at 2, with no significant difference at 2"
    )
    assert list(report.summary) == turning_points(speed.pairs[0])
    assert turning_points(speed.pairs[0]) == [
        "Inference at length 32: 2x8 admin overtakes 16x1 admin at batch 2 "
        "(significant: 16x1 admin up to batch 1 and 2x8 admin from batch 4 on).",
        "Inference at length 128: 2x8 admin overtakes 16x1 admin at batch 8 "
        "(significant: 16x1 admin up to batch 1 and 2x8 admin from batch 16 on).",
    ]
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
    text = table_to_csv(report.tables[0]).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 12
    assert rows[0]["shape"] == '\'=HYPERLINK("http://x")' and "\x1b" not in text
    assert (rows[1]["speed ratio"], rows[1]["speed ratio high"], rows[0]["speed ratio"]) == ("2.0", "2.5", "")
    assert (rows[0]["time high"], rows[0]["memory"]) == ("1.2", "1500")
    page = to_html(report).decode()
    assert "<script>alert" not in page and "\x1b" not in page and "\u202e" not in page


def test_it_follows_what_a_report_says_of_runs(speed: Speed) -> None:
    runs, own = planted_report(), speed_report(speed)
    both = appended(runs, own)
    assert (both.title, both.curves) == (runs.title, runs.curves)
    assert both.summary == (*runs.summary, f"{own.title}.", *own.summary)
    assert (both.tables[-1], both.points[-1], both.rules[-1]) == (own.tables[-1], own.points[-1], own.rules[-1])


Measure = Callable[..., Speed]


@pytest.fixture
def measure(tmp_path: Path, shapes: Shapes) -> Measure:
    """A bench of a step of 0.36 s (0.18 to 0.72) on two devices; `changes` are made to its config's
    JSON.
    """

    def make(kind: str = "train", changes: dict[str, Any] | None = None) -> Speed:
        found = bench(kind, shapes, {(8, 64): [candidate("config", "mhsh 2x8", (0.36, 0.18, 0.72), None, devices=2)]})
        for name, value in (changes or {}).items():
            section, field = name.split(".")
            found["configs"]["config"][section][field] = value
        return read_speed([write(tmp_path / "bench.json", found)])

    return make


def cost_of(run: Path, speed: Speed, target: float) -> dict[str, Any]:
    report: Report = speed_report(speed, [compare(load_experiment([run]), target=target)])
    table = report.tables[0]
    assert table.title == f"Device-hours to validation loss {target:.3f} on the benched device"
    assert any("Device-hours to the target are the steps" in rule for rule in report.rules)
    return named(table, table.rows[0])


def test_device_hours_by_hand(make_run, measure: Measure) -> None:
    found = cost_of(make_run("a", [], [3.0, 2.0, 1.0]), measure(), 2.5)
    assert (found["steps to the target"].text, found["shape"].text, found["device"].text) == ("15.0", "2x8", "2 x Abacus 7")
    # 15 steps of 0.36 s on two devices are 10.8 device-seconds
    hours = found["device-hours"]
    assert (hours.value, hours.low, hours.high) == pytest.approx((0.003, 0.0015, 0.006))
    assert "remark" not in found


@pytest.mark.parametrize(
    ("losses", "target", "steps"),
    [
        ([3.0, 2.0, 1.0], 2.0, "20.0"),
        ([3.0, 2.0, 1.0], 3.0, "at most 10.0"),
        ([3.0, math.nan, 1.0], 2.0, "at most 30.0"),  # nothing is known between 10 and 30
        ([2.0, 1.0, 2.4], 1.5, "15.0"),  # it counts when it is first reached
    ],
)
def test_steps_are_an_upper_bound_where_nothing_was_evaluated_before(
    make_run, measure: Measure, losses: list[float], target: float, steps: str
) -> None:
    assert cost_of(make_run("a", [], losses), measure(), target)["steps to the target"].text == steps


def test_a_target_that_was_not_reached(make_run, measure: Measure) -> None:
    found = cost_of(make_run("a", [], [3.0, 2.0, 1.8]), measure(), 1.5)
    assert found["remark"].text == "did not reach the target" and "device-hours" not in found


@pytest.mark.parametrize(
    "changes", [{"model.num_layers": 4}, {"model.mlp_dim": 32}, {"train.batch_size": 3}, {"data.sequence_length": 48}]
)
def test_another_shape_or_batch_is_refused(make_run, measure: Measure, changes: dict[str, int]) -> None:
    found = cost_of(make_run("a", [], [3.0, 2.0]), measure(changes=changes), 2.5)
    ((name, value),) = changes.items()
    assert "device-hours" not in found
    assert "no bench has its shape and batch; the nearest, 2x8 in " in found["remark"].text
    assert f"{name} is " in found["remark"].text and f"and {value} in the bench" in found["remark"].text


def test_what_may_differ_is_said(make_run, measure: Measure) -> None:
    run = make_run("a", [], [3.0, 2.0], model={"hidden_dropout": 0.5})
    found = cost_of(run, measure(changes={"model.hidden_dropout": 0.25, "optimizer.learning_rate": 7.0}), 2.5)
    assert found["device-hours"].value is not None
    assert found["remark"].text == "model.hidden_dropout is 0.5 in the run and 0.25 in the bench"


def test_inference_is_no_training_step(make_run, measure: Measure) -> None:
    found = cost_of(make_run("a", [], [3.0, 2.0]), measure("inference"), 2.5)
    assert found["remark"].text == "no file of mhsh bench train is named"
