"""Tests of spikes and of what a curve says of a training."""

from __future__ import annotations

import numpy as np

from mhsh.verdict.runs import Curve
from mhsh.verdict.stability import spikes_of


def curve(loss: np.ndarray, **metrics: np.ndarray) -> Curve:
    steps = np.arange(5.0, 5 * len(loss) + 1, 5)
    return Curve(dict.fromkeys(("step", "tokens", "flops", "seconds"), steps), loss, metrics)


def test_spikes_are_found_by_their_rule_and_by_what_a_run_marked() -> None:
    quiet = 3.0 - 0.01 * np.arange(40) + 0.02 * np.sin(np.arange(40))
    assert list(spikes_of(curve(quiet))) == []
    loud = quiet.copy()
    loud[20] = 8.26
    assert spikes_of(curve(loud)) == [(105.0, 8.26)]
    early = quiet.copy()
    early[3] = 8.26  # too few losses stand before it: the run itself, which sees all steps, marks it
    assert list(spikes_of(curve(early))) == []
    marks = np.full(40, np.nan)
    marks[3] = 1.0
    assert spikes_of(curve(early, spike=marks)) == [(20.0, 8.26)]
