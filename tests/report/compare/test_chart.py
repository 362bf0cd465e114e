"""Tests of what the chart's scripts are given: which numbers, what is a gap, and names as text."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mhsh.report.compare import chart
from mhsh.report.compare.chart import GROUPS, RUNS, describe_chart, to_json
from mhsh.report.compare.comparison import Comparison, compare
from mhsh.report.render.styles import curve_style, run_styles
from mhsh.report.runs import downsample
from mhsh.run_folder import RunFolder
from mhsh.verdict.curves import AXES
from mhsh.verdict.runs import load_runs


def content_of(*paths: Path) -> dict[str, Any]:
    """As a browser parses it."""
    return json.loads(to_json(describe_chart(compare(load_runs(paths))).content))


def curve_of(path: Path, split: str = "train") -> dict[str, Any]:
    return content_of(path)["runs"][0]["curves"][split]


def test_values_on_every_axis_are_those_logged(make_run) -> None:
    curve = curve_of(make_run("a", [3.0, 2.0]))
    assert curve["y"]["loss"] == [3, 2]
    # The axes that are proportional to the step are held as their factor.
    assert curve["x"] == {"step": [1, 2], "tokens": 512, "flops": 1e9, "seconds": 0.1}
    assert set(curve["x"]) == set(AXES)


def test_an_axis_that_is_not_proportional_has_its_values(make_run) -> None:
    path = make_run("a")
    RunFolder(path).append_metrics([{"step": step, "split": "train", "loss": 3.0, "seconds": step**2} for step in (1, 2, 3)])
    assert curve_of(path)["x"]["seconds"] == [1, 4, 9]
    assert curve_of(path)["x"]["tokens"] == [None] * 3


def test_every_number_of_the_file_can_be_shown(make_run) -> None:
    path = make_run("a")
    rows: list[dict[str, Any]] = [
        {"step": step, "split": "train", "loss": 3.0, "grad_norm": 0.5 * step, "strange <i>": step, "note": "x"}
        for step in (1, 2, 3)
    ]
    rows[1] |= {"loss": None, "grad_norm": None, "skipped": True}
    RunFolder(path).append_metrics([*rows, {"step": 3, "split": "validation", "loss": 2.5, "accuracy": 0.25}])
    content = content_of(path)
    assert {key: each["name"] for key, each in content["metrics"].items()} == {
        "loss": "loss",
        "grad_norm": "gradient norm",
        "strange <i>": "strange <i>",
        "skipped": "skipped steps so far",
        "accuracy": "accuracy",
    }
    curves = content["runs"][0]["curves"]
    assert curves["train"]["y"] == {
        "loss": [3, None, 3],
        "grad_norm": [0.5, None, 1.5],
        "strange <i>": [1, 2, 3],
        "skipped": [0, 1, 1],
    }
    assert curves["validation"]["y"] == {"loss": [2.5], "accuracy": [0.25]}


def test_values_are_rounded_no_further_than_a_screen_can_show(make_run) -> None:
    assert curve_of(make_run("a", [2.123456789]))["y"]["loss"] == [2.12346]


@given(st.lists(st.floats()), st.integers(1, 9))
@example([1.5e308, -1.5e308], 1)
def test_rounding_keeps_as_many_digits_as_asked_for(values: list[float], digits: int) -> None:
    for value, rounded in zip(values, chart._values(np.array(values), digits), strict=True):
        if not math.isfinite(value):
            assert rounded is None
            continue
        assert rounded is not None
        assert rounded == pytest.approx(value, rel=0.500001 * 10.0 ** (1 - digits), abs=1e-300)
        # Beyond, the power of ten that shifts the digits is no exact float.
        if 10.0 ** (digits - 22) < abs(value) < 1e22:
            assert float(f"{rounded:.{digits}g}") == rounded


def test_a_loss_that_is_not_finite_is_a_gap_with_a_note(make_run) -> None:
    nan = float("nan")
    path = make_run("a", [3.0, nan, nan, 2.0, nan])
    assert curve_of(path)["y"]["loss"] == [3, None, None, 2, None]
    assert "a: the training loss is not finite from step 2, 5 on" in describe_chart(compare(load_runs([path]))).notes[0]


def test_long_runs_are_thinned_together_and_the_report_says_so(make_run) -> None:
    loss = [3.0 + 0.001 * (step % 7) for step in range(6000)]
    loss[1234] = 50.0
    described = describe_chart(compare(load_runs([make_run(f"run {number}", loss) for number in range(2)])))
    for run in described.content["runs"]:
        curve = run["curves"]["train"]
        assert len(curve["y"]["loss"]) <= downsample.most_points(2) == downsample.MOST_POINTS
        assert max(curve["y"]["loss"]) == 50.0
        # What is smoothed further is every third value of this report's own smoothed curve.
        assert curve["window"] == 100 and curve["even"]["spacing"] == 3
        assert curve["even"]["x"]["step"][-2:] == [5997, 6000]
        assert curve["even"]["y"]["loss"][-1] == pytest.approx(np.mean(loss[-100:]), rel=1e-5)
    assert "Of each longer curve about 5,000 rows are drawn (the longest has 6,000)" in described.notes[0]
    assert described.smoothing == 1


def test_a_short_curve_is_not_smoothed_at_first(make_run) -> None:
    assert describe_chart(compare(load_runs([make_run("a", [3.0] * 70)]))).smoothing == 0


def test_runs_differ_in_dash_and_marker_as_well_as_colour() -> None:
    styles = [curve_style(index) for index in range(210)]
    assert len({(item.color, item.dash_array, item.marker) for item in styles}) == 210
    for one, other in itertools.pairwise(styles):
        assert one.color != other.color
        assert one.dash_array != other.dash_array
        assert one.marker != other.marker


def test_runs_of_a_group_share_its_colour_and_nothing_else(two_groups: Comparison) -> None:
    styles = run_styles(group.runs for group in two_groups.groups)
    for place, group in enumerate(two_groups.groups):
        assert {styles[run].color for run in group.runs} == {curve_style(place).color}
        assert len({styles[run].dash_array for run in group.runs}) == len({styles[run].marker for run in group.runs}) == 3


def test_a_run_can_be_found_and_coloured_by_every_field_in_which_runs_differ(make_run) -> None:
    paths = [
        make_run(f"{layers}-{seed}", [3.0], model={"num_layers": layers}, training={"seed": seed})
        for layers in (2, 4)
        for seed in (0, 1)
    ]
    assert content_of(*paths)["fields"] == {"model.num_layers": ["2", "2", "4", "4"], "train.seed": ["0", "1", "0", "1"]}


def test_groups_know_their_runs_and_what_is_unequal(two_groups: Comparison, four_runs: Comparison) -> None:
    described = describe_chart(two_groups)
    assert described.view == GROUPS and describe_chart(four_runs).view == RUNS
    assert described.content["groups"] == [
        {"name": "shallow", "runs": (0, 1, 2), "unequal": ""},
        {"name": "deep", "runs": (3, 4, 5), "unequal": "dropout"},
    ]
    # t(2) = 4.3027, over the root of three.
    assert described.content["intervals"][:2] == [None, None]
    assert described.content["intervals"][3] == pytest.approx(4.302653 / math.sqrt(3))


def test_the_unigram_entropy_is_labelled_with_whose_it_is(make_run) -> None:
    paths = [make_run("a", [3.0]), make_run("b", [3.0])]
    assert content_of(*paths)["entropies"] == [{"value": 3, "label": "unigram entropy 3.000"}]
    paths.append(make_run("<c>", [3.0], record={"data": {"unigram_entropy": 2.5}}))
    labels = [each["label"] for each in content_of(*paths)["entropies"]]
    assert labels == ["unigram entropy 3.000 (a, b)", "unigram entropy 2.500 (<c>)"]


def test_names_are_escaped_for_the_script_tag(make_run) -> None:
    path = make_run("<b>&$x$", [3.0])
    assert not set("<>&") & set(to_json(describe_chart(compare(load_runs([path]))).content))
    assert content_of(path)["runs"][0]["name"] == "<b>&$x$"


def test_validation_is_shown_first_only_where_a_run_has_no_training_rows(make_run, four_runs: Comparison) -> None:
    assert describe_chart(four_runs).split == "train"
    assert describe_chart(compare(load_runs([make_run("a", [3.0], [3.0]), make_run("b", [], [3.0])]))).split == "validation"
