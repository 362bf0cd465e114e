"""The average of checkpoints against numpy's, and the error if there are too few."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

from mhsh.errors import UserError
from mhsh.training.checkpoints.checkpoint import Checkpoints
from mhsh.training.checkpoints.restore import average, newest_steps
from mhsh.training.state import TrainState

STEPS = (10, 20, 30, 40)


def params_of(step: int) -> dict[str, dict[str, np.ndarray]]:
    generator = np.random.default_rng(step)
    return {
        "encoder": {
            "kernel": generator.normal(5, 1, (3, 4, 2)).astype(np.float32),
            "bias": generator.normal(0, 1e-4, 7).astype("f4"),
        },
        "decoder": {"omega": np.full((2, 3), step, np.float32)},
    }


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    folder: Path = tmp_path_factory.mktemp("checkpoints")
    found = Checkpoints(folder, keep=len(STEPS), keep_every=0)
    for step in STEPS:
        found.save(step, jax.device_put(TrainState(params_of(step), {"moment": np.zeros(2, np.float32)}, np.int32(step))))
    found.close()
    return Checkpoints(folder, keep=len(STEPS), keep_every=0)


def abstract() -> dict[str, dict[str, jax.ShapeDtypeStruct]]:
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), params_of(0))


@pytest.mark.parametrize(("count", "step", "averaged"), [(4, None, STEPS), (2, None, (40, 30)), (2, 30, (30, 20)), (1, 20, (20,))])
def test_as_numpy_averages(checkpoints, count, step, averaged):
    steps = newest_steps(checkpoints, count, step)
    assert sorted(steps) == sorted(averaged)
    expected = jax.tree.map(lambda *leaves: np.mean(np.float64(leaves), axis=0), *map(params_of, averaged))
    found = average(checkpoints, steps, abstract())
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-10), found, expected)


@pytest.mark.parametrize(
    ("count", "step", "message"),
    [
        (5, None, r"5 checkpoints cannot be averaged: up to step 40 there are 4 \(10, 20, 30, 40\)"),
        (3, 20, r"up to step 20 there are 2 \(10, 20\)"),
        (0, None, "average 1 to 4"),
        (1, 25, "holds no checkpoint of step 25; there are 10, 20, 30, 40"),
    ],
)
def test_too_few(checkpoints, count, step, message):
    with pytest.raises(UserError, match=message):
        newest_steps(checkpoints, count, step)
