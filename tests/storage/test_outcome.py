"""The rules of outcome against hand-computed cases."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from mhsh.config.fields import parse_value
from mhsh.config.resolve import from_dict
from mhsh.config.schema import to_dict
from mhsh.configs import override
from mhsh.storage.outcome import (
    DIVERGED,
    LEFT,
    NO_METRICS,
    NOT_KNOWN,
    ON_PLATEAU,
    is_spike,
    plateau_advice,
    plateau_deadline,
    plateau_outcome,
    smoothed_final_loss,
)
from tests.conftest import MakeConfig


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([], None),
        ([7.0], 7.0),
        ([9.0] * 9 + [1.0], 1.0),  # 10 rows: the last one
        ([9.0] * 9 + [1.0, 3.0], 2.0),  # 11 rows: ceil(1.1) = 2
    ],
)
def test_smoothed_final_by_hand(losses: list[float], expected: float | None) -> None:
    assert smoothed_final_loss(np.array(losses)) == expected


def test_smoothed_final_leaves_skipped_steps_out_and_is_not_finite_if_half_of_it_is_not() -> None:
    value = smoothed_final_loss(np.array([2.0] * 19 + [math.nan]))
    assert value is not None
    assert math.isnan(value)
    assert smoothed_final_loss(np.array([2.0] * 94 + [math.nan] + [1.0] * 5)) == pytest.approx((4 * 2 + 5) / 9)
    assert smoothed_final_loss(np.array([math.nan] + [2.0] * 19)) == 2.0


@pytest.mark.parametrize(
    ("objective", "train", "validation", "entropy", "expected"),
    [
        ("clm", 2.95, 2.89, 3.0, LEFT),  # validation is the less noisy of the two
        ("clm", 2.89, 2.95, 3.0, ON_PLATEAU),
        ("clm", 2.89, None, 3.0, LEFT),
        ("clm", 3.0 - 0.1, None, 3.0, ON_PLATEAU),
        ("clm", 2.5, 2.5, None, NOT_KNOWN),
        ("clm", None, 2.5, 3.0, LEFT),
        ("clm", math.nan, 2.5, 3.0, DIVERGED),
        ("clm", 2.5, math.nan, 3.0, DIVERGED),
        ("clm", 2.5, math.inf, None, DIVERGED),
        ("clm", None, None, 3.0, NO_METRICS),
        # Of a run that answers 75 % right, where half of the examples are of each class.
        ("classification", 0.0002, 2.083, 0.693, LEFT),
        ("span", 3.0, 2.5, 3.0, ON_PLATEAU),
        ("span", 2.5, math.nan, 3.0, DIVERGED),
    ],
)
def test_plateau_rule_by_hand(
    objective: str, train: float | None, validation: float | None, entropy: float | None, expected: str
) -> None:
    assert plateau_outcome(objective, train, validation, entropy) == expected


@pytest.mark.parametrize(
    ("before", "loss", "expected"),
    [
        # median 3, distances 0.1: a deviation is 0.148, seven are 1.04
        ([2.9, 3.1] * 4 + [3.0] * 2, 4.0, False),
        ([2.9, 3.1] * 4 + [3.0] * 2, 4.1, True),
        ([9.0] * 5 + [2.9, 3.1] * 4 + [3.0] * 2, 4.1, True),  # only the last ten count
        ([2.9, 3.1] * 4 + [3.0, math.nan], 9.0, False),  # nine say nothing
        ([3.0] * 10, 3.5, False),  # without noise, half a nat
        ([3.0] * 10, 3.51, True),
        ([3.0] * 10, math.inf, False),  # no spike: its update is skipped
        ([3.0] * 10, 1.0, False),
    ],
)
def test_a_spike_by_hand(before: list[float], loss: float, expected: bool) -> None:
    assert is_spike(before, loss) == expected


@pytest.mark.parametrize(
    ("steps", "warmup", "due"),
    [(300, 100, 150), (300, 200, 200), (1_000_000, 10_000, 15_000), (12_000, 0, 5000)],
)
def test_when_a_run_counts_as_stuck(make_config: MakeConfig, steps: int, warmup: int, due: int) -> None:
    config = make_config("quickstart", "24l1h_admin", **{"train.num_steps": steps, "optimizer.warmup_steps": warmup})
    assert plateau_deadline(config) == due


@pytest.mark.parametrize(
    ("task", "variant", "loss", "expected"),
    [
        ("quickstart", "24l1h_post_ln", 3.2, "residual=admin learning_rate=0.0005 warmup_steps=200 num_steps=1200"),
        ("quickstart", "6l4h_post_ln", 3.2, "learning_rate=0.0005 warmup_steps=200 num_steps=1200"),
        ("quickstart", "24l1h_admin", 5.0, "num_steps=1200"),
        ("bert", "2l8h", 7.5, "num_steps=160 tokenizer=bytes"),
    ],
)
def test_what_is_tried_is_a_config(make_config: MakeConfig, task: str, variant: str, loss: float, expected: str) -> None:
    config = make_config(task, variant)
    flags = re.findall(r"--config\.(\S+)=([^\s,]+)", plateau_advice(config, loss, 3.288))
    assert " ".join(f"{path.split('.')[1]}={value}" for path, value in flags) == expected
    for path, value in flags:
        from_dict(override(to_dict(config), [(path, parse_value(path, value))], "--config"))


def test_a_decoder_may_be_what_is_deep(make_config: MakeConfig) -> None:
    shape = {"model.num_layers": 2, "model.num_decoder_layers": 12}
    config = make_config("translation", "small", **shape, **{"model.residual": "post_ln"})
    assert plateau_advice(config, 5.0, 3.288).startswith("--config.model.residual=admin")
