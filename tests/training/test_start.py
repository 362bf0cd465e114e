"""Starting from another run: every array that both have is its, what only one has is named, and other shapes are refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from mhsh.config import ClassificationDataConfig, Config
from mhsh.errors import UserError
from mhsh.models.model import build_model
from mhsh.run_folder import RunFolder
from mhsh.training.checkpoint import Checkpoints
from mhsh.training.optimizer import build_optimizer
from mhsh.training.sharding import put_batch
from mhsh.training.start import started_from
from mhsh.training.state import create_state
from tests.training.batches import random_batch
from tests.training.test_step import mesh_of


def fresh_params(config: Config, shape: tuple[int, int, int] = (1, 1, 1)) -> Any:
    mesh = mesh_of(*shape)
    batch = put_batch(config, random_batch(config, config.train.batch_size), mesh)
    return create_state(config, build_model(config.model), build_optimizer(config.optimizer, config.train), mesh, batch).params


@pytest.fixture(scope="module")
def pretrained(make_config, tmp_path_factory) -> tuple[Config, Path, Any]:
    """A run's config, its folder, and the parameters of its checkpoint: nothing in them is as it starts."""
    config = make_config("bert", "2l8h")
    folder = tmp_path_factory.mktemp("pretrained") / "run"
    RunFolder.open_for_training(folder, config)
    mesh = mesh_of(1, 1, 1)
    model, optimizer = build_model(config.model), build_optimizer(config.optimizer, config.train)
    batch = put_batch(config, random_batch(config, config.train.batch_size), mesh)
    state = create_state(config, model, optimizer, mesh, batch)
    state = state._replace(params=jax.tree.map(lambda leaf: leaf * 1.5 + 0.25, state.params))
    checkpoints = Checkpoints(folder / "checkpoints", keep=1, keep_every=0)
    checkpoints.save(7, state)
    checkpoints.close()
    return config, folder, jax.device_get(state.params)


def classification(config: Config, folder: Path) -> Config:
    model = dataclasses.replace(config.model, objective="classification", num_classes=3, next_sentence=False)
    data = ClassificationDataConfig("mnli", "tsv:none", "none", True, config.data.sequence_length, 0)
    train = dataclasses.replace(config.train, start_from=str(folder), eval_batches=0)
    return dataclasses.replace(config, model=model, data=data, train=train)


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2)])
def test_body_and_pooler_are_taken_and_the_heads_exchanged(pretrained, shape):
    config, folder, saved = pretrained
    config = classification(config, folder)
    fresh = fresh_params(config, shape)
    params, report = started_from(config, fresh, mesh_of(*shape))
    assert jax.tree.structure(params) == jax.tree.structure(fresh)
    for name in ("embeddings", "encoder", "pooler"):
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(params[name]), saved[name])
    jax.tree.map(np.testing.assert_array_equal, params["classification"], fresh["classification"])
    assert [leaf.sharding for leaf in jax.tree.leaves(params)] == [leaf.sharding for leaf in jax.tree.leaves(fresh)]
    assert report == {
        "folder": str(folder),
        "step": 7,
        "taken": ["embeddings", "encoder", "pooler"],
        "fresh": ["classification"],
        "left": ["next_sentence", "prediction"],
    }


def test_a_longer_position_table_goes_on_where_the_old_one_ends(pretrained):
    config, folder, saved = pretrained
    longer = dataclasses.replace(config.model, max_positions=config.model.max_positions + 16)
    config = dataclasses.replace(config, model=longer, train=dataclasses.replace(config.train, start_from=str(folder)))
    fresh = fresh_params(config)
    params, report = started_from(config, fresh, mesh_of(1, 1, 1))
    table = np.asarray(params["embeddings"]["position"])
    np.testing.assert_array_equal(table[:-16], saved["embeddings"]["position"])
    np.testing.assert_array_equal(table[-16:], fresh["embeddings"]["position"][-16:])
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(params["prediction"]), saved["prediction"])
    assert report["fresh"] == report["left"] == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (dict(embed_dim=32), r"embeddings\.norm\.bias is float32\[64\] there, float32\[32\] in the config"),
        (dict(num_layers=3), r"encoder\.layers\..* in the config"),
        (dict(residual="post_ln"), r"omega is float32\[2, 64\] there, absent in the config"),
        (dict(max_positions=32), r"embeddings\.position is float32\[64, 64\] there, float32\[32, 64\]"),
    ],
)
def test_another_shape_is_refused(pretrained, change, named):
    config, folder, _ = pretrained
    config = classification(config, folder)
    data = dataclasses.replace(config.data, sequence_length=32)
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, **change), data=data)
    with pytest.raises(UserError, match=named):
        started_from(config, fresh_params(config), mesh_of(1, 1, 1))


def test_a_folder_without_a_run_is_named(pretrained, tmp_path):
    config, _, _ = pretrained
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, start_from=str(tmp_path)))
    with pytest.raises(UserError, match=str(tmp_path)):
        started_from(config, fresh_params(config), mesh_of(1, 1, 1))
