"""The rules of the engine, each on planted runs that would break it."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from mhsh.errors import UserError
from mhsh.report.sentences import sentences, title
from mhsh.storage.run_record import STOPPED
from mhsh.verdict.experiment import load_experiment
from mhsh.verdict.findings import HIGHER, LEVEL, LOWER, OTHER_UNIT, TOO_FEW_SEEDS, UNMEASURED, UNTRAINED, compare, judge_page
from mhsh.verdict.groups import TRAINED
from mhsh.verdict.outcomes import Values, cost_ratios, sampling_error
from mhsh.verdict.runs import AXES
from tests.judging import (
    DEEP,
    DEEPER,
    NAN,
    NOT_IMPROVED,
    SHALLOW,
    STUCK,
    difference,
    edit_last_row,
    heads,
    judge,
    planted,
    swept,
    verdicts,
)
from tests.planted import MakeRun


def test_two_groups_that_all_trained_are_compared_in_pairs(tmp_path):
    comparison = judge([heads(tmp_path / "s", SHALLOW, DEEP)])
    assert verdicts(comparison) == [None, HIGHER]
    assert difference(comparison).paired
    assert difference(comparison).mean == pytest.approx(sum(DEEP) / 5 - sum(SHALLOW) / 5)
    assert title(comparison).startswith("3x8 admin ends 0.050 below 24x1 admin (95 % interval \u2212")
    assert "24x1 admin: A fair comparison: only the head grouping differs." in sentences(comparison)


@pytest.mark.parametrize(("left", "words"), [(NAN, "diverged"), (STUCK, NOT_IMPROVED)])
def test_survivors_do_not_win(tmp_path, left: float, words: str):
    comparison = judge([heads(tmp_path / "s", SHALLOW, [2.3, 2.31, left, left + 0.001, left + 0.002])])
    assert verdicts(comparison) == [None, UNTRAINED]
    assert title(comparison).startswith("3x8 admin ends at a validation loss of 2.5")
    assert title(comparison).endswith("; not all runs of 24x1 admin trained")
    said = list(sentences(comparison))
    (counts,) = [sentence for sentence in said if "Fisher" in sentence]
    assert counts.startswith("2 of 5 runs of 24x1 admin trained (12 to 77 %) and 5 of 5 runs of 3x8 admin trained")
    assert "Fisher's exact p = 0.17, rank test with those that did not as the worst p = " in counts
    assert f"24x1 admin: seeds 2, 3 and 4 {words}." in said
    to_try = [sentence for sentence in said if sentence.startswith("To try for 24x1 admin, in another folder: --config.")]
    assert len(to_try) == (left == STUCK)


def test_a_lost_run_leaves_the_verdict_on_the_pairs_in_common(tmp_path):
    for lost in range(5):
        deep = [None if seed == lost else loss for seed, loss in enumerate(DEEP)]
        comparison = judge([heads(tmp_path / str(lost), SHALLOW, deep)])
        assert verdicts(comparison) == [None, HIGHER]
        assert difference(comparison).seeds == 4
        assert "Missing: 1 not run of 5 runs of 24x1 admin." in sentences(comparison)
        assert any(f"without seed {lost} of 3x8 admin" in sentence for sentence in sentences(comparison))


def test_seeds_that_change_nothing_are_one_run(make_run: MakeRun):
    comparison = judge(planted(make_run, {"a": ({}, [2.0] * 3), "b": (DEEPER, [2.5] * 3)}))
    assert verdicts(comparison) == [None, TOO_FEW_SEEDS]
    assert [len(group.members) for group in comparison.experiment.groups] == [1, 1]
    assert sum("they count as one run" in problem for problem in comparison.experiment.problems) == 4


def test_without_spread_nothing_is_significant(tmp_path):
    comparison = judge([heads(tmp_path / "s", SHALLOW, [loss + 1e-6 for loss in SHALLOW])])
    assert verdicts(comparison) == [None, LEVEL]


def test_one_and_two_seeds_cannot_tell(tmp_path):
    for count in (1, 2):
        comparison = judge([heads(tmp_path / str(count), SHALLOW[:count], DEEP[:count])])
        assert verdicts(comparison) == [None, TOO_FEW_SEEDS]
        assert "enough to rule out chance" in title(comparison)


def test_more_groups_need_more_evidence(tmp_path):
    """One family of intervals is on the page: what two groups alone tell apart, ten may not."""
    alone = judge([heads(tmp_path / "two", SHALLOW, [2.52, 2.545, 2.505, 2.53, 2.523])])
    many = judge_page([alone] * 6).comparisons
    assert difference(many[0]).p_value == pytest.approx(min(1.0, 6 * difference(alone).p_value))
    assert difference(many[0]).low < difference(alone).low


def test_what_has_not_ended_is_no_loss_yet(make_run: MakeRun):
    running = make_run("b", [4.0, 3.5], [3.0], model=DEEPER, training={"num_steps": 99}, record={"status": "running"})
    comparison = judge([make_run("a", [4.0, 3.0], [2.0]), running])
    assert verdicts(comparison) == [None, UNMEASURED]
    assert title(comparison) == "2x8 admin ends at a validation loss of 2.000; 16x1 admin has no finished run yet"
    assert "16x1 admin has no finished run yet." in sentences(comparison)


def test_a_run_that_goes_on_does_not_make_the_others_unfair(make_run: MakeRun):
    """Of the tokens and the validation of a run that has not made its steps nothing is known."""
    paths = planted(make_run, {"a": ({}, SHALLOW), "b": (DEEPER, DEEP)})
    paths.append(make_run("b 5", [4.0], model=DEEPER, training={"seed": 5, "num_steps": 10}, record={"status": "running"}))
    paths.append(make_run("a 5", [4.0, 3.0], [2.5, 2.4], training={"seed": 5, "num_steps": 10}, record={"status": "running"}))
    rows = (paths[-1] / "metrics.jsonl").read_text().splitlines(keepends=True)
    (paths[-1] / "metrics.jsonl").write_text("".join(row for row in rows if '"step": 20' not in row))
    comparison = judge(paths)
    assert verdicts(comparison) == [None, HIGHER]
    assert "16x1 admin: A fair comparison: only the head grouping differs." in sentences(comparison)


def test_losses_in_other_units_are_not_compared(make_run: MakeRun):
    comparison = judge([make_run("a", [4.0, 3.0], [2.0]), make_run("b", [4.0, 3.5], [1.0], data={"tokenizer": "bytes"})])
    assert verdicts(comparison) == [None, OTHER_UNIT]
    assert "the tokenizer differs" in title(comparison)
    paths = [
        make_run(f"{name} {seed}", [4.0], [2.9, end + 0.01 * seed], data={"tokenizer": name}, training={"seed": seed})
        for name, end in (("bytes", 1.0), ("wordpiece", 2.0))
        for seed in range(3)
    ]
    assert all(finding is None or finding.ratios == {} for finding in judge(paths).findings)


def test_vocabularies_are_told_apart_where_only_the_records_were_copied(make_run: MakeRun):
    paths = [
        make_run(name, [4.0, 3.0], [2.0 + seed / 10], record={"vocabulary": name * 32}) for seed, name in enumerate(("1a", "2b"))
    ]
    assert not any((path / "vocab.txt").exists() for path in paths)
    other = make_run("other", [4.0, 3.1], [2.5], model=DEEPER, record={"vocabulary": "1a" * 32})
    assert verdicts(judge([paths[0], other])) == [None, TOO_FEW_SEEDS]
    assert verdicts(judge([paths[1], other])) == [None, OTHER_UNIT]


def test_a_run_without_the_measure_is_named(make_run: MakeRun):
    paths = planted(make_run, {"a": ({}, SHALLOW), "b": (DEEPER, DEEP)})
    for place, path in enumerate(paths):
        edit_last_row(path, bleu=20.0 + place % 3 if place < 9 else None)
    comparison = judge(paths, measure="bleu")
    said = list(sentences(comparison))
    assert "Missing: 1 without validation bleu of 5 runs of 16x1 admin." in said
    assert "16x1 admin is paired with 2x8 admin on the 4 seeds in common; without seed 4 of 2x8 admin." in said
    for path in paths[5:]:
        edit_last_row(path, bleu=None)
    assert title(judge(paths, measure="bleu")).endswith("; 16x1 admin has no validation bleu")


def test_several_factors_at_once_are_confounded(make_run: MakeRun):
    deep = DEEPER | {"residual": "pre_ln", "qk_norm": True}
    comparison = judge(planted(make_run, {"a": ({}, [2.0, 2.01, 2.02]), "b": (deep, [2.5, 2.51, 2.52])}))
    several = "Three things differ, the head grouping, the residual scheme and the normalisation, so a difference cannot"
    assert several in next(iter(sentences(comparison)))


@pytest.mark.parametrize(("gain", "comparable"), [(0.5, True), (-0.5, False)])
def test_a_larger_model_that_loses_is_comparable_and_one_that_wins_is_not(make_run: MakeRun, gain: float, comparable: bool):
    ends = [2.0, 2.01, 2.02, 2.03]
    paths = [
        *planted(make_run, {"a": ({}, ends)}, record={"parameters": {"encoder": 100_000, "total": 100_000}}),
        *planted(
            make_run, {"b": (DEEPER, [end + gain for end in ends])}, record={"parameters": {"encoder": 103_700, "total": 103_700}}
        ),
    ]
    said = "".join(sentences(judge(paths)))
    assert ("Not comparable" not in said) == ("ends worse all the same" in said) == comparable
    assert title(judge(paths)).startswith("No fair comparison: ") != comparable
    assert "it has 3.7 % more parameters" in said


def test_how_often_a_curve_was_evaluated_changes_nothing(make_run: MakeRun):
    """The same curves, validated every 10 steps and every 100: one reaches the loss where the other
    does.
    """
    paths = []
    for seed in range(2):
        curve = [3.0 + 0.01 * seed - 0.9 * (1 - 0.9**step) + 0.02 * math.sin(step) for step in range(1, 31)]
        often = make_run(f"often {seed}", [4.0, 3.0], curve, training={"seed": seed})
        seldom = make_run(f"seldom {seed}", [4.0, 3.0], training={"seed": seed, "num_steps": 300}, model={"residual": "pre_ln"})
        rows = [row for row in (often / "metrics.jsonl").read_text().splitlines() if '"validation"' in row]
        with open(seldom / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.writelines(row + "\n" for row in rows[9::10])
        paths += [often, seldom]
    often, seldom = load_experiment(paths).groups
    assert {axis: ratio.mean for axis, ratio in cost_ratios(seldom, often, "validation").items()} == dict.fromkeys(AXES, 1.0)


def test_a_swept_field_is_the_treatment(tmp_path):
    sweep = swept(tmp_path / "s", ["lr=1e-3,4e-3", "seed=0,1,2,3"], lambda rate, seed: 2.0 + rate + seed / 997 + rate * seed)
    finding = judge([sweep]).findings[1]
    assert finding is not None and finding.fairness.factors == ("learning_rate",) and not finding.fairness.unequal


def test_runs_that_did_not_train_and_one_that_logged_nothing(make_run: MakeRun):
    stuck = [make_run(f"a{seed}", [4.0, 2.99 + seed / 99], training={"seed": seed}) for seed in range(2)]
    nothing = make_run("b", model={"residual": "pre_ln"}, record={"status": "running"})
    comparison = judge([*stuck, nothing])
    assert title(comparison) == "No run has trained yet"
    said = "".join(sentences(comparison))
    assert "no run of 2x8 pre_ln has ended and 0 of 2 runs of 2x8 admin trained (0 to 66 %): their losses" in said


def test_validation_on_training_examples_is_said(make_run: MakeRun):
    data = {"fingerprint": "f00d", "unigram_entropy": 3.0, "overlap": {"count": 9, "of": 9}}
    comparison = judge([make_run("a", [4.0, 2.0], record={"data": data})])
    assert "2x8 admin: 9 of 9 validation examples are also training examples." in list(sentences(comparison))


def test_a_test_that_takes_the_spread_of_another_group_is_counted(make_run: MakeRun):
    """Alone the third group has none, as the baseline and it have one value each."""
    shapes = {"a": ({}, SHALLOW), "b": (DEEPER, DEEP), "c": ({"num_layers": 4, "num_heads": 4}, [2.6 + each for each in DEEP])}
    ends = {"a": [0.5] * 5, "b": [0.5, 0.53, 0.48, 0.52, 0.51], "c": [0.6] * 5}
    paths = planted(make_run, {name: (model, [loss % 1 + 1 for loss in losses]) for name, (model, losses) in shapes.items()})
    for path, accuracy in zip(paths, [each for values in ends.values() for each in values], strict=True):
        edit_last_row(path, accuracy=accuracy)
    ((comparison,), *_, tests) = judge_page([compare(load_experiment(paths), "accuracy")])
    assert verdicts(comparison) == [None, LEVEL, HIGHER] and tests == 2


def test_the_baseline_is_called_by_its_group_or_by_a_run(tmp_path):
    sweep = heads(tmp_path / "s", SHALLOW, DEEP)
    run = "heads_per_layer-1_seed-3"
    for name in ("24x1 admin", run, str(sweep / "runs" / run)):
        assert verdicts(judge([sweep], baseline=name)) == [LOWER, None]
    with pytest.raises(UserError, match="allowed: 3x8 admin and 24x1 admin"):
        judge([sweep], baseline="nobody")


@pytest.mark.parametrize("cut", ["last validation row", "second half"])
def test_a_value_is_measured_where_the_run_ends_or_it_is_missing(make_run: MakeRun, cut: str):
    """All runs fall alike; of two the loss after the last step is lost, which was lower."""
    paths = [
        make_run(f"{name} {seed}", [4.0 + end] * 30, [3.4, end + 0.3, end], model=model, training={"num_steps": 30, "seed": seed})
        for name, model, ends in (("a", {}, SHALLOW), ("b", DEEPER, DEEP))
        for seed, end in enumerate(ends)
    ]
    whole = judge(paths)
    for path in paths[:2]:
        rows = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
        (path / "metrics.jsonl").write_text("".join(rows[:-1] if cut == "last validation row" else rows[: len(rows) // 2]))
    comparison = judge(paths)
    assert verdicts(comparison) == verdicts(whole) == [None, HIGHER]
    assert difference(comparison).seeds == 3 and difference(comparison).mean == pytest.approx(0.05, abs=0.01)
    assert "Missing: 2 without last rows of 5 runs of 2x8 admin." in sentences(comparison)
    assert [str(path) in problem for path, problem in zip(paths, comparison.experiment.problems, strict=False)] == [True, True]
    assert "ended at step 30, and its last rows are lost" in comparison.experiment.problems[0]


def test_a_run_that_was_to_become_longer_and_did_not_begin_has_lost_nothing(make_run: MakeRun):
    """Its config.json is replaced first; then the program compiles, or another flag is wrong."""
    path = make_run("a", [2.0] * 30, [2.4, 2.3, 2.2], training={"num_steps": 30})
    record, config = (json.loads((path / name).read_text()) for name in ("run.json", "config.json"))
    (path / "run.json").write_text(json.dumps(record | {"checkpoint": 30}))
    assert judge([path]).experiment.groups[0].members[0].state == TRAINED
    (path / "config.json").write_text(json.dumps(config | {"train": config["train"] | {"num_steps": 60}}))
    experiment = judge([path]).experiment
    assert experiment.problems == () and experiment.groups[0].members[0].state == STOPPED


def test_a_group_whose_measure_is_lost_everywhere_is_named(make_run: MakeRun):
    paths = planted(make_run, {"a": ({}, [2.0, 2.01, 2.02]), "b": (DEEPER, [2.5, 2.51, 2.52])})
    for path in paths[3:]:
        edit_last_row(path, step=9)
    comparison = judge(paths)
    assert title(comparison).endswith("16x1 admin has no finished run yet")
    for seed, path in enumerate(paths[:3]):
        edit_last_row(path, bleu=20.0 + seed)
    assert title(judge(paths, measure="bleu")).startswith("2x8 admin ends at a validation bleu of 21.000")


@pytest.mark.parametrize("lost", ["one side", "other counts"])
def test_parts_of_one_side_alone_make_no_verdict_surer(make_run: MakeRun, lost: str):
    paths = planted(make_run, {"a": ({}, SHALLOW), "b": (DEEPER, DEEP)})
    for place, path in enumerate(paths):
        loss = json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])["loss"]
        edit_last_row(path, loss_parts=[loss - 0.01, loss, loss + 0.01, loss] if place < 5 or lost == "one side" else [loss, loss])
        if place < 5 and lost == "one side":
            edit_last_row(path, loss_parts=None)
    comparison = judge(paths)
    assert verdicts(comparison) == [None, LEVEL]
    assert (difference(comparison).low, difference(comparison).high) == (-math.inf, math.inf)
    assert any("what other validation rows may change is not known" in sentence for sentence in sentences(comparison))


def test_of_a_group_that_did_not_train_no_parts_are_missed():
    """It has no difference, so nothing of one is unknown."""
    trained = Values({(0, 0): 2.0}, {(0, 0): np.array([1.9, 2.1])}, {})
    assert sampling_error(Values({}, {}, {}), trained) == 0


def test_one_seed_in_common_is_compared_as_none_is(make_run: MakeRun):
    """Fairness looks at the runs that the difference is of: all of both."""
    said = []
    for first in (3, 4):
        paths = [
            make_run(
                f"{first}/{name} {seed}", [4.0], [end + 0.01 * seed**2], model=model, data={"seed": seed}, training={"seed": seed}
            )
            for name, model, end, start in (("a", {}, 2.0, 0), ("b", DEEPER, 2.5, first))
            for seed in range(start, start + 4)
        ]
        comparison = judge(paths)
        assert not difference(comparison).paired
        said.append([line for line in sentences(comparison) if "omparable" in line])
    assert said[0] == said[1] == ["16x1 admin: Not comparable: different data seeds."]


@pytest.mark.parametrize(("shift", "verdict"), [(0.05, HIGHER), (0.02, LEVEL)])
def test_what_other_validation_rows_may_change_is_no_difference(make_run, shift: float, verdict: str):
    # The seeds agree to 0.001. By the twenty parts of validation, the mean difference of other rows
    # may be 0.03 away: 2.09 standard errors of 0.0144.
    noise = 0.0644 * np.array([-1.0, 1.0] * 10)
    paths = []
    for layers, extra in ((6, 0.0), (2, 1.0)):
        for seed in range(4):
            loss = 2.5 + 0.001 * seed + 0.0003 * seed * extra + shift * extra
            parts = (loss + extra * noise).tolist()
            training = {"seed": seed, "num_steps": 20, "eval_interval": 10}
            name = f"{layers}-{seed}"
            folder = make_run(name, [3.0] * 10 + [loss] * 10, [2.9, loss], model={"num_layers": layers}, training=training)
            edit_last_row(folder, loss_parts=parts)
            paths.append(folder)
    comparison = judge(paths)
    assert verdicts(comparison) == [None, verdict]
    assert difference(comparison).high - difference(comparison).mean > 0.0302
