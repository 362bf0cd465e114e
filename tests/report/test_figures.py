"""Tests of the interactive curves: what is drawn, what is a gap, and that names stay text."""

from __future__ import annotations

import itertools
import json

from mhsh.report import thinning
from mhsh.report.comparison import Comparison, compare
from mhsh.report.curves import AXES
from mhsh.report.figures import draw_curves, plotly_text
from mhsh.report.looks import look
from mhsh.report.runs import load_runs


def test_values_on_every_axis_are_those_logged(make_run) -> None:
    trace = draw_curves(compare(load_runs([make_run("a", [3.0, 2.0])]))).traces[0]
    assert trace.loss == [3.0, 2.0]
    assert {axis: trace.x[axis] for axis in AXES} == {
        "step": [1.0, 2.0],
        "tokens": [512.0, 1024.0],
        "flops": [1e9, 2e9],
        "seconds": [0.1, 0.2],
    }


def test_a_loss_that_is_not_finite_is_a_gap_with_a_mark(make_run) -> None:
    nan = float("nan")
    curves = draw_curves(compare(load_runs([make_run("a", [3.0, nan, nan, 2.0, nan])])))
    line, mark = curves.traces
    assert line.loss == [3.0, None, None, 2.0, None]
    assert mark.x["step"] == [2.0, 5.0]
    assert curves.figure.data[0].connectgaps is False
    assert curves.figure.data[1].yaxis == "y2"
    assert "a: the training loss is not finite from step 2, 5 on" in curves.notes[0]


def test_a_long_run_is_thinned_and_the_report_says_so(make_run) -> None:
    loss = [3.0] * 6000
    loss[1234] = 50.0
    curves = draw_curves(compare(load_runs([make_run("a", loss)])))
    drawn = curves.traces[0].loss
    assert len(drawn) <= thinning.MOST_POINTS
    assert max(value for value in drawn if value is not None) == 50.0
    assert f"{len(drawn):,} of 6,000 training rows are drawn" in curves.notes[0]


def test_runs_differ_in_dash_and_marker_as_well_as_colour() -> None:
    looks = [look(index) for index in range(210)]
    assert len({(item.color, item.dash, item.symbol) for item in looks}) == 210
    for one, other in itertools.pairwise(looks):
        assert one.color != other.color
        assert one.dash != other.dash
        assert one.symbol != other.symbol


def test_the_unigram_entropy_is_a_labelled_line_for_each_value(make_run) -> None:
    paths = [make_run("a", [3.0]), make_run("b", [3.0])]
    (shape,) = draw_curves(compare(load_runs(paths))).figure.layout.shapes
    assert (shape.y0, shape.y1, shape.label.text) == (3.0, 3.0, "unigram entropy 3.000")
    paths.append(make_run("<c>", [3.0], record={"data": {"unigram_entropy": 2.5}}))
    labels = [shape.label.text for shape in draw_curves(compare(load_runs(paths))).figure.layout.shapes]
    assert labels == ["unigram entropy 3.000 (a, b)", "unigram entropy 2.500 (&lt;c&gt;)"]


def test_names_are_escaped_for_plotly_and_for_the_script_tag(make_run) -> None:
    curves = draw_curves(compare(load_runs([make_run("<b>&$x$", [3.0])])))
    assert curves.figure.data[0].name == "&lt;b&gt;&amp;&#36;x&#36;" == plotly_text("<b>&$x$")
    text = curves.to_json()
    assert not set("<>&") & set(text)
    assert json.loads(text)["figure"]["data"][0]["name"] == curves.figure.data[0].name


def test_validation_is_shown_first_only_where_a_run_has_no_training_rows(make_run, four_runs: Comparison) -> None:
    assert draw_curves(four_runs).split == "train"
    assert draw_curves(compare(load_runs([make_run("a", [3.0], [3.0]), make_run("b", [], [3.0])]))).split == "validation"
