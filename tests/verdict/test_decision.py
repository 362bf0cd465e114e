"""Tests of decisions against a margin, of what would decide them, and of pooled differences."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

from mhsh.report.sentences import pooled_words
from mhsh.verdict.decision import EQUIVALENT, HIGHER, LOWER, MOST_SEEDS, UNDECIDED, decide, is_bounded, margin_verdict, pool
from mhsh.verdict.estimate import Doubt, Estimate, Spread, judge
from mhsh.verdict.experiment import load_experiment
from mhsh.verdict.findings import compare, judge_page
from tests.judging import DEEP, SHALLOW, heads


def apart(mean: float, error: float, seeds: int = 5) -> Estimate:
    return judge(Estimate(mean, math.nan, math.nan, seeds, paired=True, error=error))


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.021, 0.05, HIGHER),
        (-0.05, -0.021, LOWER),
        (-0.019, 0.019, EQUIVALENT),
        (0.005, 0.019, EQUIVALENT),  # there is a difference, which is too small to matter
        (0.005, 0.05, UNDECIDED),
        (-0.05, 0.05, UNDECIDED),
        (math.nan, math.nan, UNDECIDED),
    ],
)
def test_an_interval_against_a_margin(low: float, high: float, words: str) -> None:
    assert margin_verdict(Estimate(0.0, low, high, 5), 0.02) == words


@pytest.mark.parametrize("margin", [0.0, 0.03])
def test_so_many_more_seeds_would_decide_and_no_fewer(margin: float) -> None:
    found = apart(0.01, 0.006)
    decision = decide(found, Spread(), Doubt(), 3, margin, lambda half: pytest.fail("it takes seeds, not values"))
    assert decision.words == UNDECIDED and decision.seeds is not None and not decision.values

    def with_more(seeds: int) -> str:
        total = found.seeds + seeds
        return margin_verdict(judge(dataclasses.replace(found, seeds=total, error=0.006 * math.sqrt(5 / total)), tests=3), margin)

    assert with_more(decision.seeds) == (EQUIVALENT if margin else HIGHER)
    assert with_more(decision.seeds - 1) == UNDECIDED


def test_where_no_seeds_would_decide_values_may() -> None:
    doubt = Doubt(error=0.05)
    found = judge(apart(0.04, 0.001), doubt=doubt)
    halves = []
    decision = decide(found, Spread(), doubt, 1, 0.0, lambda half: halves.append(half) or [0.003])
    assert (decision.words, decision.seeds, decision.values) == (UNDECIDED, None, (0.003,))
    assert halves == [pytest.approx(apart(0.04, 0.001).high - 0.04)]
    far = decide(apart(0.0001, 0.1), Spread(), Doubt(), 1, 0.0, lambda half: [])
    assert far.seeds is None and MOST_SEEDS == 100


def test_a_decided_difference_asks_for_nothing() -> None:
    assert decide(apart(0.04, 0.001), Spread(), Doubt(), 1, 0.02, lambda half: pytest.fail("no values")).words == HIGHER


def test_random_effects_by_hand() -> None:
    """Equal errors: the mean is the plain one, and its error that of the sections' means."""
    means = [0.01, 0.05, 0.03]
    found = pool([apart(mean, 0.001) for mean in means], [Doubt()] * 3)
    assert found is not None
    estimate, between = found
    error = np.std(means, ddof=1) / math.sqrt(3)
    assert (estimate.mean, estimate.error, estimate.seeds) == (pytest.approx(0.03), pytest.approx(error), 3)
    assert estimate.high - estimate.mean == pytest.approx(4.302653 * error)
    assert between == pytest.approx(math.sqrt(0.02**2 - 0.001**2))
    alike = pool([apart(0.03, 0.006)] * 4, [Doubt(0.01, 0.008)] * 4)
    assert alike is not None and alike[1] == 0
    assert (alike[0].mean, alike[0].error) == (pytest.approx(0.02), pytest.approx(0.01 / 2))
    assert pool([apart(0.03, 0.006)] * 2, [Doubt()] * 2) is None
    unbounded = [Doubt(open_above=True), Doubt(open_below=True), Doubt(error=math.inf)]
    assert [is_bounded(apart(0.03, 0.006), doubt) for doubt in (Doubt(), *unbounded)] == [True, False, False, False]


def test_pooled_intervals_cover_the_truth() -> None:
    """Six sections, whose true differences vary by as much as their errors."""
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(400):
        runs = 0.5 + rng.normal(size=(6, 1)) + math.sqrt(5) * rng.normal(size=(6, 5))
        found = pool([apart(each.mean(), each.std(ddof=1) / math.sqrt(5)) for each in runs], [Doubt()] * 6)
        assert found is not None
        covered.append(found[0].low <= 0.5 <= found[0].high)
    assert 0.93 <= np.mean(covered) <= 1


@pytest.mark.parametrize("what", ["", "code", "measure"])
def test_what_is_pooled_is_as_fair_as_its_differences_and_of_one_measure(tmp_path, what: str):
    paths = [heads(tmp_path / name, SHALLOW, [each + step / 99 for each in DEEP]) for step, name in enumerate("abc")]
    for run in paths[1].glob("runs/heads_per_layer-1_*"):
        if what == "code":
            (run / "run.json").write_text(json.dumps(json.loads((run / "run.json").read_text()) | {"code": {"0": "ed17ed"}}))
        if what == "measure":
            rows = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
            (run / "metrics.jsonl").write_text("".join(row for row in rows if '"train"' in row))
    sections = load_experiment(paths).sections()
    said = [
        pooled_words(each) for each in judge_page([compare(section, section=words) for words, section in sections.items()]).pooled
    ]
    # Where a run of b has no validation rows, all of b is measured by training.
    ends = {"": [" have its sign."], "code": [" have its sign. Not comparable in b."], "measure": []}[what]
    assert [line[line.index(" have its sign") :] for line in said] == ends
