"""Faults planted at random into a sweep: the verdict moves only as the rules say.

The rules are written here a second time, as plainly as they can be, and judge the same faults.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from scipy import stats

from mhsh.verdict.estimate import WIDENING
from mhsh.verdict.experiment import load_experiment
from mhsh.verdict.findings import HIGHER, LEVEL, LOWER, TOO_FEW_SEEDS, UNMEASURED, UNTRAINED, Comparison, compare, judge_page
from mhsh.verdict.treatment import treatment_of
from tests.conftest import load_fields
from tests.sweeps import write_sweep

HEADS = (8, 1)  # heads a layer of the baseline and of the other group
STUCK, DIVERGED, LOST, COPIED, DOUBLED, UNNAMED = "stuck", "diverged", "lost", "copied", "doubled", "unnamed"
OTHER_DATA, OTHER_CODE = "other data", "other code"
FAULTS = (STUCK, DIVERGED, LOST, COPIED, DOUBLED, UNNAMED, OTHER_DATA, OTHER_CODE)

Place = tuple[int, int]  # heads a layer, seed


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[Place, float], dict[Place, str]]:
    """Losses, and at most three faults of different runs."""
    seeds = draw(st.integers(3, 6))
    shift = draw(st.sampled_from([-0.2, -0.03, 0.0, 0.03, 0.2]))
    noise = st.integers(-20, 20).map(lambda value: value / 1000)
    losses = {
        (heads, seed): 2.5 + shift * (heads == 1) + draw(noise) + math.sqrt(7 * seed + heads) / 99
        for heads in HEADS
        for seed in range(seeds)
    }
    places = st.tuples(st.sampled_from(HEADS), st.integers(0, seeds - 1))
    return losses, draw(st.dictionaries(places, st.sampled_from(FAULTS), max_size=3))


def name_of(place: Place) -> str:
    return f"heads_per_layer-{place[0]}_seed-{place[1]}"


def plant(folder: Path, losses: Mapping[Place, float], faults: Mapping[Place, str]) -> list[Path]:
    """The sweep with its faults, and what is named of it."""
    ends = {name_of(place): loss for place, loss in losses.items()}
    ends |= {name_of(place): 2.95 + place[1] / 9970 for place, fault in faults.items() if fault == STUCK}
    ends |= {name_of(place): math.nan for place, fault in faults.items() if fault == DIVERGED}
    axes = [f"heads_per_layer={','.join(map(str, HEADS))}", f"seed={','.join(map(str, sorted({seed for _, seed in losses})))}"]
    sweep = write_sweep(folder / "sweep", load_fields("evidence", "heads"), axes, ends).path
    for place in losses:
        run = sweep / "runs" / name_of(place)
        record = json.loads((run / "run.json").read_text())
        record["data"]["fingerprint"] = f"text of seed {place[1]}"
        if faults.get(place) == OTHER_DATA:
            record["data"]["fingerprint"] = "another text"
        if faults.get(place) == OTHER_CODE:
            record["code"] = {"0": "ed17ed"}
        (run / "run.json").write_text(json.dumps(record))
    for place, fault in faults.items():
        run, neighbour = sweep / "runs" / name_of(place), sweep / "runs" / name_of(after(place, losses))
        if fault in (LOST, COPIED):
            shutil.rmtree(run)
        if fault == COPIED and neighbour.exists():
            shutil.copytree(neighbour, run)
        if fault == DOUBLED and neighbour.exists():
            (run / "metrics.jsonl").write_bytes((neighbour / "metrics.jsonl").read_bytes())
    if UNNAMED not in faults.values():
        return [sweep]
    return [sweep / "runs" / name_of(place) for place in losses if faults.get(place) != UNNAMED]


def after(place: Place, losses: Mapping[Place, float]) -> Place:
    heads, seed = place
    return heads, (seed + 1) % (len(losses) // 2)


def by_the_rules(losses: Mapping[Place, float], faults: Mapping[Place, str]) -> tuple[str, int, float | None]:
    """The verdict, the pairs, and the mean difference."""
    ends: dict[Place, float | None] = dict(losses)
    for place, fault in faults.items():
        if fault in (STUCK, DIVERGED, LOST, COPIED, UNNAMED):
            ends[place] = None
    # Of two equal curves of one group the first counts.
    for place, fault in faults.items():
        if fault == DOUBLED:
            first, second = sorted([place, after(place, losses)])
            ends[first], ends[second] = ends[after(place, losses)], None
    if any(fault in (STUCK, DIVERGED) for fault in faults.values()):
        return UNTRAINED, 0, None
    known = [{seed: loss for (heads, seed), loss in ends.items() if heads == ours and loss is not None} for ours in HEADS]
    if not all(known):
        return UNMEASURED, 0, None
    pairs = [known[1][seed] - known[0][seed] for seed in known[0] if seed in known[1]]
    if len(pairs) < 2:
        return TOO_FEW_SEEDS, len(pairs), None
    mean, error = sum(pairs) / len(pairs), float(stats.sem(pairs))
    if len(pairs) < 3:
        return TOO_FEW_SEEDS, len(pairs), mean
    told = abs(mean) > WIDENING * float(stats.t.ppf(0.975, len(pairs) - 1)) * error
    return (LEVEL if not told else HIGHER if mean > 0 else LOWER), len(pairs), mean


def judged(paths: list[Path]) -> Comparison:
    experiment = load_experiment(paths)
    return judge_page([compare(experiment, treatment=treatment_of(experiment.axes, None))])[0][0]


def check(case: tuple[dict[Place, float], dict[Place, str]]) -> None:
    losses, faults = case
    # A run that is doubled or copied from one that has a fault of its own would need both rules.
    for place, fault in list(faults.items()):
        if fault in (COPIED, DOUBLED) and after(place, losses) in faults:
            del faults[place]
    with tempfile.TemporaryDirectory() as folder:
        paths = plant(Path(folder), losses, faults)
        comparison = judged(paths)
    findings = {
        group.config.model.num_heads: finding
        for group, finding in zip(comparison.experiment.groups, comparison.findings, strict=True)
    }
    if set(findings) != set(HEADS):
        return
    finding = findings[1] or findings[8]
    assert finding is not None
    verdict, pairs, mean = by_the_rules(losses, faults)
    assert finding.verdict == verdict, (losses, faults)
    if mean is not None:
        assert finding.difference is not None
        assert finding.difference.seeds == pairs
        sign = 1 if findings[1] is not None else -1
        assert sign * finding.difference.mean == pytest.approx(mean)
    used = [
        seed
        for seed in range(len(losses) // 2)
        if all(faults.get((heads, seed)) in (None, OTHER_DATA, OTHER_CODE) for heads in HEADS)
    ]
    if pairs >= 2 and verdict != UNTRAINED:
        for fault, what in ((OTHER_DATA, "data"), (OTHER_CODE, "code that decides losses")):
            edited = [[faults.get((heads, seed)) == fault for seed in used] for heads in HEADS]
            assert (what in finding.fairness.unequal) == (edited[0] != edited[1]), (losses, faults)
    copied = sum(fault == COPIED for fault in faults.values())
    assert sum("is not the run that its sweep planned" in line for line in comparison.experiment.problems) == copied
    doubled = sum(fault == DOUBLED for fault in faults.values())
    assert sum("they count as one run" in line for line in comparison.experiment.problems) == doubled


OPTIONS: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}


# A run of each group is by other code, of different seeds: the groups are alike, their pairs not.
MIXED = (
    {(heads, seed): 2.5 + 0.01 * seed * heads for heads in HEADS for seed in range(3)},
    {(8, 0): OTHER_CODE, (1, 1): OTHER_CODE},
)


@given(cases())
@example(MIXED)
@settings(max_examples=12, derandomize=True, **OPTIONS)
def test_faults_move_the_verdict_as_the_rules_say(case: Any):
    check(case)


@pytest.mark.slow
@given(cases())
@settings(max_examples=int(os.environ.get("MHSH_CASES", "500")), **OPTIONS)
def test_five_hundred_faults_move_the_verdict_as_the_rules_say(case: Any):
    check(case)
