"""Several sweeps on a page: each is compared apart, and how differences change is tested."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mhsh.errors import UserError
from mhsh.report.sentences import change_words
from mhsh.verdict.experiment import load_experiment
from mhsh.verdict.findings import HIGHER, LOWER, OTHER_UNIT, compare, judge_page
from tests.judging import (
    DEEP,
    SHALLOW,
    edit_last_row,
    heads,
    swept,
    verdicts,
)


def test_a_change_is_of_the_seeds_that_have_the_measure(tmp_path):
    paths = [heads(tmp_path / name, SHALLOW, DEEP) for name in ("small", "large")]
    for size, sweep in enumerate(paths):
        for grouped, seed in ((grouped, seed) for grouped in (8, 1) for seed in range(5)):
            value = None if (size, grouped, seed) == (1, 1, 4) else 20.0 + seed * grouped / 9 + size * (grouped == 1)
            edit_last_row(sweep / "runs" / f"heads_per_layer-{grouped}_seed-{seed}", bleu=value)
    sections = load_experiment(paths).sections()
    _, (change,), *_ = judge_page([compare(section, "bleu", section=words) for words, section in sections.items()])
    assert change.estimate.seeds == 4 and change.estimate.mean == pytest.approx(1.0)


def test_two_sweeps_whose_folders_have_one_name_are_compared_apart(tmp_path):
    paths = [heads(tmp_path / size / "sweep", SHALLOW, DEEP) for size in ("small", "large")]
    experiment = load_experiment(paths)
    assert {words: len(section.groups) for words, section in experiment.sections().items()} == {
        ("small/sweep",): 2,
        ("large/sweep",): 2,
    }


def test_a_difference_that_changes_from_one_sweep_to_the_next_is_tested(tmp_path):
    larger = [loss + 0.03 + 0.001 * seed for seed, loss in enumerate(DEEP)]
    paths = [heads(tmp_path / name, SHALLOW, deep) for name, deep in (("small", DEEP), ("large", larger), ("same", DEEP))]
    sections = load_experiment(paths).sections()
    comparisons, changes, *_ = judge_page([compare(section, section=words) for words, section in sections.items()])
    assert [verdicts(comparison) for comparison in comparisons] == [[None, HIGHER]] * 3
    grown, same = changes
    assert grown.estimate.mean == pytest.approx(0.032) and grown.estimate.is_significant
    said = change_words(grown)
    assert said.endswith("large instead of small changes the difference from +0.050 to +0.082, by +0.032 (+0.027 to +0.037).")
    assert said.startswith("1 head a layer (24x1 admin and ")
    # Equal differences have no spread, and no p-value.
    assert same.estimate.mean == 0 and not same.estimate.is_significant
    assert change_words(same).endswith(
        "same instead of small changes the difference from +0.050 to +0.050, by +0.000, which may be chance."
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, ""),
        ({"code": {"0": "ed17ed"}}, ". The two are not comparable: different code that decides losses"),
        ({"numerics": {"0": {"jax_enable_x64": True}}}, ". The two are not comparable: different numeric settings"),
        ({"data": {"unigram_entropy": 3.0, "fingerprint": "other"}}, ". The two are not comparable: different data"),
    ],
)
def test_a_change_is_as_fair_as_a_difference(tmp_path, fields: dict[str, Any], words: str):
    """Within each section all is equal; from one to the other it is not."""
    paths = [heads(tmp_path / name, SHALLOW, deep) for name, deep in (("small", DEEP), ("large", [each + 0.1 for each in DEEP]))]
    for path in paths[1].glob("runs/*/run.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    sections = load_experiment(paths).sections()
    comparisons, (change,), *_ = judge_page([compare(section, section=words) for words, section in sections.items()])
    assert not any(finding.fairness.unequal for each in comparisons for finding in each.findings if finding)
    assert change_words(change).partition("chance")[2] == f"{words}."


def test_of_sections_that_are_in_two_units_no_change_is_told(tmp_path):
    axes = ["data.tokenizer=bytes,wordpiece", "seed=0,1,2"]
    for name, higher in (("small", 0.1), ("large", 0.3)):
        swept(tmp_path / name, axes, lambda kind, seed, higher=higher: 2.0 + (kind == "bytes") * higher * (1 + seed / 9))
    sections = load_experiment(sorted(tmp_path.iterdir())).sections()
    page = judge_page([compare(section, section=words) for words, section in sections.items()])
    assert [verdicts(each) for each in page.comparisons] == [[None, OTHER_UNIT]] * 2 and not page.changes


def test_the_baseline_of_two_sweeps_is_called_as_in_one(tmp_path):
    """The groups of the second one are called `3x8 admin (2)` and `24x1 admin (2)`."""
    paths = [heads(tmp_path / name, SHALLOW, DEEP) for name in "ab"]
    sections = load_experiment(paths).sections()
    found = [compare(section, baseline="24x1 admin", section=words) for words, section in sections.items()]
    assert [verdicts(each) for each in found] == [[LOWER, None]] * 2
    with pytest.raises(UserError, match=r"is not a group or run of b; allowed: 3x8 .* or compare that part alone"):
        compare(sections["b",], baseline=str(paths[0] / "runs/heads_per_layer-1_seed-3"), section=("b",))
