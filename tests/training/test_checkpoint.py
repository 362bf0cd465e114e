"""Checkpoints: a restored state equals the saved one, also what Orbax 0.12.8 has written; a wrong
model is named before anything is read.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from msgspec.structs import replace

from mhsh.config.schema import Config
from mhsh.errors import Unavailable, UserError
from mhsh.storage.run_folder import RunFolder
from mhsh.training.checkpoints import checkpoint as module
from mhsh.training.checkpoints.checkpoint import Checkpoints, DamagedCheckpoint, StoredCheckpoints
from mhsh.training.checkpoints.verify import compare_manifests
from mhsh.training.sharding import shardings_of
from mhsh.training.state import TrainState
from tests.conftest import ROOT
from tests.training.states import ONE, abstract_of


def fresh(config: Config, shape: tuple[int, int, int] = ONE) -> tuple[TrainState, TrainState]:
    """A state of noise, and its abstract twin."""
    abstract, rng = abstract_of(config, shape), np.random.default_rng(0)
    noise = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(scale=9, size=leaf.shape), leaf.dtype), abstract)
    return jax.device_put(noise, shardings_of(abstract)), abstract


def stored(folder: Path) -> Checkpoints:
    return Checkpoints(folder, keep=2)


def save(folder: Path, step: int, state: TrainState) -> None:
    checkpoints = stored(folder)
    checkpoints.save(step, state)
    checkpoints.close()


def assert_equal(actual: Any, expected: Any) -> None:
    """Bit for bit."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()


EIGHT = (2, 2, 2)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (ONE, EIGHT),
        (EIGHT, (2, 1, 2)),
        *(pytest.param(EIGHT, shape, marks=pytest.mark.slow) for shape in (ONE, (1, 2, 1), (2, 1, 1), (1, 4, 1))),
    ],
)
def test_a_state_comes_back_bit_for_bit_on_any_devices(make_config, tmp_path, before, after):
    config = make_config("bert", "2l8h")
    state, _ = fresh(config, before)
    save(tmp_path, 7, state)
    for shape in (before, after):
        abstract = abstract_of(config, shape)
        restored = stored(tmp_path).restore(7, abstract)
        assert_equal(restored, state)
        assert [leaf.sharding for leaf in jax.tree.leaves(restored)] == [leaf.sharding for leaf in jax.tree.leaves(abstract)]


def test_a_stored_checkpoint_is_restored_bit_for_bit(tmp_path):
    """The fixture is what `save(FIXTURE, 7, state)` wrote."""
    fixture = ROOT / "tests" / "fixtures" / "checkpoints_of_orbax_0.12.8"
    kernel = jnp.asarray([[0.1, -0.0, jnp.inf], [jnp.nan, 1e-45, 3.0]], jnp.float32)
    moments = {"mu": kernel.astype(jnp.bfloat16), "count": jnp.asarray(5, jnp.int32)}
    state = TrainState({"layer": {"kernel": kernel}}, moments, jnp.asarray(7, jnp.int32))
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state)
    checkpoints = stored(shutil.copytree(fixture, tmp_path / "checkpoints"))
    assert checkpoints.existing_step(None) == 7
    assert_equal(checkpoints.restore(7, abstract), state)


def test_a_state_changed_after_saving_is_saved_as_it_was(make_config, tmp_path):
    state, abstract = fresh(make_config("bert", "2l8h"))
    before = jax.device_get(state)
    checkpoints = stored(tmp_path)
    checkpoints.save(1, state)
    jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 0, tree), donate_argnums=0)(state)
    checkpoints.close()
    assert_equal(stored(tmp_path).restore(1, abstract), before)


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
    state, abstract = fresh(config)
    other, abstract_other = fresh(replace(config, model=replace(config.model, **change)))
    save(tmp_path, 7, state)
    save(tmp_path / "other", 7, other)
    with pytest.raises(UserError, match="of another model"):  # nothing is filled in
        stored(tmp_path / "other").restore(7, abstract)
    with pytest.raises(UserError, match=message):
        stored(tmp_path).restore(7, abstract_other)


def test_arrays_of_twice_the_bits_are_those_of_another_setting_of_jax(tmp_path):
    narrow, wide = ({"token": {"shape": [2], "dtype": dtype}} for dtype in ("float32", "float64"))
    with pytest.raises(UserError, match=r"is float64\[2\] there, float32\[2\] .*; set JAX_ENABLE_X64 as it was when it was saved$"):
        compare_manifests(wide, narrow, epath.Path(tmp_path))
    with pytest.raises(UserError, match=r"give the config it was saved with$"):
        compare_manifests(wide, {"token": wide["token"] | {"shape": [3]}}, epath.Path(tmp_path))


@pytest.mark.parametrize(
    ("cause", "kind", "said"),
    [
        (MemoryError("Unable to allocate 114. MiB"), UserError, "Unable to allocate 114. MiB.*, which is no damage"),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes"), UserError, "which is no damage"),
        (ValueError("PERMISSION_DENIED: Error opening file [OS error 13: Permission denied]"), UserError, "which is no damage"),
        (ValueError("UNAVAILABLE: HTTP response code: 503"), Unavailable, "response code: 503.*; run the same command again"),
        (ValueError("DATA_LOSS: Error decoding chunk"), DamagedCheckpoint, "Error decoding chunk"),
    ],
)
def test_a_read_that_fails_for_want_of_something_is_no_damage(tmp_path, monkeypatch, cause, kind, said):
    """Orbax hides what TensorStore or jax have raised behind an Exception."""
    state = TrainState({"kernel": jnp.zeros(3)}, {}, jnp.asarray(7, jnp.int32))
    save(tmp_path, 7, state)
    checkpoints = stored(tmp_path)
    restore = checkpoints._manager.restore
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), state)

    def failing(step, args):
        if "params" in args:
            raise Exception("Encountered error while reading array index") from cause
        return restore(step, args=args)

    monkeypatch.setattr(checkpoints._manager, "restore", failing)
    with pytest.raises(kind, match=said) as raised:
        checkpoints.restore(7, abstract)
    assert type(raised.value) is kind


@pytest.mark.parametrize("name", ["lr[1e-3]", "a**b", "a\\b", "gs:"])
def test_a_path_that_orbax_misreads_is_refused_before_anything_is_trained(make_config, tmp_path, name):
    """It saved without a word what it could not read again."""
    config = make_config("bert", "2l8h")
    for folder in (tmp_path / name, tmp_path / name / "run"):
        with pytest.raises(UserError, match=r"checkpoints cannot be kept in .*; rename the folder, or choose another$"):
            RunFolder.open_for_training(folder, config)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="misreads"):
        stored(tmp_path / name)


def test_a_working_folder_whose_name_is_no_text_is_refused_before_anything_is_trained(make_config, tmp_path, monkeypatch):
    """Its first checkpoint could not be saved. A byte of Latin-1, as Python passes it on."""
    (tmp_path / "caf\udce9").mkdir()
    monkeypatch.chdir(tmp_path / "caf\udce9")
    with pytest.raises(UserError, match=r"checkpoints cannot be kept in .*; rename the folder, or choose another$"):
        RunFolder.open_for_training("run", make_config("bert", "2l8h"))
    with pytest.raises(UserError, match=r"the run folder's path is not UTF-8: .*; rename it, or the folder that it is in"):
        RunFolder(Path("run").absolute())


def test_a_run_that_was_copied_to_where_none_can_be_saved_is_read(make_config, tmp_path):
    """Other marks of a glob match themselves."""
    state, abstract = fresh(make_config("bert", "2l8h"))
    save(tmp_path / "why? a*[b #1 {c} 50%", 1, state)
    copied = shutil.copytree(tmp_path / "why? a*[b #1 {c} 50%", tmp_path / "copy [1]")
    assert_equal(StoredCheckpoints(copied).restore(1, abstract), state)


def test_old_steps_go_and_milestones_stay(make_config, tmp_path, monkeypatch):
    """Also in a process that asks what there is when process 0 has deleted it."""
    state, _ = fresh(make_config("bert", "2l8h"))
    checkpoints = Checkpoints(tmp_path, keep=2, keep_step=3)
    monkeypatch.setattr(module, "committed_steps", lambda folder: [])
    for step in range(1, 8):
        checkpoints.save(step, state)
    checkpoints.close()
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == [3, 6, 7]


def test_reading_changes_nothing_and_leaves_strangers_alone(make_config, tmp_path):
    with pytest.raises(UserError, match="holds no checkpoint; train"):
        StoredCheckpoints(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    state, abstract = fresh(make_config("bert", "2l8h"))
    save(tmp_path, 7, state)
    unfinished = tmp_path / "8.orbax-checkpoint-tmp"  # of a run that is saving
    unfinished.mkdir()
    (tmp_path / "9").write_text("mine")
    (tmp_path / "notes").mkdir()
    before = sorted(tmp_path.rglob("*"))
    reader = StoredCheckpoints(tmp_path)
    assert reader.existing_step(None) == 7
    with pytest.raises(UserError, match="no checkpoint of step 3; there are 7"):
        reader.existing_step(3)
    assert_equal(reader.restore_params(7, abstract.params), state.params)
    reader.close()
    assert sorted(tmp_path.rglob("*")) == before
    save(tmp_path, 8, state)
    assert not unfinished.exists() and (tmp_path / "9").read_text() == "mine"
    (tmp_path / "8" / "files.json").unlink()
    damaged = StoredCheckpoints(tmp_path)
    with pytest.raises(UserError, match=r"8 is damaged: .*; put it back from a copy, or take another step \(there is 7\)$"):
        damaged.restore_params(8, abstract.params)
    shutil.rmtree(tmp_path / "7")  # as the run does that trains on
    with pytest.raises(UserError, match=r"7 has just been removed, .* there are 8: run the same command again$"):
        damaged.restore_params(7, abstract.params)
    damaged.close()


@pytest.mark.parametrize("kind", ["file", "broken link"])
def test_what_is_no_folder_is_said(tmp_path, kind):
    folder = tmp_path / "checkpoints"
    folder.write_text("mine") if kind == "file" else folder.symlink_to(tmp_path / "nowhere")
    for open_it in (StoredCheckpoints, stored):
        with pytest.raises(UserError, match="checkpoints is a file or a broken link, and no folder of checkpoints"):
            open_it(folder)


def test_where_all_were_set_aside_that_is_said(make_config, tmp_path):
    state, _ = fresh(make_config("bert", "2l8h"))
    for _ in range(2):
        save(tmp_path / "checkpoints", 7, state)
        stored(tmp_path / "checkpoints").set_aside(7)
    with pytest.raises(UserError, match=r"those of step 7, 7\.2 were damaged and are in .*damaged_checkpoints; put a good copy"):
        StoredCheckpoints(tmp_path / "checkpoints").existing_step(None)
