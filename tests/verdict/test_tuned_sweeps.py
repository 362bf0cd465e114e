"""Each shape at its own best value, and sweeps judged as they were planned."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mhsh.errors import UserError
from mhsh.report.build import build_report
from mhsh.report.sentences import sentences, title, unbounded_reason
from mhsh.sweep.folder import SweepFolder, Tuning
from mhsh.text import format_difference
from mhsh.verdict.experiment import load_experiment
from mhsh.verdict.findings import HIGHER, LEVEL, LOWER, Comparison, Page, compare, judge_page, margin_of
from mhsh.verdict.groups import Group
from mhsh.verdict.outcomes import LOSS
from mhsh.verdict.tuning import tune_sections
from tests.judging import DEEP, NAN, SHALLOW, difference, edit_last_row, heads, judge, swept, verdicts

RATES = ["lr=1e-3,2e-3,4e-3,8e-3", "heads_per_layer=8,1", "seed=0,1,2,3,4"]
Loss = Callable[[float, int, int], float]


def valley(best: float, deep_best: float = 0.0, deep: float = 0.0, rise: float = 0.1) -> Loss:
    """Losses at a rate of a shape and a seed, the lowest at its best rate; the deep shape's are
    higher.
    """

    def loss(rate: float, heads: int, seed: int) -> float:
        at = deep_best if deep_best and heads == 1 else best
        return 2.0 + deep * (heads == 1) + rise * math.log2(rate / at) ** 2 + 0.003 * math.sin(7 * seed + 1000 * rate + heads)

    return loss


def rates(path: Path, loss: Loss) -> Path:
    return swept(path, RATES, loss)


def best_rate(group: Group) -> float | None:
    return group.choice.optimum.rate if group.choice and group.choice.optimum else None


def test_each_shape_at_its_own_best_rate(tmp_path):
    comparison = judge([rates(tmp_path / "s", valley(0.004, 0.002, deep=0.3))], over="lr")
    assert [best_rate(group) for group in comparison.experiment.groups] == [0.004, 0.002]
    assert [len(group.members) for group in comparison.experiment.groups] == [3, 3]
    assert verdicts(comparison) == [None, HIGHER]
    said = list(sentences(comparison))
    assert "The best learning_rate of 24x1 admin is 0.002, of 0.001 to 0.008 (8 trials)." in said
    assert "24x1 admin: A fair comparison" in "".join(said), said


def test_a_best_rate_at_the_edge_of_the_grid_is_no_verdict_against_the_shape(tmp_path):
    def loss(rate: float, heads: int, seed: int) -> float:
        slope = -0.3 if heads == 1 else 0.2  # the deep shape still gains at the highest rate
        return 2.0 + 0.5 * (heads == 1) + slope * math.log2(rate / 0.001) / 3 + 0.003 * math.sin(7 * seed + 999 * rate + heads)

    comparison = judge([rates(tmp_path / "s", loss)], over="lr")
    assert verdicts(comparison) == [None, LEVEL]
    assert any("at the edge of those tried" in sentence for sentence in sentences(comparison))
    assert unbounded_reason(comparison, 1) == "the values tried give none" and "its interval has no bound" in title(comparison)


def test_where_one_shape_is_best_at_the_edge_the_other_bounds_the_difference_on_one_side(tmp_path):
    comparison = judge([rates(tmp_path / "s", valley(0.002, 0.016, deep=0.2, rise=0.02))], over="lr")
    assert unbounded_reason(comparison, 1) == "the values tried give no lower bound"
    high = difference(comparison).high
    assert not math.isfinite(difference(comparison).low) and math.isfinite(high)
    assert f"95 % interval at least {format_difference(-high)}, 3 seeds" in title(comparison)  # of the shallow one


def test_a_measure_is_chosen_by_and_hides_in_its_own_unit(tmp_path):
    """Accuracy is best at 2e-3, and loss at 4e-3; more is better, and the grid hides little."""

    def accuracy(heads: int, rate: float, seed: int) -> float:
        return 0.5 - 0.01 * (heads == 1) - 0.002 * math.log2(rate / 0.002) ** 2 + 0.0005 * math.sin(5 * seed + 700 * rate + heads)

    sweep = rates(tmp_path / "s", valley(0.004, deep=0.1, rise=1 / 9))
    for grouped in (8, 1):
        for rate in (0.001, 0.002, 0.004, 0.008):
            for seed in range(5):
                run = sweep / "runs" / f"learning_rate-{rate}_heads_per_layer-{grouped}_seed-{seed}"
                edit_last_row(run, accuracy=accuracy(grouped, rate, seed))
    (comparison,) = compared([sweep], over="lr", measure="accuracy")
    groups = comparison.experiment.groups
    assert [best_rate(group) for group in groups] == [0.002, 0.002]
    assert all(
        0 < hidden < 0.003 and error < 0.003 for hidden, error in (group.hidden_gain for group in groups)
    )  # nats would be 0.03
    assert verdicts(comparison) == [None, LOWER]
    low, high = difference(comparison).low, difference(comparison).high
    assert low == pytest.approx(difference(comparison).mean - (high - difference(comparison).mean), abs=0.003) and low > -0.03
    # The deep shape may be better by what its grid hides, which is higher.
    silent = dataclasses.replace(groups[0], choice=None)
    alone, plain = (
        compare(dataclasses.replace(comparison.experiment, groups=(silent, deep)), "accuracy")
        for deep in (groups[1], dataclasses.replace(groups[1], choice=None))
    )
    assert (
        difference(alone).high - difference(plain).high > groups[1].hidden_gain[0] > difference(alone).low - difference(plain).low
    )
    assert any(" by validation accuracy (" in sentence for sentence in sentences(comparison))


def compared(paths: Sequence[Path], by: Sequence[str] = (), measure: str = LOSS, **asked: Any) -> list[Comparison]:
    sections = tune_sections(load_experiment(paths), by, measure=measure, **asked)
    return judge_page([compare(section, measure, section=words) for words, section in sections.items()])[0]


def test_a_sweep_is_judged_as_it_was_planned(tmp_path):
    sweep = SweepFolder(rates(tmp_path / "s", valley(0.003, deep=0.3)))
    assert len(compared([sweep.path])[0].experiment.groups) == 8
    sweep.open_for(dataclasses.replace(sweep.read_plan(), choosing=Tuning("lr", 1)))
    for asked, seeds in (({}, 4), ({"over": "optimizer.learning_rate"}, 4), ({"over": "lr", "choosing": 3}, 2)):
        (comparison,) = compared([sweep.path], **asked)
        assert [len(group.members) for group in comparison.experiment.groups] == [seeds, seeds]
    assert len(compared([sweep.path], over="none")[0].experiment.groups) == 8
    assert [len(each.experiment.groups) for each in compared([sweep.path], by=["lr"])] == [4, 4]


def test_shapes_at_their_own_rates_are_compared_once_for_each_scheme(tmp_path):
    ends = {"admin": valley(0.004, 0.002, deep=0.3), "deepnorm": valley(0.002, 0.004, deep=-0.3)}
    path = swept(
        tmp_path / "s", ["scheme=admin,deepnorm", *RATES], lambda scheme, rate, heads, seed: ends[scheme](rate, heads, seed)
    )
    planned = SweepFolder(path)
    planned.open_for(dataclasses.replace(planned.read_plan(), choosing=Tuning("lr", 2)))
    for asked in ({}, {"over": "lr", "choosing": 2}):
        found = compared([path], by=["heads_per_layer"], **asked)
        assert [comparison.section for comparison in found] == [("scheme admin",), ("scheme deepnorm",)]
        assert [[best_rate(group) for group in each.experiment.groups] for each in found] == [[0.004, 0.002], [0.002, 0.004]]
        assert [verdicts(each) for each in found] == [[None, HIGHER], [None, LOWER]]
    assert len(compared([path], by=["heads_per_layer"], over="none")) == 8


def test_a_margin_and_pooling_are_as_planned(tmp_path):
    sweeps = [SweepFolder(heads(tmp_path / name, SHALLOW, DEEP)) for name in ("a", "b", "c")]
    plans = [dataclasses.replace(sweep.read_plan(), margin=0.02, pooled=True) for sweep in sweeps]
    for sweep, plan in zip(sweeps, plans, strict=True):
        with pytest.raises(UserError, match=r"was planned with no --margin, and how a sweep is judged is not changed"):
            sweep.open_for(plan)  # the runs are there
        (sweep.path / "plan.json").unlink()
        for name in ("ends", "logs", "runs"):
            shutil.move(sweep.path / name, tmp_path / name)
        sweep.open_for(plan)
        for name in ("ends", "logs", "runs"):
            shutil.rmtree(sweep.path / name)
            shutil.move(tmp_path / name, sweep.path / name)
    experiment = load_experiment([sweep.path for sweep in sweeps])
    assert margin_of(experiment) == 0.02 and margin_of(experiment, 0.1) == 0.1
    sections = experiment.sections()
    page = judge_page([compare(section, section=words) for words, section in sections.items()], 0.02)
    assert [finding.decision.words for each in page.comparisons for finding in each.findings if finding and finding.decision] == [
        HIGHER
    ] * 3
    (pooled,) = page.pooled
    assert (pooled.planned, pooled.same_sign, pooled.pairs, pooled.sections) == (True, 15, 15, ("a", "b", "c"))
    assert pooled.estimate.mean == pytest.approx(0.0496) and pooled.between == 0


def test_a_sweep_of_one_rate_among_several_has_no_bound(tmp_path):
    several, one = rates(tmp_path / "several", valley(0.003, deep=0.3)), heads(tmp_path / "one", SHALLOW, DEEP)
    first, second = compared([several, one], over="lr")
    assert verdicts(first) == [None, HIGHER] and verdicts(second) == [None, LEVEL]
    assert any("is at the edge of those tried" in sentence for sentence in sentences(second))
    with pytest.raises(UserError, match=r"^one: --choosing-seeds=5 must be from 1 to 4"):
        compared([one, several], over="lr", choosing=5)
    with pytest.raises(UserError, match=r"no two groups differ in optimizer.learning_rate alone"):
        compared([one], over="lr")


@pytest.mark.parametrize("last", [0.001, 0.008])
def test_a_rate_that_never_ran_was_not_tried(tmp_path, last: float):
    """Losses are best next to the edge; nothing bounds them where the edge has not run."""
    sweep = rates(tmp_path / "s", valley(0.002 if last == 0.001 else 0.004))
    assert all(math.isfinite(group.hidden_gain[1]) for group in judge([sweep], over="lr").experiment.groups)
    for seed in range(5):
        shutil.rmtree(sweep / "runs" / f"learning_rate-{last}_heads_per_layer-1_seed-{seed}")
    comparison = judge([sweep], over="lr")
    assert [math.isinf(group.hidden_gain[1]) for group in comparison.experiment.groups] == [False, True]
    assert any("24x1 admin: its best learning_rate is at the edge" in sentence for sentence in sentences(comparison))


def test_a_rate_that_is_missing_makes_no_verdict_surer(tmp_path):
    """A parabola through the deep shape's losses dips by 0.03 between the best rate and the next,
    which nothing confirms where the lowest rate has not run.
    """
    ends = {0.001: 2.1, 0.002: 2.0, 0.004: 2.01, 0.008: 2.29}

    def loss(rate: float, heads: int, seed: int) -> float:
        noise = 0.004 * math.sin(5 * seed * heads + 1000 * rate + heads)
        return noise + (ends[rate] - 0.001 if heads == 1 else 2.0 + 0.1 * math.log2(rate / 0.002) ** 2)

    sweep = rates(tmp_path / "s", loss)
    whole = judge([sweep], over="lr")
    for seed in range(5):
        shutil.rmtree(sweep / "runs" / f"learning_rate-0.001_heads_per_layer-1_seed-{seed}")
    comparison = judge([sweep], over="lr")
    assert [best_rate(group) for each in (whole, comparison) for group in each.experiment.groups] == [0.002] * 4
    assert verdicts(comparison) == [None, LEVEL]
    assert difference(comparison).low == -math.inf and difference(comparison).high > max(0, difference(whole).high)


def test_a_rate_at_which_a_choosing_run_diverged_is_not_chosen(tmp_path):
    loss = valley(0.004, rise=0.2)
    path = rates(tmp_path / "s", lambda rate, heads, seed: NAN if (rate, heads, seed) == (0.004, 1, 1) else loss(rate, heads, seed))
    comparison = judge([path], over="lr")
    best = best_rate(comparison.experiment.groups[1])
    assert best not in (None, 0.004)
    # The map of rates has no mean of the survivors, which would be the best of the row.
    (table,) = build_report(Page([comparison], [], [])).rates
    shown = dict(zip((column.name for column in table.columns), table.rows[1].full_cells, strict=True))
    assert shown["0.004"].words == "1 of 2 trained" and shown[f"{best:g}"].mark


def test_a_seed_that_trains_at_no_rate_is_not_forgotten(tmp_path):
    """The other choosing seed alone chooses nothing."""
    loss = valley(0.004)
    comparison = judge([rates(tmp_path / "s", lambda *of: NAN if of[1:] == (1, 1) else loss(*of))], over="lr")
    shallow, deep = comparison.experiment.groups
    assert best_rate(shallow) == 0.004 and deep.choice and (deep.choice.optimum, deep.choice.highest_trained) == (None, None)
    assert title(comparison).startswith("No verdict: at no learning_rate did all choosing runs of 24x1 admin train")


def test_each_data_seed_of_several_training_seeds_is_tuned_by_itself(tmp_path):
    """They are two groups at each rate, and no run is lost."""
    axes = ["lr=1e-3,2e-3,4e-3", "heads_per_layer=8,1", "train_seed=0,1,2,3", "data_seed=0,1"]
    loss = valley(0.002, deep=0.05)
    comparison = judge([swept(tmp_path / "s", axes, lambda rate, heads, seed, data: loss(rate, heads, 9 * seed + data))], over="lr")
    found = [(group.name, [member.replicate for member in group.members]) for group in comparison.experiment.groups]
    reporting = [[(2, data), (3, data)] for data in (0, 1)] * 2
    assert found == [*zip(["3x8 admin", "3x8 admin (2)", "24x1 admin", "24x1 admin (2)"], reporting, strict=True)]
    assert sum(choice.trials for choice in comparison.experiment.choices) == 24


def test_the_tuned_field_is_meant_to_differ_whatever_the_treatment_is(tmp_path):
    comparison = judge([rates(tmp_path / "s", valley(0.004, 0.002))], over="lr", treatment=("shape",))
    assert "24x1 admin: A fair comparison: only the head grouping differs." in sentences(comparison)


def test_what_has_ended_is_said_where_the_choosing_runs_alone_have(tmp_path):
    """They choose among four rates for two shapes, by two seeds."""
    sweep = rates(tmp_path / "s", valley(0.004))
    for run in [*sweep.glob("runs/*_seed-[234]"), *sweep.glob("runs/learning_rate-0.008_*")]:
        shutil.rmtree(run, ignore_errors=True)
    assert title(judge([sweep], over="lr")) == "No run that is compared has finished yet; 12 of 16 choosing runs have"
    for run in sweep.glob("runs/*"):
        shutil.rmtree(run)
    assert title(judge([sweep], over="lr")) == "No run has finished yet"


def test_runs_at_a_rate_that_nobody_chose_are_no_answer(tmp_path):
    """Lower seeds are added to the plan, and choose."""
    axes = ["lr=1e-3,2e-3,4e-3", "heads_per_layer=8,1", "seed=0,5,6,7"]
    loss = valley(0.002, deep=0.3)
    path = swept(tmp_path / "s", axes, lambda rate, heads, seed: None if seed == 0 else loss(rate, heads, seed))
    (comparison,) = compared([path], over="lr", choosing=1)
    assert title(comparison) == "No verdict: no learning_rate of 3x8 admin and 24x1 admin is chosen"


def test_a_group_without_choosing_runs_is_not_called_one_that_does_not_train(tmp_path):
    """Each data seed is a group here, and the first one alone chooses."""
    path = swept(tmp_path / "s", ["lr=1e-3,2e-3,4e-3", "data_seed=0,1"], lambda rate, seed: valley(0.002)(rate, 8, seed))
    (comparison,) = compared([path], over="lr")
    assert title(comparison) == "No verdict: no learning_rate of 3x8 admin (2) is chosen"


def test_a_value_whose_runs_lack_the_measure_was_not_tried(tmp_path):
    """The loss of the highest rate is known, and its accuracy is not: one may be best there."""
    axes = ["lr=1e-3,2e-3,4e-3,8e-3", "seed=0,1,2"]
    path = swept(tmp_path / "s", axes, lambda rate, seed: 2.0 + 0.01 * seed + rate)
    for seed in range(3):
        for rate, accuracy in ((0.001, 0.4), (0.002, 0.5), (0.004, 0.6)):
            edit_last_row(path / "runs" / f"learning_rate-{rate}_seed-{seed}", accuracy=accuracy + 0.01 * seed)
    (comparison,) = compared([path], over="lr", choosing=2, measure="accuracy")
    (group,) = comparison.experiment.groups
    assert best_rate(group) == 0.004 and math.isinf(group.hidden_gain[1])
    for run in path.glob("runs/*seed-[01]"):
        edit_last_row(run, accuracy=None)
    (comparison,) = compared([path], over="lr", choosing=2, measure="accuracy")
    assert title(comparison) == "No verdict: no learning_rate of 3x8 admin is chosen"


def test_a_sweep_in_a_folder_that_is_named_is_named_whole(tmp_path):
    """It is judged as it was planned, and what has not run is missing."""
    loss = valley(0.002, deep=0.3)
    axes = ["lr=1e-3,2e-3,4e-3", "heads_per_layer=8,1", "seed=0,1,2"]
    path = swept(tmp_path / "all/s", axes, lambda rate, heads, seed: None if seed == 2 else loss(rate, heads, seed))
    planned = SweepFolder(path)
    planned.open_for(dataclasses.replace(planned.read_plan(), choosing=Tuning("lr", 1)))
    said = [[title(each), *sentences(each)] for named in (path, tmp_path) for each in compared([named])]
    assert said[0] == said[1] and "not named" not in "".join(said[1])
