"""Tests of x-axes that count what a run started from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mhsh.report.compare.chart import describe_chart
from mhsh.report.compare.comparison import compare
from mhsh.report.compare.measures import measure_rows
from mhsh.verdict.runs import load_runs
from tests.planted import lineage_of


@pytest.fixture
def two_phases(make_run: Callable[..., Path]) -> tuple[Path, Path]:
    """A run of 40 steps, and one of 15 that started from 25 steps after 10 of another."""
    first = make_run("first", [3.0] * 30)
    middle = make_run("middle", [2.5] * 25, **after(first, 10))
    return make_run("one", [2.0] * 40, [2.0] * 4), make_run("two", [2.0] * 15, [2.0], **after(middle, 25))


def after(parent: Path, step: int) -> dict[str, Any]:
    start = {"folder": str(parent), "step": step, "lineage": lineage_of(parent, step)}
    return {"training": {"start_from": str(parent)}, "record": {"started_from": start}}


def test_every_axis_counts_all_runs_before(two_phases: tuple[Path, Path]) -> None:
    loaded = load_runs(two_phases)
    one, two = compare(loaded, pretraining=True).runs
    plain = compare(loaded).runs
    for axis, a_step in (("step", 1), ("tokens", 512), ("flops", 1e9), ("seconds", 0.1)):
        np.testing.assert_array_equal(one.curves["train"].x[axis], plain[0].curves["train"].x[axis])
        np.testing.assert_allclose(two.curves["train"].x[axis] - plain[1].curves["train"].x[axis], (10 + 25) * a_step, rtol=1e-12)
    summary = compare(loaded, pretraining=True).summaries[1]
    assert (summary.tokens, summary.last_step) == (50 * 512, 50)


def test_the_report_says_so_everywhere(two_phases: tuple[Path, Path]) -> None:
    comparison = compare(load_runs(two_phases), target=2.0, pretraining=True)
    titles = describe_chart(comparison).content["axes"]
    assert titles["tokens"] == "training tokens, with pre-training" and all(
        each.endswith(", with pre-training") for each in titles.values()
    )
    by_axis = [row for row in measure_rows(comparison) if " to " in row.name]
    assert len(by_axis) >= 4 and all("with pre-training" in row.name for row in by_axis)
    tokens = next(row for row in by_axis if row.name.startswith("tokens"))
    # The first validations are at steps 10 and, with the runs before, 45.
    assert [cell.number for cell in tokens.cells] == ["at most 5,120", "at most 23,040"]
    plain = compare(load_runs(two_phases), target=2.0)
    assert not any(
        "pre-training" in text
        for text in (*describe_chart(plain).content["axes"].values(), *(row.name for row in measure_rows(plain)))
    )


def test_what_a_run_before_did_not_record_is_a_problem_and_no_guess(make_run: Callable[..., Path]) -> None:
    parent = dict.fromkeys(("tokens", "flops", "seconds", "fingerprint", "config")) | {"folder": "gone", "step": 7}
    start = {"folder": "gone", "step": 7, "lineage": [parent]}
    run = make_run("two", [2.0] * 15, training={"start_from": "gone"}, record={"started_from": start})
    comparison = compare(load_runs([run]), pretraining=True)
    x = comparison.runs[0].curves["train"].x
    assert x["step"][0] == 8 and np.isnan(x["tokens"]).all()
    assert comparison.problems == (
        f"{run}: the runs that it started from did not record tokens, flops, seconds; these axes leave it out",
    )
