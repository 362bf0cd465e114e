"""Tests of the interactive curves: what is drawn, what is a gap, and that names stay text."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mhsh.report.compare import figures
from mhsh.report.compare.comparison import Comparison, compare
from mhsh.report.compare.figures import GROUPS, RUNS, CurvesFigure, Trace, draw_figure, plotly_text
from mhsh.report.compare.unequal_marks import SIGN
from mhsh.report.render.styles import curve_style, run_styles
from mhsh.report.runs import downsample
from mhsh.report.runs.curves import AXES
from mhsh.report.runs.loading import load_runs


def traces(curves: CurvesFigure, view: str, part: str) -> list[Trace]:
    return [trace for trace in curves.traces if (trace.view, trace.part) == (view, part)]


def test_values_on_every_axis_are_those_logged(make_run) -> None:
    (trace,) = traces(draw_figure(compare(load_runs([make_run("a", [3.0, 2.0])]))), RUNS, "line")
    assert trace.y["raw"] == [3.0, 2.0]
    assert {axis: trace.x[axis] for axis in AXES} == {
        "step": [1.0, 2.0],
        "tokens": [512.0, 1024.0],
        "flops": [1e9, 2e9],
        "seconds": [0.1, 0.2],
    }


def test_values_are_rounded_no_further_than_a_screen_can_show(make_run) -> None:
    (trace,) = traces(draw_figure(compare(load_runs([make_run("a", [2.123456789])]))), RUNS, "line")
    assert trace.y["raw"] == [2.12346]


@given(st.lists(st.floats()), st.integers(1, 9))
@example([1.5e308, -1.5e308], 1)
def test_rounding_keeps_as_many_digits_as_asked_for(values: list[float], digits: int) -> None:
    for value, rounded in zip(values, figures._values(np.array(values), digits), strict=True):
        if not math.isfinite(value):
            assert rounded is None
            continue
        assert rounded is not None
        assert rounded == pytest.approx(value, rel=0.500001 * 10.0 ** (1 - digits), abs=1e-300)
        if 1e-15 < abs(value) < 1e22:
            assert float(f"{rounded:.{digits}g}") == rounded


def test_a_loss_that_is_not_finite_is_a_gap_with_a_mark(make_run) -> None:
    nan = float("nan")
    curves = draw_figure(compare(load_runs([make_run("a", [3.0, nan, nan, 2.0, nan])])))
    (line,), (mark,) = traces(curves, RUNS, "line"), traces(curves, RUNS, "gaps")
    assert line.y["raw"] == [3.0, None, None, 2.0, None]
    assert mark.x["step"] == [2.0, 5.0]
    drawn = curves.figure["data"]
    assert drawn[curves.traces.index(line)]["connectgaps"] is False
    assert drawn[curves.traces.index(mark)]["yaxis"] == "y2"
    assert "a: the training loss is not finite from step 2, 5 on" in curves.notes[0]


def test_long_runs_are_thinned_together_and_the_report_says_so(make_run) -> None:
    loss = [3.0] * 6000
    loss[1234] = 50.0
    curves = draw_figure(compare(load_runs([make_run(f"run {number}", loss) for number in range(2)])))
    for trace in traces(curves, RUNS, "line"):
        assert len(trace.y["raw"]) <= downsample.most_points(2) == downsample.MOST_POINTS
        assert max(value for value in trace.y["raw"] if value is not None) == 50.0
    assert "Of each longer curve 5,000 rows are drawn (the longest has 6,000)" in curves.notes[0]


def test_runs_differ_in_dash_and_marker_as_well_as_colour() -> None:
    styles = [curve_style(index) for index in range(210)]
    assert len({(item.color, item.dash, item.symbol) for item in styles}) == 210
    for one, other in itertools.pairwise(styles):
        assert one.color != other.color
        assert one.dash != other.dash
        assert one.symbol != other.symbol
        assert one.pattern != other.pattern


def test_runs_of_a_group_share_its_colour_and_nothing_else(two_groups: Comparison) -> None:
    styles = run_styles(group.runs for group in two_groups.groups)
    for place, group in enumerate(two_groups.groups):
        assert {styles[run].color for run in group.runs} == {curve_style(place).color}
        assert len({styles[run].dash for run in group.runs}) == len({styles[run].symbol for run in group.runs}) == 3


def test_a_group_is_drawn_as_its_mean_over_its_band(two_groups: Comparison) -> None:
    curves = draw_figure(two_groups)
    assert curves.view == GROUPS
    for band in traces(curves, GROUPS, "band"):
        assert band.line is not None
        line = curves.traces[band.line]
        computed = two_groups.groups[band.member].bands[band.split]
        assert (line.view, line.part, line.member, line.split) == (GROUPS, "line", band.member, band.split)
        for axis in AXES:
            for shown, values in ((line.x, "x"), (line.y, "mean"), (line.low, "low"), (line.high, "high")):
                assert shown[axis] == pytest.approx(getattr(computed[axis], values).tolist(), rel=1e-5)
    assert len(traces(curves, GROUPS, "band")) == len(traces(curves, GROUPS, "line")) == 4


def test_one_seed_has_a_line_and_no_band(make_run) -> None:
    curves = draw_figure(compare(load_runs([make_run("a", [3.0, 2.0]), make_run("b", [3.0, 2.5])])))
    assert curves.view == RUNS
    assert len(traces(curves, GROUPS, "line")) == 2
    assert traces(curves, GROUPS, "band") == []


def test_curves_at_other_conditions_than_the_baselines_bear_a_sign(two_groups: Comparison) -> None:
    curves = draw_figure(two_groups)
    signed = {(view, trace.member) for view in (GROUPS, RUNS) for trace in traces(curves, view, "sign")}
    assert signed == {(GROUPS, 1), (RUNS, 3), (RUNS, 4), (RUNS, 5)}
    number = next(number for number, trace in enumerate(curves.traces) if trace.part == "sign")
    assert curves.figure["data"][number]["text"] == [SIGN]
    assert curves.figure["data"][number]["hovertext"] == ["other dropout than the baseline"]


def test_plotly_knows_every_word_of_the_figure(two_groups: Comparison, four_runs: Comparison) -> None:
    for comparison in (two_groups, four_runs):
        figure = draw_figure(comparison).figure
        assert len(go.Figure(figure["data"], figure["layout"]).data) == len(figure["data"])


def test_the_unigram_entropy_is_a_labelled_line_for_each_value(make_run) -> None:
    paths = [make_run("a", [3.0]), make_run("b", [3.0])]
    (shape,) = draw_figure(compare(load_runs(paths))).figure["layout"]["shapes"]
    assert (shape["y0"], shape["y1"], shape["label"]["text"]) == (3.0, 3.0, "unigram entropy 3.000")
    paths.append(make_run("<c>", [3.0], record={"data": {"unigram_entropy": 2.5}}))
    labels = [shape["label"]["text"] for shape in draw_figure(compare(load_runs(paths))).figure["layout"]["shapes"]]
    assert labels == ["unigram entropy 3.000 (a, b)", "unigram entropy 2.500 (&lt;c&gt;)"]


def test_names_are_escaped_for_plotly_and_for_the_script_tag(make_run) -> None:
    curves = draw_figure(compare(load_runs([make_run("<b>&$x$", [3.0])])))
    assert curves.figure["data"][0]["name"] == "&lt;b&gt;&amp;&#36;x&#36;" == plotly_text("<b>&$x$")
    text = curves.to_json()
    assert not set("<>&") & set(text)
    assert json.loads(text)["figure"]["data"][0]["name"] == curves.figure["data"][0]["name"]


def test_validation_is_shown_first_only_where_a_run_has_no_training_rows(make_run, four_runs: Comparison) -> None:
    assert draw_figure(four_runs).split == "train"
    assert draw_figure(compare(load_runs([make_run("a", [3.0], [3.0]), make_run("b", [], [3.0])]))).split == "validation"
