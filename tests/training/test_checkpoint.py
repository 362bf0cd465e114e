"""Checkpoints: a restored state equals the saved one, and a wrong model is named before anything is
read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from msgspec.structs import replace

from mhsh.config.schema import Config
from mhsh.errors import UserError
from mhsh.training.checkpoints.checkpoint import Checkpoints, StoredCheckpoints
from mhsh.training.state import TrainState
from tests.training.states import abstract_of, fresh_state


@jax.jit
def filled(state: TrainState) -> TrainState:
    return jax.tree.map(lambda leaf: leaf + 3 if leaf.ndim == 0 else leaf + leaf.size, state)


def fresh(config: Config, shape: tuple[int, int, int] = (1, 1, 1)) -> tuple[TrainState, TrainState]:
    """A state with no zeros in its moments, and its abstract twin."""
    return filled(fresh_state(config, shape)), abstract_of(config, shape)


def saved(config: Config, folder: Path) -> tuple[TrainState, TrainState]:
    state, abstract = fresh(config)
    checkpoints = Checkpoints(folder, keep=2, keep_every=0)
    checkpoints.save(7, state)
    checkpoints.close()
    return state, abstract


def assert_equal(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_a_state_comes_back_bit_for_bit(make_config, tmp_path):
    state, abstract = saved(make_config("bert", "2l8h"), tmp_path)
    restored = Checkpoints(tmp_path, keep=2, keep_every=0).restore(7, abstract)
    assert_equal(restored, state)


def test_saved_on_one_device_restored_on_eight(make_config, tmp_path):
    config = make_config("bert", "2l8h")
    state, _ = saved(config, tmp_path)
    abstract = abstract_of(config, (2, 2, 2))
    restored = Checkpoints(tmp_path, keep=2, keep_every=0).restore(7, abstract)
    for a, b, wanted in zip(*map(jax.tree.leaves, (restored, state, abstract)), strict=True):
        assert a.sharding == wanted.sharding
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "shape", [(2, 1, 2), *(pytest.param(each, marks=pytest.mark.slow) for each in ((1, 1, 1), (1, 2, 1), (2, 1, 1), (1, 4, 1)))]
)
def test_saved_on_eight_devices_restored_on_fewer(make_config, tmp_path, shape):
    config = make_config("bert", "2l8h")
    state, _ = fresh(config, (2, 2, 2))
    checkpoints = Checkpoints(tmp_path, keep=2, keep_every=0)
    checkpoints.save(7, state)
    checkpoints.close()
    abstract = abstract_of(config, shape)
    restored = Checkpoints(tmp_path, keep=2, keep_every=0).restore(7, abstract)
    for a, b, wanted in zip(*map(jax.tree.leaves, (restored, state, abstract)), strict=True):
        assert a.sharding == wanted.sharding
        np.testing.assert_array_equal(a, b)


def test_parameters_alone(make_config, tmp_path):
    state, abstract = saved(make_config("bert", "2l8h"), tmp_path)
    params = Checkpoints(tmp_path, keep=2, keep_every=0).restore_params(7, abstract.params)
    assert_equal(params, state.params)


def test_a_state_changed_after_saving_is_saved_as_it_was(make_config, tmp_path):
    state, abstract = fresh(make_config("bert", "2l8h"))
    before = jax.device_get(state)
    checkpoints = Checkpoints(tmp_path, keep=2, keep_every=0)
    checkpoints.save(1, state)
    jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 0, tree), donate_argnums=0)(state)
    checkpoints.close()
    restored = Checkpoints(tmp_path, keep=2, keep_every=0).restore(1, abstract)
    assert_equal(restored, before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 3}, r"is float32\[2, .*\] there, float32\[3, .*\] in the config \(and \d+ more\)"),
        ({"residual": "post_ln"}, r"omega is float32\[2, 64\] there, absent in the config"),
        ({"next_sentence": False}, r"next_sentence\..* there, absent in the config"),
    ],
)
def test_a_checkpoint_of_another_model_is_named_before_it_is_read(make_config, tmp_path, change, message):
    config = make_config("bert", "2l8h")
    saved(config, tmp_path)
    abstract = abstract_of(replace(config, model=replace(config.model, **change)))
    with pytest.raises(UserError, match=message):
        Checkpoints(tmp_path, keep=2, keep_every=0).restore(7, abstract)


def test_old_steps_go_and_milestones_stay(make_config, tmp_path):
    state, _ = fresh(make_config("bert", "2l8h"))
    checkpoints = Checkpoints(tmp_path, keep=2, keep_every=4)
    for step in range(1, 8):
        checkpoints.save(step, state)
    checkpoints.close()
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == [4, 6, 7]


def test_a_step_that_is_not_there(make_config, tmp_path):
    with pytest.raises(UserError, match="holds no checkpoint; train"):
        StoredCheckpoints(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    saved(make_config("bert", "2l8h"), tmp_path / "some")
    checkpoints = Checkpoints(tmp_path / "some", keep=2, keep_every=0)
    assert checkpoints.existing_step(None) == 7
    with pytest.raises(UserError, match="no checkpoint of step 3; there are 7"):
        checkpoints.existing_step(3)


def test_reading_leaves_what_a_run_is_saving(make_config, tmp_path):
    state, abstract = saved(make_config("bert", "2l8h"), tmp_path)
    unfinished = tmp_path / "8.orbax-checkpoint-tmp"
    unfinished.mkdir()
    before = sorted(tmp_path.rglob("*"))
    stored = StoredCheckpoints(tmp_path)
    assert_equal(stored.restore_params(stored.existing_step(None), abstract.params), state.params)
    stored.close()
    assert sorted(tmp_path.rglob("*")) == before
    checkpoints = Checkpoints(tmp_path, keep=2, keep_every=0)
    checkpoints.save(8, state)
    checkpoints.close()
    assert not unfinished.exists()


@pytest.mark.parametrize("kind", ["file", "broken link"])
def test_what_is_no_folder_is_said(tmp_path, kind):
    folder = tmp_path / "checkpoints"
    folder.write_text("mine") if kind == "file" else folder.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match="checkpoints is a file or a broken link, and no folder of checkpoints"):
        StoredCheckpoints(folder)
    with pytest.raises(UserError, match="checkpoints is a file or a broken link, and no folder of checkpoints"):
        Checkpoints(folder, keep=2, keep_every=0)


def test_strangers_among_the_checkpoints_are_left_alone(make_config, tmp_path):
    state, abstract = saved(make_config("bert", "2l8h"), tmp_path)
    (tmp_path / "9").write_text("mine")
    (tmp_path / "notes").mkdir()
    stored = StoredCheckpoints(tmp_path)
    assert stored.existing_step(None) == 7
    assert_equal(stored.restore(7, abstract), state)


def test_where_all_were_set_aside_that_is_said(make_config, tmp_path):
    state, _ = fresh(make_config("bert", "2l8h"))
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2, keep_every=0)
    for _ in range(2):
        checkpoints.save(7, state)
        checkpoints.raise_failed_save()
        checkpoints.close()
        checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2, keep_every=0)
        checkpoints.set_aside(7)
    with pytest.raises(UserError, match=r"those of step 7, 7\.2 were damaged and are in .*damaged_checkpoints; put a good copy"):
        StoredCheckpoints(tmp_path / "checkpoints").existing_step(None)
