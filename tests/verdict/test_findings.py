"""The rules of the engine, each on planted runs that would break it."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mhsh.errors import UserError
from mhsh.report.sentences import change_words, sentences, title
from mhsh.sweep.folder import Choosing, SweepFolder
from mhsh.verdict.estimate import Estimate
from mhsh.verdict.experiment import Group, load_experiment
from mhsh.verdict.fairness import factors, treatment_of
from mhsh.verdict.findings import (
    HIGHER,
    LEVEL,
    LOWER,
    OTHER_UNIT,
    TOO_FEW_SEEDS,
    UNMEASURED,
    UNTRAINED,
    Comparison,
    compare,
    judge_page,
    margin_of,
)
from mhsh.verdict.outcomes import LOSS, Values, measure_all, sampling_error
from mhsh.verdict.tuning import tune, tune_sections
from tests.conftest import load_fields
from tests.planted import MakeRun
from tests.sweeps import write_sweep

NAN = math.nan
STUCK = 2.95  # not 0.1 nats below the entropy of 3.0
SHALLOW = [2.500, 2.511, 2.489, 2.507, 2.494]
DEEPER = {"num_layers": 16, "num_heads": 1, "mlp_dim": 32}
DEEP = [2.551, 2.559, 2.541, 2.555, 2.543]  # about 0.05 higher, seed by seed


def judge(paths: Sequence[str | Path], over: str | None = None, **options: Any) -> Comparison:
    experiment = load_experiment(paths)
    treatment = options.pop("treatment", treatment_of(experiment.axes, None))
    if over is not None:
        experiment = tune(experiment, over)
    return judge_page([compare(experiment, treatment=treatment, **options)])[0][0]


def verdicts(comparison: Comparison) -> list[str | None]:
    return [finding and finding.verdict for finding in comparison.findings]


def difference(comparison: Comparison) -> Estimate:
    """Of the second group."""
    finding = comparison.findings[1]
    assert finding is not None and finding.difference is not None
    return finding.difference


def planted(make_run: MakeRun, shapes: Mapping[str, tuple[Mapping[str, Any], Sequence[float]]], **options: Any) -> list[Path]:
    """Runs of models, which end at these losses, a seed each."""
    return [
        make_run(f"{name} {seed}", [4.0, 3.0], [loss], model=dict(model), training={"seed": seed}, **options)
        for name, (model, losses) in shapes.items()
        for seed, loss in enumerate(losses)
    ]


def heads(path: Path, shallow: Sequence[float], deep: Sequence[float]) -> Path:
    """A sweep of two groupings; an end of None has not run."""
    seeds = range(max(len(shallow), len(deep)))
    ends = {f"heads_per_layer-8_seed-{seed}": loss for seed, loss in enumerate(shallow) if loss is not None}
    ends |= {f"heads_per_layer-1_seed-{seed}": loss for seed, loss in enumerate(deep) if loss is not None}
    axes = ["heads_per_layer=8,1", f"seed={','.join(map(str, seeds))}"]
    return write_sweep(path, load_fields("evidence", "heads"), axes, ends).path


def test_two_groups_that_all_trained_are_compared_in_pairs(tmp_path):
    comparison = judge([heads(tmp_path / "s", SHALLOW, DEEP)])
    assert verdicts(comparison) == [None, HIGHER]
    assert difference(comparison).paired
    assert difference(comparison).mean == pytest.approx(sum(DEEP) / 5 - sum(SHALLOW) / 5)
    assert title(comparison).startswith("3x8 admin ends 0.050 below 24x1 admin (95 % interval \u2212")
    assert "24x1 admin: A fair comparison: only the head grouping differs." in sentences(comparison)


NOT_IMPROVED = "never improved on the token frequencies (unigram entropy, 3.000)"


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


def test_naming_the_survivors_of_a_sweep_alone_changes_nothing(tmp_path):
    sweep = heads(tmp_path / "s", SHALLOW, [NAN, NAN, 2.3, 2.31, NAN])
    named = [sweep / "runs" / f"heads_per_layer-{heads}_seed-{seed}" for heads in (8, 1) for seed in (2, 3)]
    comparison = judge(named)
    assert verdicts(comparison) == [None, UNTRAINED]
    assert "of 24x1 admin trained" in title(comparison)
    assert "3 not named of 5 runs of 3x8 admin" in "".join(sentences(comparison))


def test_seeds_that_change_nothing_are_one_run(make_run: MakeRun):
    comparison = judge(planted(make_run, {"a": ({}, [2.0] * 3), "b": (DEEPER, [2.5] * 3)}))
    assert verdicts(comparison) == [None, TOO_FEW_SEEDS]
    assert [len(group.members) for group in comparison.experiment.groups] == [1, 1]
    assert sum("they count as one run" in problem for problem in comparison.experiment.problems) == 4


def test_a_copied_run_folder_is_no_cell_of_a_sweep(tmp_path):
    sweep = heads(tmp_path / "s", SHALLOW, DEEP)
    copied, over = sweep / "runs" / "heads_per_layer-1_seed-0", sweep / "runs" / "heads_per_layer-1_seed-1"
    shutil.rmtree(over)
    shutil.copytree(copied, over)
    comparison = judge([sweep])
    assert any(str(over) in problem and "train.seed is 1 there, 0 here" in problem for problem in comparison.experiment.problems)
    assert "of 5 runs of 24x1 admin." in "".join(sentences(comparison))


def test_pairs_have_both_seeds_in_common(make_run: MakeRun):
    shapes = (("a", {}, 2.0, (0, 1, 2)), ("b", DEEPER, 2.005, (1, 2, 0)))
    paths = [
        make_run(f"{name} {seed}", [4.0, 3.0], [end + 0.01 * seed], model=model, training={"seed": seed}, data={"seed": other})
        for name, model, end, order in shapes
        for seed, other in enumerate(order)
    ]
    assert not difference(judge(paths)).paired


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


def test_losses_in_other_units_are_not_compared(make_run: MakeRun):
    comparison = judge([make_run("a", [4.0, 3.0], [2.0]), make_run("b", [4.0, 3.5], [1.0], data={"tokenizer": "bytes"})])
    assert verdicts(comparison) == [None, OTHER_UNIT]
    assert "the tokenizer differs" in title(comparison)


FACTORS = {
    "head grouping": {f"model.{name}": value for name, value in DEEPER.items()},
    "depth": {"model.num_layers": 4},
    "depth at equal size": {"model.layers_at_equal_size": 4},
    "width of a head": {"model.heads_at_equal_width": 4},
    "width": {"model.mlp_dim": 1024},
    "residual scheme": {"model.residual": "pre_ln"},
    "positions": {"model.positions": "sinusoidal"},
    "normalisation": {"model.qk_norm": True},
}


@pytest.mark.parametrize("name", FACTORS)
def test_the_factor_of_a_treatment_is_named(make_config: Callable[..., Any], name: str):
    def config(**changes: Any) -> Any:
        return make_config("bert", "2l8h", **{"model.heads_per_layer": 0}, **changes)

    assert factors(config(**FACTORS[name]), config()) == (name,)
    if name != "residual scheme":
        both = factors(config(**FACTORS[name], **FACTORS["residual scheme"]), config())
        assert set(both) == {name, "residual scheme"}


@pytest.mark.parametrize(
    ("deep", "grouping"), [((4, 4, 2, 128), True), ((4, 2, 2, 128), False), ((2, 4, 2, 128), False), ((4, 4, 2, 64), False)]
)
def test_both_stacks_and_their_feed_forward_are_regrouped_or_nothing_is(make_config: Callable[..., Any], deep: Any, grouping: bool):
    def config(*sizes: int) -> Any:
        names = ("num_layers", "num_decoder_layers", "num_heads", "mlp_dim")
        shape = {f"model.{name}": size for name, size in zip(names, sizes, strict=True)}
        return make_config("translation", "tiny", **{"model.heads_per_layer": 0}, **shape)

    assert (factors(config(*deep), config(2, 2, 4, 256)) == ("head grouping",)) == grouping


def test_heads_of_keys_and_values_are_a_factor(make_config: Callable[..., Any]):
    shared, whole = make_config("gpt", "6l4h_gqa"), make_config("gpt", "6l4h")
    assert factors(make_config("gpt", "12l2h_gqa"), shared) == ("head grouping",)
    assert factors(shared, whole) == ("heads a layer",)
    sized = make_config("gpt", "6l4h", **{"model.kv_heads_at_equal_size": 2})
    assert factors(sized, whole) == ("heads of keys and values at equal size",)
    assert set(factors(make_config("gpt", "6l4h_gqa", **{"model.mlp_dim": 360}), whole)) == {"heads a layer", "width"}
    assert factors(make_config("gpt", "6l4h", **{"model.mlp_dim": 353}), whole) == ("width",)
    assert factors(make_config("gpt", "6l4h_gqa", **{"model.heads_at_equal_width": 2}), shared) == ("width of a head",)
    assert set(factors(make_config("gpt", "12l2h_gqa"), whole)) == {"heads a layer", "depth", "width"}


def test_passes_over_the_layers_are_a_factor(make_config: Callable[..., Any]):
    """With as many layers passed, what differs is that they are shared."""
    looped, plain = make_config("gpt", "6l4h_x2"), make_config("gpt", "6l4h")
    assert factors(looped, plain) == ("passes over the layers",)
    assert factors(looped, make_config("gpt", "6l4h", **{"model.num_layers": 12})) == ("sharing of the layers",)
    assert set(factors(looped, make_config("gpt", "12l2h"))) == {"depth", "passes over the layers", "heads a layer", "width"}


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
    assert "it has 3.7 % more parameters" in said


def test_how_often_a_curve_was_evaluated_changes_nothing(make_run: MakeRun):
    """The same curve, validated every 10 steps and every 100."""
    curve = [3.0 - 0.9 * (1 - 0.9**step) + 0.02 * math.sin(step) for step in range(1, 31)]
    often = make_run("often", [4.0, 3.0], curve, training={"seed": 0})
    seldom = make_run("seldom", [4.0, 3.0], training={"seed": 1, "num_steps": 300}, model={"residual": "pre_ln"})
    rows = [row for row in (often / "metrics.jsonl").read_text().splitlines() if '"validation"' in row]
    with open(seldom / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.writelines(row + "\n" for row in rows[9::10])
    one, other = (list(values.costs["step"].values()) for values in measure_all(load_experiment([often, seldom])).values)
    assert one == other


RATES = ["lr=1e-3,2e-3,4e-3,8e-3", "heads_per_layer=8,1", "seed=0,1,2,3,4"]


def rates(path: Path, loss: Callable[[int, float, int], float]) -> Path:
    ends = {
        f"learning_rate-{rate}_heads_per_layer-{heads}_seed-{seed}": loss(heads, rate, seed)
        for rate in (0.001, 0.002, 0.004, 0.008)
        for heads in (8, 1)
        for seed in range(5)
    }
    return write_sweep(path, load_fields("evidence", "heads"), RATES, ends).path


def best_rate(group: Group) -> float | None:
    return group.choice.optimum.rate if group.choice and group.choice.optimum else None


def test_each_shape_at_its_own_best_rate(tmp_path):
    def loss(heads: int, rate: float, seed: int) -> float:
        best = 0.002 if heads == 1 else 0.004
        noise = 0.003 * math.sin(7 * seed + 1000 * rate + heads)
        return 2.0 + 0.3 * (heads == 1) + 0.1 * math.log2(rate / best) ** 2 + noise

    comparison = judge([rates(tmp_path / "s", loss)], over="lr")
    assert [best_rate(group) for group in comparison.experiment.groups] == [0.004, 0.002]
    assert [len(group.members) for group in comparison.experiment.groups] == [3, 3]
    assert verdicts(comparison) == [None, HIGHER]
    said = list(sentences(comparison))
    assert "The best learning_rate of 24x1 admin is 0.002, of 0.001 to 0.008 (8 trials)." in said
    assert "24x1 admin: A fair comparison" in "".join(said), said


def test_a_best_rate_at_the_edge_of_the_grid_is_no_verdict_against_the_shape(tmp_path):
    def loss(heads: int, rate: float, seed: int) -> float:
        slope = -0.3 if heads == 1 else 0.2  # the deep shape still gains at the highest rate
        return 2.0 + 0.5 * (heads == 1) + slope * math.log2(rate / 0.001) / 3 + 0.003 * math.sin(7 * seed + 999 * rate + heads)

    comparison = judge([rates(tmp_path / "s", loss)], over="lr")
    assert verdicts(comparison) == [None, LEVEL]
    assert any("at the edge of those tried" in sentence for sentence in sentences(comparison))


def test_a_measure_is_chosen_by_and_hides_in_its_own_unit(tmp_path):
    """Accuracy is best at 2e-3, and loss at 4e-3; more is better, and the grid hides little."""

    def loss(heads: int, rate: float, seed: int) -> float:
        return 2.0 + 0.1 * (heads == 1) + math.log2(rate / 0.004) ** 2 / 9 + 0.003 * math.sin(7 * seed + 1000 * rate + heads)

    def accuracy(heads: int, rate: float, seed: int) -> float:
        return 0.5 - 0.01 * (heads == 1) - 0.002 * math.log2(rate / 0.002) ** 2 + 0.0005 * math.sin(5 * seed + 700 * rate + heads)

    sweep = rates(tmp_path / "s", loss)
    for heads in (8, 1):
        for rate in (0.001, 0.002, 0.004, 0.008):
            for seed in range(5):
                run = sweep / "runs" / f"learning_rate-{rate}_heads_per_layer-{heads}_seed-{seed}"
                edit_last_row(run, accuracy=accuracy(heads, rate, seed))
    (comparison,) = compared([sweep], over="lr", measure="accuracy")
    groups = comparison.experiment.groups
    assert [best_rate(group) for group in groups] == [0.002, 0.002]
    assert all(0 < hidden < 0.003 and error < 0.003 for hidden, error in (group.hidden for group in groups))  # nats would be 0.03
    assert verdicts(comparison) == [None, LOWER]
    low, high = difference(comparison).low, difference(comparison).high
    assert low == pytest.approx(difference(comparison).mean - (high - difference(comparison).mean), abs=0.003) and low > -0.03
    # The deep shape may be better by what its grid hides, which is higher.
    silent = dataclasses.replace(groups[0], choice=None)
    alone, plain = (
        compare(dataclasses.replace(comparison.experiment, groups=(silent, deep)), "accuracy")
        for deep in (groups[1], dataclasses.replace(groups[1], choice=None))
    )
    assert difference(alone).high - difference(plain).high > groups[1].hidden[0] > difference(alone).low - difference(plain).low
    assert any(" by validation accuracy (" in sentence for sentence in sentences(comparison))


def compared(paths: Sequence[Path], by: Sequence[str] = (), measure: str = LOSS, **asked: Any) -> list[Comparison]:
    sections = tune_sections(load_experiment(paths), by, measure=measure, **asked)
    return judge_page([compare(section, measure, section=words) for words, section in sections.items()])[0]


def test_a_sweep_is_judged_as_it_was_planned(tmp_path):
    def loss(heads: int, rate: float, seed: int) -> float:
        return 2.0 + 0.3 * (heads == 1) + 0.1 * math.log2(rate / 0.003) ** 2 + 0.003 * math.sin(7 * seed + 1000 * rate + heads)

    sweep = SweepFolder(rates(tmp_path / "s", loss))
    assert len(compared([sweep.path])[0].experiment.groups) == 8
    sweep.open_for(dataclasses.replace(sweep.read_plan(), choosing=Choosing("lr", 1)))
    for asked, seeds in (({}, 4), ({"over": "optimizer.learning_rate"}, 4), ({"over": "lr", "choosing": 3}, 2)):
        (comparison,) = compared([sweep.path], **asked)
        assert [len(group.members) for group in comparison.experiment.groups] == [seeds, seeds]
    assert len(compared([sweep.path], over="none")[0].experiment.groups) == 8
    assert [len(each.experiment.groups) for each in compared([sweep.path], by=["lr"])] == [4, 4]


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
    def loss(heads: int, rate: float, seed: int) -> float:
        return 2.0 + 0.3 * (heads == 1) + 0.1 * math.log2(rate / 0.003) ** 2 + 0.003 * math.sin(7 * seed + 1000 * rate + heads)

    several, one = rates(tmp_path / "several", loss), heads(tmp_path / "one", SHALLOW, DEEP)
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

    def loss(heads: int, rate: float, seed: int) -> float:
        best = 0.002 if last == 0.001 else 0.004
        return 2.0 + 0.1 * math.log2(rate / best) ** 2 + 0.003 * math.sin(7 * seed + 1000 * rate + heads)

    sweep = rates(tmp_path / "s", loss)
    assert all(math.isfinite(group.hidden[1]) for group in judge([sweep], over="lr").experiment.groups)
    for seed in range(5):
        shutil.rmtree(sweep / "runs" / f"learning_rate-{last}_heads_per_layer-1_seed-{seed}")
    comparison = judge([sweep], over="lr")
    assert [math.isinf(group.hidden[1]) for group in comparison.experiment.groups] == [False, True]
    assert any("24x1 admin: its best learning_rate is at the edge" in sentence for sentence in sentences(comparison))


def test_a_rate_at_which_a_choosing_run_diverged_is_not_chosen(tmp_path):
    def loss(heads: int, rate: float, seed: int) -> float:
        if heads == 1 and rate == 0.004 and seed == 1:
            return NAN
        return 2.0 + 0.2 * math.log2(rate / 0.004) ** 2 + 0.003 * math.sin(7 * seed + 1000 * rate + heads)

    assert best_rate(judge([rates(tmp_path / "s", loss)], over="lr").experiment.groups[1]) not in (None, 0.004)


def test_a_shape_that_trains_at_no_rate_has_no_verdict(tmp_path):
    comparison = judge([rates(tmp_path / "s", lambda heads, rate, seed: NAN if heads == 1 else 2.0 + rate + seed / 99)], over="lr")
    assert title(comparison).startswith("No verdict: at no learning_rate did all choosing runs of 24x1 admin train")


def test_a_swept_field_is_the_treatment(tmp_path):
    ends = {
        f"learning_rate-{rate}_seed-{seed}": 2.0 + rate + seed / 997 + rate * seed for rate in (0.001, 0.004) for seed in range(4)
    }
    sweep = write_sweep(tmp_path / "s", load_fields("evidence", "heads"), ["lr=1e-3,4e-3", "seed=0,1,2,3"], ends).path
    finding = judge([sweep]).findings[1]
    assert finding is not None and finding.fairness.factors == ("learning_rate",) and finding.fairness.comparable


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
    comparisons, changes, _ = judge_page([compare(section, section=words) for words, section in sections.items()])
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
    comparisons, (change,), _ = judge_page([compare(section, section=words) for words, section in sections.items()])
    assert all(finding.fairness.comparable for each in comparisons for finding in each.findings if finding)
    assert change_words(change).partition("chance")[2] == f"{words}."


def test_the_baseline_is_called_by_its_group_or_by_a_run(tmp_path):
    sweep = heads(tmp_path / "s", SHALLOW, DEEP)
    run = "heads_per_layer-1_seed-3"
    for name in ("24x1 admin", run, str(sweep / "runs" / run)):
        assert verdicts(judge([sweep], baseline=name)) == [LOWER, None]
    with pytest.raises(UserError, match="allowed: 3x8 admin and 24x1 admin"):
        judge([sweep], baseline="nobody")


def edit_last_row(folder: Path, **fields: Any) -> None:
    rows = (folder / "metrics.jsonl").read_text().splitlines()
    rows[-1] = json.dumps(json.loads(rows[-1]) | fields)
    (folder / "metrics.jsonl").write_text("\n".join(rows) + "\n")


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
    trained = Values({(0, 0): 2.0}, {(0, 0): np.array([1.9, 2.1])}, {}, {}, frozenset())
    assert sampling_error(Values({}, {}, {}, {}, frozenset()), trained) == 0


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


def test_a_run_that_reached_the_target_is_said_to_have(make_run: MakeRun):
    """At steps 10, 20 and 30, and at 5, 10 and 15: at the common one neither has reached it."""
    one = make_run("a", [4.0] * 30, [3.5, 3.0, 2.0])
    other = make_run("b", [4.0] * 30, [3.5, 3.6, 2.1], model=DEEPER, training={"num_steps": 15})
    rows = [json.loads(row) for row in (other / "metrics.jsonl").read_text().splitlines()]
    kept = [row | {"step": row["step"] // (1 + ("batch" in row))} for row in rows if row["step"] <= 15 or "batch" in row]
    (other / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sorted(kept, key=lambda row: row["step"])))
    values = measure_all(load_experiment([one, other]), target=3.2).values
    assert [(list(each.costs["step"].values()), len(each.at_most)) for each in values] == [([20.0], 1), ([15.0], 1)]


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
