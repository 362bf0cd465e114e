"""Tests of the numbers of one run: smoothing and the plateau rule against hand-computed cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from mhsh.outcome import LEFT, NOT_KNOWN
from mhsh.verdict.runs import load_runs
from mhsh.verdict.summary import LossAtStep, summarize


def test_summary_of_a_run(make_run) -> None:
    path = make_run("a", [3.0] * 36 + [2.0, 2.0, 2.5, 2.5], [2.9, 2.1, 2.4, 2.3])
    item = summarize(load_runs([path]).runs[0])
    assert item.final_validation == LossAtStep(2.3, 40)
    assert item.final_train == 2.25
    assert (item.last_step, item.tokens) == (40, 512 * 40)
    assert item.seconds == pytest.approx(4.0)
    assert (item.outcome, item.status, item.goodput) == (LEFT, "finished", 0.8)


def test_what_is_not_recorded_stays_unknown(make_run) -> None:
    path: Path = make_run("young", [3.0] * 5, with_record=False)
    item = summarize(load_runs([path]).runs[0])
    assert item.goodput is None
    assert item.status is None
    assert item.outcome == NOT_KNOWN
