"""Orbax restores bit for bit what its version 0.12.8 has written."""

from __future__ import annotations

import shutil

import jax
import jax.numpy as jnp
import numpy as np

from mhsh.training.checkpoints.checkpoint import Checkpoints
from mhsh.training.state import TrainState
from tests.conftest import ROOT

FIXTURE = ROOT / "tests" / "fixtures" / "checkpoints_of_orbax_0.12.8"
STEP = 7


def stored_state() -> TrainState:
    """The state in the fixture, which `Checkpoints(FIXTURE, keep=1, keep_every=0).save` wrote."""
    kernel = jnp.asarray([[0.1, -0.0, jnp.inf], [jnp.nan, 1e-45, 3.0]], jnp.float32)
    moments = {"mu": kernel.astype(jnp.bfloat16), "count": jnp.asarray(5, jnp.int32)}
    return TrainState({"layer": {"kernel": kernel}}, moments, jnp.asarray(STEP, jnp.int32))


def test_a_stored_checkpoint_is_restored_bit_for_bit(tmp_path):
    folder = shutil.copytree(FIXTURE, tmp_path / "checkpoints")
    state = stored_state()
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state)
    checkpoints = Checkpoints(folder, keep=1, keep_every=0)
    assert checkpoints.existing_step(None) == STEP
    restored = checkpoints.restore(STEP, abstract)
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    for found, wanted in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
        assert found.dtype == wanted.dtype and np.asarray(found).tobytes() == np.asarray(wanted).tobytes()
