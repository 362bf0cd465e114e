"""Tests of `mhsh tuned`: chosen on some seeds, reported on others, with its budget and doubts."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markdown_it import MarkdownIt

from mhsh.cli.reports import tuned
from mhsh.errors import UserError
from mhsh.outcome import LEFT
from mhsh.report.sweep.cells import Sweep, SweptCell
from mhsh.report.sweep.tuning import tune
from mhsh.sweep.axes import Axis
from mhsh.sweep.folder import FINISHED, GAVE_UP, WAITING, CellState, PlannedCell
from mhsh.verdict.summary import LossAtStep, Summary
from tests.conftest import MakeConfig, load_fields
from tests.sweeps import write_sweep

RATE = "optimizer.learning_rate"
HEADS = "model.heads_per_layer"
EVIL = "text:<script>alert(1)</script>"

# By heads a layer and rate: the losses of seeds 0 to 4, of which 0 and 1 choose.
LOSSES = {
    (8, 0.001): (2.50, 2.50, 2.40, 2.40, 2.40),
    (8, 0.003): (2.40, 2.44, 2.60, 2.50, 2.70),  # chosen by luck
    (8, 0.01): (2.80, 2.80, 2.80, 2.80, 2.80),
    (1, 0.001): (2.55, 2.57, 2.61, 2.54, 2.68),
    (1, 0.003): (2.90, 2.90, 2.10, 2.10, 2.10),
    (1, 0.01): (2.45, math.nan, 2.10, 2.10, 2.10),  # diverges with seed 1
}


def name_of(heads: int, rate: float, seed: int) -> str:
    return f"heads_per_layer-{heads}_learning_rate-{rate}_seed-{seed}"


def write(path: Path, losses: Mapping[tuple[int, float], tuple[float, ...]] = LOSSES) -> Path:
    ends = {name_of(heads, rate, seed): loss for (heads, rate), row in losses.items() for seed, loss in enumerate(row)}
    axes = ["heads_per_layer=8,1", "lr=1e-3,3e-3,1e-2", "seed=0,1,2,3,4"]
    return write_sweep(path, load_fields("evidence", "heads"), axes, ends).path


@pytest.fixture
def in_memory(make_config: MakeConfig) -> Any:
    """in_memory(losses): a sweep of rates and seeds for one setting; losses of [rates, seeds]."""
    config = make_config("evidence", "heads")
    nothing: dict[str, Any] = dict.fromkeys((field.name for field in dataclasses.fields(Summary)), None)
    nothing |= {"name": "", "shape": "", "residual": "", "seed": 0, "outcome": LEFT, "has_problems": False}

    def make(losses: np.ndarray) -> Sweep:
        rates, seeds = ([float(value) for value in range(1, size + 1)] for size in losses.shape)
        cells = []
        for (i, rate), (j, seed) in itertools.product(enumerate(rates), enumerate(seeds)):
            point = LossAtStep(float(losses[i, j]), 10)
            summary = Summary(**{**nothing, "final_validation": point, "tokens": 7.0, "flops": 11.0})
            kind = FINISHED if math.isfinite(point.loss) else GAVE_UP if point.loss == math.inf else WAITING
            plan = PlannedCell(f"{i}-{j}", {RATE: rate, "seed": int(seed)}, config, {})
            cells.append(SweptCell(plan, CellState(kind), summary))
        axes = (Axis(RATE, tuple(rates)), Axis("seed", tuple(map(int, seeds))))
        return Sweep(axes, tuple(cells), ())

    return make


def test_the_choosing_seeds_choose_and_the_others_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = write(tmp_path / "s")
    assert tuned.run(str(folder), "learning_rate", "heads_per_layer", None) == 0
    out = capsys.readouterr().out
    found = json.loads((folder / "tuned.json").read_text())
    assert found["choosing_seeds"] == [[0], [1]] and found["reporting_seeds"] == [[2], [3], [4]]
    shallow, deep = found["settings"]
    # The rate that was lucky on seeds 0 and 1 is taken, and its loss is that of seeds 2 to 4.
    assert (shallow["value"], shallow["choosing_loss"]) == (0.003, pytest.approx(2.42))
    assert shallow["reported"]["mean"] == pytest.approx(2.60)
    # One of the choosing runs at 0.01 diverged, and 0.003 is worse on the choosing seeds.
    assert (deep["value"], deep["reported"]["mean"]) == (0.001, pytest.approx(2.61))
    assert deep["against_first"]["mean"] == pytest.approx(0.01)  # paired by seed: 0.01, 0.04, -0.02
    half = 4.302653 * np.std([0.01, 0.04, -0.02], ddof=1) / math.sqrt(3)
    assert deep["against_first"]["high"] == pytest.approx(0.01 + half, rel=1e-6)
    assert not shallow["at_edge"] and deep["at_edge"]
    assert "heads_per_layer = 1: the best learning_rate (0.001) is at the edge of the values tried (0.001 to 0.01)" in " ".join(
        out.split()
    )
    # A run that diverged is a trial too: three rates times two seeds each.
    assert "Equal tuning budget: 6 trials for each of 2 settings." in out
    assert shallow["budget"] == {"trials": 6, "tokens": 6 * 20, "flops": 6 * 200}
    with open(folder / "tuned.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["best_value"] for row in rows] == ["0.003", "0.001"]
    assert {path.name for path in folder.glob("tuned.*")} == {
        f"tuned.{kind}" for kind in ("html", "md", "json", "csv", "png", "svg")
    }


def test_the_rates_are_no_unfairness_and_another_difference_is(tmp_path: Path):
    folder = write(tmp_path / "s")
    tuned.run(str(folder), "lr", HEADS, None)  # as --axes takes it
    (fair,) = json.loads((folder / "tuned.json").read_text())["fairness"]
    assert fair.startswith("Comparable as far as recorded") and "optimizer" not in fair
    run = folder / "runs" / name_of(1, 0.001, 3) / "run.json"
    record = json.loads(run.read_text())
    run.write_text(json.dumps({**record, "parameters": {"total": 1100}}))
    tuned.run(str(folder), RATE, HEADS, None)
    (fair,) = json.loads((folder / "tuned.json").read_text())["fairness"]
    assert fair.startswith("Not comparable: different sizes (total parameters: up to 10.0 % more")


def test_the_reported_loss_is_unbiased_and_that_of_the_choosing_seeds_is_not(in_memory: Any):
    # Every rate is as good as any other: what the choice gains is luck.
    draws = np.random.default_rng(0).normal(size=(200, 4, 5))
    results = [tune(in_memory(draw), RATE, []).settings[0] for draw in draws]
    reported = np.array([each.reported.mean for each in results if each.reported])
    chosen = np.array([each.choosing_loss for each in results])
    assert len(reported) == 200
    assert abs(reported.mean()) < 3 / math.sqrt(3 * 200)
    # The least of four means of two: -1.029 deviations, each of sqrt(1 / 2).
    assert chosen.mean() == pytest.approx(-1.029 * math.sqrt(0.5), abs=0.12)


def test_what_has_not_run_is_no_trial(in_memory: Any):
    losses = np.array([[1.0, 1.0, 1.0], [0.5, 0.5, math.nan], [math.nan, 2.0, 2.0], [math.inf, 2.0, 2.0]])
    (setting,) = tune(in_memory(losses), RATE, [], choose=2).settings
    assert setting.budget.trials == 7 and setting.budget.tokens == 49 and setting.budget.flops == 77.0
    assert setting.value == 2.0 and setting.reported is None and setting.missing == ("seed 3, not run",)


def test_unequal_budgets_are_said(tmp_path: Path):
    folder = write(tmp_path / "s", {**LOSSES, (1, 0.01): ()})
    tuned.run(str(folder), "learning_rate", "heads_per_layer", None)
    said = json.loads((folder / "tuned.json").read_text())["verdict"]
    assert said == "Not an equal tuning budget: trials that have ended: 6 for heads_per_layer = 8 and 4 for heads_per_layer = 1."


def test_a_choice_is_final_when_all_of_its_runs_have_ended(in_memory: Any):
    losses = np.array([[1.0, 1.0, 1.0], [0.5, math.nan, math.nan], [math.inf, 2.0, 2.0]])
    tuning = tune(in_memory(losses), RATE, [], choose=2)
    (setting,) = tuning.settings
    assert not setting.is_chosen and setting.value == 1.0
    assert tuning.warnings == ("the config: not all choosing runs have ended; the learning_rate may change.",)
    assert tuning.choosing_cells == ("0-0", "0-1", "1-0", "1-1", "2-0", "2-1")
    losses[1, 1] = math.inf
    assert tune(in_memory(losses), RATE, [], choose=2).settings[0].is_chosen


def test_where_only_the_best_value_has_all_seeds_the_curve_is_that_of_the_choosing_ones(in_memory: Any):
    (line,) = tune(in_memory(np.array([[3.0, 3.2, math.nan], [2.0, 2.2, 9.0]])), RATE, [], choose=2).sensitivity.lines
    assert [point.losses for point in line.points] == [(3.0, 3.2), (2.0, 2.2)]


def test_nothing_to_choose_from(in_memory: Any):
    tuning = tune(in_memory(np.full((2, 2), math.inf)), RATE, [])
    assert tuning.settings[0].value is None and tuning.settings[0].reported is None
    assert "no learning_rate has a finite loss in every choosing run" in tuning.warnings[0]


def test_texts_are_escaped(tmp_path: Path):
    axes = [f"source=stdlib,{EVIL}", "lr=1e-3,3e-3", "seed=0,1"]
    names = [f"source-stdlib_learning_rate-{rate}_seed-{seed}" for rate in (0.001, 0.003) for seed in (0, 1)]
    folder = write_sweep(tmp_path / "s", load_fields("evidence", "heads"), axes, dict.fromkeys(names, 2.0)).path
    tuned.run(str(folder), "learning_rate", "source", None)
    page = (folder / "tuned.html").read_text()
    assert "&lt;script&gt;alert(1)" in page and "<script" not in page
    assert "<script" not in MarkdownIt().render((folder / "tuned.md").read_text())


@pytest.mark.parametrize(
    ("over", "by", "choose", "message"),
    [
        ("rate", "heads_per_layer", None, "--over=rate is no axis of this sweep; allowed: heads_per_layer and learning_rate"),
        ("seed", "heads_per_layer", None, "--over=seed is no axis"),
        ("learning_rate", "learning_rate", None, "--over and --by both name learning_rate"),
        ("heads_per_layer", "heads", None, "--by=heads is no axis"),
        ("learning_rate", "heads_per_layer", 5, "--choosing-seeds=5 must be from 1 to 4: the sweep has 5 seeds"),
        ("learning_rate", "heads_per_layer", 0, "--choosing-seeds=0 must be from 1 to 4"),
    ],
)
def test_wrong_axes(tmp_path: Path, over: str, by: str, choose: int | None, message: str):
    with pytest.raises(UserError, match=message):
        tuned.run(str(write(tmp_path / "s")), over, by, choose)


def test_an_axis_left_out_and_too_few_seeds(tmp_path: Path):
    fields = load_fields("evidence", "heads")
    two = write_sweep(
        tmp_path / "two", fields, ["scheme=post_ln,pre_ln", "heads_per_layer=8,1", "lr=1e-3,3e-3", "seed=0,1"], {}
    ).path
    with pytest.raises(UserError, match="the sweep also varies scheme; name every axis in --by"):
        tuned.run(str(two), "learning_rate", "heads_per_layer", None)
    one = write_sweep(tmp_path / "one", fields, ["heads_per_layer=8,1", "lr=1e-3,3e-3"], {}).path
    with pytest.raises(UserError, match="takes two seeds; add the axis seed=0,1,2"):
        tuned.run(str(one), "learning_rate", "heads_per_layer", None)
