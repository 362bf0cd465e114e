"""Tests of the results by group, against hand-computed cases: crossings, mean losses, truncated,
resumed and gappy runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhsh.report.compare.comparison import Comparison, compare
from mhsh.report.compare.measures import LEVEL, measure_rows
from mhsh.report.compare.results import Crossing, Results, crossing, mean_loss, measure_groups
from mhsh.report.compare.table import as_markdown
from mhsh.run_folder import RunFolder
from mhsh.verdict.runs import load_runs

NAN = math.nan


def results(*paths: Path, target: float | None = None, baseline: str | None = None) -> Results:
    return compared(*paths, target=target, baseline=baseline).results


def compared(*paths: Path, target: float | None = None, baseline: str | None = None) -> Comparison:
    return compare(load_runs(paths), target, baseline)


@pytest.mark.parametrize(
    ("loss", "target", "place"),
    [
        ([4.0, 3.0, 2.0], 2.5, Crossing(20.0, 30.0, 25.0, True)),
        ([4.0, 3.0, 2.0], 3.0, Crossing(10.0, 20.0, 20.0, True)),  # at a row exactly
        ([4.0, 3.0, 2.0], 4.5, Crossing(0.0, 10.0, 10.0, False)),  # there from the first row on
        ([4.0, 3.0, 2.0], 1.9, None),
        ([4.0, 2.0, 5.0], 3.0, Crossing(10.0, 20.0, 15.0, True)),  # the first crossing counts, though it rises again
        ([4.0, NAN, 2.0], 3.0, Crossing(10.0, 30.0, 30.0, False)),  # no interpolation over a gap
        ([NAN, NAN, NAN], 3.0, None),
        ([NAN, 2.0], 3.0, Crossing(0.0, 20.0, 20.0, False)),
        ([], 3.0, None),
    ],
)
def test_the_first_crossing_by_hand(loss: list[float], target: float, place: Crossing | None) -> None:
    assert crossing(np.arange(10.0, 10.0 * len(loss) + 5, 10), np.array(loss), target) == place


@given(losses=st.lists(st.floats(0.5, 8), min_size=2, max_size=20), target=st.floats(0.5, 8))
def test_the_curve_is_at_the_target_where_it_crosses_and_above_before(losses: list[float], target: float) -> None:
    x, loss = np.arange(1.0, len(losses) + 1), np.array(losses)
    place = crossing(x, loss, target)
    if place is None:
        assert (loss > target).all()
    else:
        assert place.low < place.interpolated <= place.high or place.at_most
        assert np.interp(place.interpolated, x, loss) == pytest.approx(min(target, losses[0]))
        assert (loss[x <= place.low] > target).all() and loss[x == place.high] <= target


def decaying(make_run: Callable[..., Path], name: str, rate: float, every: int, seed: int = 0) -> Path:
    """A run whose loss falls as 5 exp(-rate * step), evaluated at multiples of `every`."""
    path = make_run(name, model={"num_layers": 3 if name.startswith("b") else 2}, training={"seed": seed, "eval_interval": every})
    steps = range(every, 4001, every)
    rows = [
        {
            "step": step,
            "split": "validation",
            "tokens": 8 * step,
            "flops": step,
            "seconds": step,
            "loss": 5 * math.exp(-rate * step),
        }
        for step in steps
    ]
    RunFolder(path).append_metrics(rows)
    return path


def test_the_spacing_of_evaluations_makes_no_difference(make_run) -> None:
    """Equal curves, evaluated every 50 and every 500 steps, three seeds each."""
    often = [decaying(make_run, f"a{seed}", 1e-3 * (1 + seed / 50), 50, seed) for seed in range(3)]
    seldom = [decaying(make_run, f"b{seed}", 1e-3 * (1 + seed / 50), 500, seed) for seed in range(3)]
    cost = results(*often, *seldom, target=2.0).scores[1].cost_to_target["step"]
    assert cost.difference is not None and cost.difference.has_interval and not cost.difference.excludes_zero
    assert cost.spacing is not None and cost.spacing[0] < 0 < cost.spacing[1]
    # A difference beyond the spacing is seen.
    slow = [decaying(make_run, f"bb{seed}", 4e-4 * (1 + seed / 50), 500, seed) for seed in range(3)]
    found = results(*often, *slow, target=2.0).scores[1].cost_to_target["step"]
    assert found.difference is not None and found.difference.excludes_zero and found.difference.mean > 0


def test_a_target_reached_before_the_first_evaluation_is_an_upper_bound(make_run) -> None:
    """True crossings at steps 70 and 140, evaluated every 400 steps."""
    compared_runs = compared(
        decaying(make_run, "a", math.log(2) / 70, 400), decaying(make_run, "b", math.log(2) / 140, 400), target=2.5
    )
    cost = compared_runs.results.scores[1].cost_to_target["step"]
    assert cost.crossings[0] is not None and cost.crossings[0].at_most
    assert cost.bounds == (0.0, 400.0) and cost.spacing == (-400.0, 400.0)
    (row,) = [row for row in measure_rows(compared_runs) if row.name.startswith("steps to")]
    assert [cell.number for cell in row.cells] == ["at most 400", "at most 400"]
    assert row.cells[1].sign == LEVEL  # no difference beyond the spacing of the evaluations


def test_the_default_target_is_one_that_a_run_reached_which_left_the_plateau(make_run) -> None:
    stuck = make_run("stuck", [3.0] * 30, [2.99, 2.98, 2.97])
    trained = [make_run(name, [2.0] * 30, [2.5, 2.0, last], model={"num_layers": 3}) for name, last in (("a", 1.5), ("b", 1.7))]
    assert results(stuck, *trained).target == 1.7
    assert results(stuck).target == 2.97  # where none left it, the worst


def test_a_skipped_step_near_the_end_is_no_divergence(make_run) -> None:
    """Step 95 of 100 had no finite loss; all others had."""
    losses = [3.0 - step / 100 for step in range(100)]
    losses[94] = NAN
    runs = [make_run(f"a{seed}", losses, [2.9, 2.5, 2.1], training={"seed": seed}) for seed in (0, 1)]
    assert results(*runs).ranked == (0,)
    gave_up = make_run("gave_up", losses, [2.9, 2.5, 2.1], record={"outcome": "diverged"})
    assert results(gave_up).ranked == ()


def test_a_mean_loss_by_hand() -> None:
    x, loss = np.array([0.0, 1.0, 3.0, 4.0]), np.array([5.0, 3.0, 3.0, 1.0])
    assert mean_loss(x, loss, 0.0, 4.0) == (4.0 + 6.0 + 2.0) / 4
    # From 0.5 (loss 4) to 3.5 (loss 2): 0.5 * 3.5 + 2 * 3 + 0.5 * 2.5.
    assert mean_loss(x, loss, 0.5, 3.5) == 9.0 / 3
    assert math.isnan(mean_loss(x, np.array([5.0, NAN, 3.0, 1.0]), 0.0, 4.0))
    # A gap outside the range costs nothing.
    assert mean_loss(x, np.array([5.0, 3.0, 3.0, NAN]), 1.0, 3.0) == 3.0


def test_two_groups_of_two_seeds_by_hand(make_run) -> None:
    fast = [make_run(f"fast-{s}", [5.0] * 30, [4.0, 3.0, 2.0 + s], training={"seed": s}) for s in (0, 1)]
    slow = [
        make_run(f"slow-{s}", [5.0] * 30, [5.0, 4.0, 3.2 + s], training={"seed": s}, model={"residual": "pre_ln"}) for s in (0, 1)
    ]
    found = results(*fast, *slow, target=4.2)
    ours, theirs = found.scores
    assert found.measure == "final validation loss"
    assert found.ranked == (0, 1)
    assert found.target == 4.2
    assert ours.final.each == {0: 2.0, 1: 3.0}
    assert ours.final.estimate is not None
    assert ours.final.estimate.mean == 2.5
    assert ours.final.estimate.high == pytest.approx(2.5 + 12.706205 / 2)
    assert ours.final.difference is None
    assert theirs.final.difference is not None
    assert theirs.final.paired
    assert (theirs.final.difference.mean, theirs.final.difference.high) == pytest.approx((1.2, 1.2))
    # 4.2 is passed before the first row by the one, and by the other at 0.8 of the way from step 10
    # to 20.
    assert ours.cost_to_target["step"].each == {0: 10.0, 1: 10.0}
    assert ours.cost_to_target["step"].bounds == (0.0, 10.0)
    assert theirs.cost_to_target["step"].each == pytest.approx({0: 18.0, 1: 18.0})
    assert theirs.cost_to_target["tokens"].each == pytest.approx({0: 512 * 18.0, 1: 512 * 18.0})
    assert theirs.cost_to_target["flops"].each == pytest.approx({0: 18e9, 1: 18e9})
    assert theirs.cost_to_target["seconds"].each == pytest.approx({0: 1.8, 1: 1.8})
    assert found.ranges["step"] == (10.0, 30.0)
    assert ours.mean_loss["step"].each == {0: 3.0, 1: (3.5 + 3.0) / 2}
    assert ours.mean_loss["seconds"].each == pytest.approx(ours.mean_loss["step"].each)


def test_metrics_of_the_last_validation_row_have_intervals_too(make_run) -> None:
    """Mean, difference and t-interval of two seeds, by hand; one run lacks the metric."""
    bleu = {"a-0": 30.0, "a-1": 32.0, "b-0": 31.5, "b-1": 33.0}
    paths = []
    for name, score in bleu.items():
        shape, seed = name.split("-")
        path = make_run(
            name, [3.0] * 20, [3.0], training={"seed": int(seed)}, model={"residual": {"a": "admin", "b": "pre_ln"}[shape]}
        )
        last = {"step": 20, "split": "validation", "tokens": 10240, "flops": 2e10, "seconds": 2.0, "loss": 2.0, "bleu": score}
        RunFolder(path).append_metrics([last])
        paths.append(path)
    comparison = compared(*paths)
    ours, theirs = (scores.metrics["bleu"] for scores in comparison.results.scores)
    assert (ours.each, theirs.each) == ({0: 30.0, 1: 32.0}, {0: 31.5, 1: 33.0})
    assert theirs.difference is not None
    assert theirs.difference.high == pytest.approx(1.25 + 12.706205 * 0.25)
    (row,) = (row for row in measure_rows(comparison) if row.name == "final validation bleu")
    assert [(cell.number, cell.lowest) for cell in row.cells] == [("31", False), ("32.25", False)]
    assert row.cells[1].change == "+1.25 (\u22121.927 to +4.427)" and row.cells[1].sign == LEVEL
    page = as_markdown(comparison, "curves.png").decode()
    assert "| group | final validation bleu |\n| --- | --- |\n| a | 31 (18.29 to 43.71) |" in page
    assert "\n| b | 32.25 (22.72 to 41.78); +1.25 (\u22121.927 to +4.427) \u2248 |\n" in page
    other = make_run("c", [3.0] * 20, [2.5, 2.0], model={"residual": "rezero"})
    assert "| not known |" in as_markdown(compared(*paths, other), "curves.png").decode()
    assert compared(*paths, other).results.scores[2].metrics["bleu"].estimate is None


def test_one_seed_has_numbers_and_no_interval(make_run) -> None:
    found = results(make_run("a", [3.0] * 20, [2.5, 2.0]), make_run("b", [3.0] * 20, [2.6, 2.2]))
    against = found.scores[1].final.difference
    assert against is not None
    assert against.mean == pytest.approx(0.2)
    assert not against.has_interval


def test_a_run_that_does_not_reach_the_target_is_counted(make_run) -> None:
    runs = [make_run(f"a-{s}", [3.0] * 20, [3.0, 2.4 + s / 4], training={"seed": s}) for s in (0, 1)]
    reach = results(*runs, target=2.5).scores[0].cost_to_target["step"]
    assert reach.each[0] == pytest.approx(10 + 10 * 0.5 / 0.6)
    assert math.isnan(reach.each[1])
    assert (reach.known, len(reach.each), reach.estimate) == (1, 2, None)


def test_a_truncated_run_shortens_the_common_range_and_nothing_else(make_run) -> None:
    whole = make_run("whole", [3.0] * 40, [4.0, 3.0, 2.0, 1.0])
    cut = make_run("cut", [3.0] * 40, [4.0, 3.0, 2.0, 1.0], model={"residual": "pre_ln"})
    metrics = cut / "metrics.jsonl"
    metrics.write_bytes(b"".join(metrics.read_bytes().splitlines(keepends=True)[:30])[:-9])
    found = results(whole, cut)
    assert found.ranges["step"] == (10.0, 20.0)
    assert [scores.mean_loss["step"].each for scores in found.scores] == [{0: 3.5}, {0: 3.5}]
    assert [scores.final.each for scores in found.scores] == [{0: 1.0}, {0: 3.0}]


def test_a_resumed_run_is_one_clean_curve(make_run, read_steps: Callable[[Path], list[int]]) -> None:
    resumed, straight = (
        make_run("resumed", [3.0] * 40, [4.0, 3.0, 2.0, 1.0]),
        make_run("straight", [3.0] * 40, [4.0, 3.0, 2.0, 1.0]),
    )
    folder = RunFolder(resumed)
    later = [row for row in folder.read_metrics().rows if row["step"] > 20]
    folder.cut_metrics(20, 22, False)
    folder.append_metrics(later)
    found = results(resumed, straight)
    assert read_steps(resumed) == list(range(1, 41))
    one, other = found.scores
    assert one.final.each == other.final.each == {0: 1.0}
    assert {axis: score.each for axis, score in one.mean_loss.items()} == {
        axis: score.each for axis, score in other.mean_loss.items()
    }
    assert {axis: score.each for axis, score in one.cost_to_target.items()} == {
        axis: score.each for axis, score in other.cost_to_target.items()
    }
    assert found.ranges["step"] == (10.0, 40.0)


def test_rows_logged_twice_are_no_curve(make_run, read_steps: Callable[[Path], list[int]]) -> None:
    path = make_run("a", [3.0, 2.0, 1.0])
    lines = (path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (path / "metrics.jsonl").write_bytes(b"".join([*lines, lines[-1]]))
    assert read_steps(path) == [1, 2, 3]
    assert "step 3 is there twice" in load_runs([path]).runs[0].problems[0]


@pytest.fixture
def read_steps() -> Callable[[Path], list[int]]:
    return lambda path: load_runs([path]).runs[0].curves["train"].x["step"].astype(int).tolist()


def test_a_group_with_a_diverged_run_is_not_ranked_and_not_averaged(make_run) -> None:
    good = make_run("a", [3.0] * 20, [3.0, 2.5])
    half = [
        make_run(f"b-{s}", [3.0] * 20, [3.0, loss], training={"seed": s}, model={"residual": "pre_ln"})
        for s, loss in ((0, 2.0), (1, NAN))
    ]
    found = results(good, *half)
    assert found.ranked == (0,)
    assert found.scores[1].final.estimate is None
    assert found.scores[1].final.known == 1
    assert found.scores[1].best.each == {0: 2.0, 1: 3.0}
    assert math.isnan(found.scores[1].mean_loss["step"].each[1])


def test_without_validation_in_every_run_training_is_measured(make_run) -> None:
    found = results(make_run("a", [4.0, 3.0, 2.0], [1.0]), make_run("b", [4.0, 3.5, 3.0]))
    assert found.measure == "final training loss"
    assert [scores.final.each for scores in found.scores] == [{0: 2.0}, {0: 3.0}]


def test_nothing_to_measure(make_run) -> None:
    found = results(make_run("a"), make_run("b", [NAN]))
    assert found.target is None
    assert found.ranked == ()
    assert set(found.ranges.values()) == {None}
    assert measure_groups([], []).scores == ()


def test_the_baseline_is_a_group_or_a_run_of_it(make_run) -> None:
    runs = [
        make_run("a", [3.0]),
        *(make_run(f"b/seed-{s}", [2.0], training={"seed": s}, optimizer={"beta2": 0.98}) for s in (0, 1)),
    ]
    for name in ("b", "seed-1", str(runs[2])):
        found = results(*runs, baseline=name)
        assert found.baseline == 1
        assert found.scores[0].final.difference is not None
        assert found.scores[0].final.difference.mean == 1.0
