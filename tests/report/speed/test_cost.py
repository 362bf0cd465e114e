"""Tests of device-hours: steps to a target and their cost against hand-computed ones, and what is
refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import astuple

from mhsh.config.schema import Config
from mhsh.report.speed.comparison import Measurement, read_speed
from mhsh.report.speed.cost import Cost, costs, steps_to_target
from mhsh.verdict.runs import load_runs
from tests.report.speed_files import bench, candidate, write

Measure = Callable[..., tuple[Measurement, ...]]


@pytest.mark.parametrize(
    ("losses", "target", "expected"),
    [
        ([3.0, 2.0, 1.0], 2.5, (15.0, False)),
        ([3.0, 2.0, 1.0], 2.0, (20.0, False)),
        ([3.0, 2.0, 1.0], 1.25, (27.5, False)),
        ([3.0, 2.0, 1.0], 3.0, (10.0, True)),
        ([3.0, 2.0, 1.0], 0.5, None),
        ([3.0, math.nan, 1.0], 2.0, (30.0, True)),  # nothing is known between 10 and 30
        ([math.nan, 3.0, 1.0], 2.0, (25.0, False)),
        ([2.0, 1.0, 3.0], 1.5, (15.0, False)),  # it counts when it is first reached
        ([], 1.0, None),
    ],
)
def test_steps_to_a_target(losses: list[float], target: float, expected: tuple[float, bool] | None) -> None:
    assert steps_to_target(np.array([10.0, 20.0, 30.0][: len(losses)]), np.array(losses), target) == expected


@pytest.fixture
def measure(tmp_path: Path, shapes: dict[str, Config]) -> Measure:
    """A bench of a step of 0.36 s (0.18 to 0.72) on two devices; `changes` are made to its config's
    JSON.
    """

    def make(kind: str = "train", changes: dict[str, Any] | None = None) -> tuple[Measurement, ...]:
        found = bench(kind, shapes, {(8, 64): [candidate("config", "mhsh 2L8H", (0.36, 0.18, 0.72), None, devices=2)]})
        for name, value in (changes or {}).items():
            section, field = name.split(".")
            found["configs"]["config"][section][field] = value
        return read_speed([write(tmp_path / "bench.json", found)]).rows

    return make


def cost_of(run: Path, rows: tuple[Measurement, ...], target: float) -> Cost:
    (found,) = costs(load_runs([run]).runs, rows, target)
    return found


def test_device_hours_by_hand(make_run, measure: Measure) -> None:
    found = cost_of(make_run("a", [], [3.0, 2.0, 1.0]), measure(), 2.5)
    assert (found.steps, found.at_most, found.shape, found.device) == (15.0, False, "2L8H", "2 x Abacus 7")
    # 15 steps of 0.36 s on two devices are 10.8 device-seconds
    assert found.hours is not None and astuple(found.hours) == pytest.approx((0.003, 0.0015, 0.006, 0.95))
    assert found.refusal is None and found.remark is None


def test_a_target_that_was_not_reached(make_run, measure: Measure) -> None:
    found = cost_of(make_run("a", [], [3.0, 2.0, math.nan]), measure(), 1.5)
    assert found.refusal == "did not reach 1.5: its lowest validation loss is 2.000"
    found = cost_of(make_run("b", [2.0]), measure(), 1.5)
    assert found.refusal == "did not reach 1.5: it has no finite validation loss"


@pytest.mark.parametrize(
    "changes", [{"model.num_layers": 4}, {"model.mlp_dim": 32}, {"train.batch_size": 3}, {"data.sequence_length": 48}]
)
def test_another_shape_or_batch_is_refused(make_run, measure: Measure, changes: dict[str, int]) -> None:
    run = make_run("a", [], [3.0, 2.0])
    found = cost_of(run, measure(changes=changes), 2.5)
    ((name, value),) = changes.items()
    assert found.hours is None
    assert found.refusal is not None and "2L8H in " in found.refusal and "no bench has its shape and batch" in found.refusal
    assert f"{name} is " in found.refusal and f"and {value} in the bench" in found.refusal


def test_what_may_differ_is_said(make_run, measure: Measure) -> None:
    run = make_run("a", [], [3.0, 2.0], model={"hidden_dropout": 0.5})
    found = cost_of(run, measure(changes={"model.hidden_dropout": 0.25, "optimizer.learning_rate": 7.0}), 2.5)
    assert found.hours is not None
    assert found.remark == "model.hidden_dropout is 0.5 in the run and 0.25 in the bench"


def test_inference_is_no_training_step(make_run, measure: Measure) -> None:
    assert cost_of(make_run("a", [], [3.0, 2.0]), measure("inference"), 2.5).refusal == "no file of mhsh bench train is named"
