"""Which runs are one group, how groups are called, and what their runs started from."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhsh.errors import UserError
from mhsh.storage.run_folder import RunFolder
from mhsh.verdict.experiment import load_experiment
from mhsh.verdict.fairness import fairness
from mhsh.verdict.outcomes import crossing, measure_all
from tests.judging import DEEP, SHALLOW, heads
from tests.planted import MakeRun, lineage_of

NAN = math.nan


def grouped(*paths: Path) -> list[tuple[str, list[str]]]:
    """Names of groups, and of their runs."""
    return [(group.name, [run.name for run in group.runs]) for group in load_experiment(paths).groups]


def test_runs_that_differ_in_their_seeds_alone_are_one_group(make_run: MakeRun):
    runs = [make_run(f"deep/seed-{seed}", [3.0], training={"seed": seed}) for seed in (10, 1, 0)]
    wide = make_run("wide", [3.0], optimizer={"beta2": 0.5})
    assert grouped(runs[0], wide, *runs[1:]) == [
        ("2x8 admin, beta2 0.999", ["seed-0", "seed-1", "seed-10"]),
        ("2x8 admin, beta2 0.5", ["wide"]),
    ]


def test_a_second_run_of_the_same_seed_starts_another_group(make_run: MakeRun):
    a, b = make_run("x/s0", [3.0]), make_run("x/s1", [3.0], training={"seed": 1})
    again = make_run("y", [3.0])
    assert grouped(a, b, again) == [("2x8 admin", ["s0", "s1"]), ("2x8 admin (2)", ["y"])]


def test_a_copy_of_a_run_counts_once_also_where_it_lacks_the_end(make_run: MakeRun, tmp_path: Path):
    runs = [make_run(f"all/runs/s{seed}", [4.0, 3.0, 2.0 + seed], training={"seed": seed}) for seed in range(3)]
    earlier = shutil.copytree(tmp_path / "all" / "runs", tmp_path / "all" / "backup")
    rows = (earlier / "s1" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (earlier / "s1" / "metrics.jsonl").write_text("".join(rows[:2]))
    experiment = load_experiment([tmp_path / "all"])
    [group] = experiment.groups
    assert [len(run.curves["train"]) for run in group.runs] == [3, 3, 3] and runs[1] in [run.path for run in group.runs]
    assert sum("they count as one run" in line for line in experiment.problems) == 3


def test_a_copy_of_a_sweep_is_not_compared_beside_it(tmp_path: Path):
    sweep = heads(tmp_path / "heads", SHALLOW, DEEP)
    earlier = [shutil.copytree(sweep, tmp_path / name) for name in ("day-1", "day-2")]
    shutil.rmtree(earlier[0] / "runs" / "heads_per_layer-1_seed-4")
    experiment = load_experiment([tmp_path])
    assert [group.sweep for group in experiment.groups] == [str(earlier[1])] * 2 and len(experiment.runs) == 10
    assert [line.partition(":")[0] for line in experiment.problems] == [str(earlier[0]), str(sweep)]


def test_data_seeds_belong_together_only_where_each_run_has_its_own(make_run: MakeRun):
    def run(name: str, seed: int, data: int) -> Path:
        return make_run(name, [3.0], training={"seed": seed}, data={"seed": data})

    both = [run("a", 0, 7), run("b", 1, 8)]
    assert [runs for _, runs in grouped(*both)] == [["a", "b"]]
    assert [runs for _, runs in grouped(*both, run("again", 0, 7))] == [["a", "b"], ["again"]]
    assert [runs for _, runs in grouped(*both, run("third", 2, 7))] == [["a", "third"], ["b"]]


def two_phases(make_run: MakeRun, name: str, seed: int, steps: int = 20) -> Path:
    """A second phase from a first one of its own."""
    first = make_run(f"first-{name}-{seed}", [3.0] * steps, training={"seed": seed})
    start = {"folder": str(first), "step": steps, "lineage": lineage_of(first, steps)}
    training = {"seed": seed, "start_from": str(first)}
    return make_run(f"{name}-{seed}", [2.0 + seed] * 20, training=training, record={"started_from": start})


def test_seeds_that_each_start_from_a_first_phase_of_their_own_are_one_group(make_run: MakeRun):
    runs = [two_phases(make_run, "two", seed) for seed in range(3)]
    assert [runs for _, runs in grouped(*runs)] == [["two-0", "two-1", "two-2"]]


def test_first_phases_of_other_lengths_are_other_groups_and_not_comparable(make_run: MakeRun):
    long, short = two_phases(make_run, "long", 0, steps=20), two_phases(make_run, "short", 0, steps=10)
    one, other = load_experiment([long, short]).groups
    assert "start" in fairness(other, one).unequal


@pytest.mark.parametrize("is_recorded", [True, False])
def test_runs_of_other_imported_checkpoints_are_other_groups_and_not_comparable(make_run: MakeRun, is_recorded: bool):
    """Though their configs are equal. A run that began before run.json said it has the file."""
    runs = [make_run(f"run-{seed}", [3.0 - seed] * 20, training={"seed": seed}) for seed in range(4)]
    for run, weights in zip(runs, ("one", "one", "two", None), strict=True):
        if weights is not None:
            (run / "imported.json").write_text(json.dumps({"sha256": {"model.safetensors": weights}, "fresh": [], "labels": []}))
        if is_recorded:
            folder = RunFolder(run)
            folder.write_run(folder.read_run() | {"imported": weights})
            (run / "imported.json").unlink(missing_ok=True)
    assert [names for _, names in grouped(*runs)] == [["run-0", "run-1"], ["run-2"], ["run-3"]]
    one, other, fresh = load_experiment(runs).groups
    assert "start" in fairness(other, one).unequal and "start" in fairness(fresh, one).unequal
    inherited = [lineage_of(run, 20)[0]["imported"] for run in runs]
    assert inherited[0] == inherited[1] and len({*inherited}) == 3 and inherited[3] is None


def test_a_copy_with_another_seed_is_no_other_run(make_run: MakeRun):
    """Its losses are edited too; its batches tell."""
    paths = [make_run(str(seed), [3.0, 2.0 + seed], data={"seed": seed}, training={"seed": seed}) for seed in range(4)]
    for seed, path in enumerate(paths):
        rows = [json.loads(row) for row in (path / "metrics.jsonl").read_text().splitlines()]
        batches = [{"batch": f"{min(seed, 2)}-{row['step']}"} for row in rows]  # the last one's are the third's
        named = [json.dumps(row | batch) for row, batch in zip(rows, batches, strict=True)]
        (path / "metrics.jsonl").write_text("\n".join(named) + "\n")
    experiment = load_experiment(paths)
    assert [member.run.path for group in experiment.groups for member in group.members if member.run] == paths[:3]
    (line,) = experiment.problems
    assert line.startswith(f"{paths[3]}: its batches are those of {paths[2]}, of another data seed")


@pytest.mark.parametrize(
    ("loss", "target", "step"),
    [
        ([4.0, 3.0, 2.0], 2.5, 25.0),
        ([4.0, 3.0, 2.0], 3.0, 20.0),  # at a row exactly
        ([4.0, 3.0, 2.0], 4.5, NAN),  # there from the first row on
        ([4.0, 3.0, 2.0], 1.9, NAN),
        ([4.0, 2.0, 5.0], 3.0, 15.0),  # the first crossing counts, though it rises again
        ([4.0, NAN, 2.0], 3.0, NAN),  # no interpolation over a gap
        ([NAN, NAN, NAN], 3.0, NAN),
        ([], 3.0, NAN),
    ],
)
def test_the_first_crossing_by_hand(loss: list[float], target: float, step: float):
    np.testing.assert_equal(crossing(np.arange(10.0, 10.0 * len(loss) + 5, 10), np.array(loss), target), step)


@given(losses=st.lists(st.floats(0.5, 8), min_size=2, max_size=20), target=st.floats(0.5, 8))
def test_the_curve_is_at_the_target_where_it_crosses_and_above_before(losses: Sequence[float], target: float):
    x, loss = np.arange(1.0, len(losses) + 1), np.array(losses)
    place = crossing(x, loss, target)
    if math.isnan(place):
        assert (loss > target).all() or loss[0] <= target
    else:
        assert np.interp(place, x, loss) == pytest.approx(target) and (loss[x < place] > target).all()


def test_a_measure_that_no_run_logged_is_named(make_run: MakeRun):
    """Also where none has trained."""
    for name, loss in {"trained": 2.0, "stuck": 3.0}.items():
        experiment = load_experiment([make_run(name, [3.0], [loss])])
        with pytest.raises(UserError, match="--measure=bleu is not a number of the validation rows"):
            measure_all(experiment, "bleu")
