"""The average of checkpoints against numpy's, and runs that start from another run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from msgspec.structs import replace

from mhsh.config.entries import add_optimizer
from mhsh.config.schema import ClassificationDataConfig, Config
from mhsh.data.load import load_corpus
from mhsh.errors import UserError
from mhsh.storage.run_folder import RunFolder
from mhsh.training.checkpoints.checkpoint import Checkpoints
from mhsh.training.checkpoints.restore import average, check_same_vocabulary, init_from_run, newest_steps
from mhsh.training.memory import replace_policy
from mhsh.training.sharding import put_batch
from mhsh.training.state import TrainState
from tests.training.batches import random_batch
from tests.training.states import fresh_state, mesh_of, train_step_of
from tests.training.test_step import NO_DROPOUT

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
    folder = tmp_path_factory.mktemp("checkpoints")
    kept = Checkpoints(folder, keep=len(STEPS))
    for step in STEPS:
        kept.save(step, jax.device_put(TrainState(params_of(step), {"moment": np.zeros(2, np.float32)}, np.int32(step))))
    kept.close()
    return Checkpoints(folder, keep=len(STEPS))


@pytest.mark.parametrize(("count", "step", "averaged"), [(4, None, STEPS), (2, 30, (30, 20)), (1, 20, (20,))])
def test_as_numpy_averages(checkpoints, count, step, averaged):
    steps = newest_steps(checkpoints, count, step)
    assert sorted(steps) == sorted(averaged)
    expected = jax.tree.map(lambda *leaves: np.mean(np.float64(leaves), axis=0), *map(params_of, averaged))
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), params_of(0))
    mean = average(checkpoints, steps, abstract)
    assert jax.tree.structure(mean) == jax.tree.structure(expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-10), mean, expected)


@pytest.mark.parametrize(
    ("count", "step", "message"),
    [
        (5, None, r"5 checkpoints cannot be averaged: up to step 40 there are 4 \(10, 20, 30, 40\)"),
        (3, 20, r"up to step 20 there are 2 \(10, 20\)"),
        (0, None, "average 1 to 4"),
    ],
)
def test_too_few(checkpoints, count, step, message):
    with pytest.raises(UserError, match=message):
        newest_steps(checkpoints, count, step)


def save(config: Config, folder: Path, step: int, state: TrainState) -> None:
    RunFolder.open_for_training(folder, config)
    checkpoints = Checkpoints(folder / "checkpoints", keep=1)
    checkpoints.save(step, state)
    checkpoints.close()


def starting_from(config: Config, folder: Path, **changes: Any) -> Config:
    return replace(config, train=replace(config.train, start_from=str(folder), **changes))


@pytest.fixture(scope="module")
def pretrained(make_config, tmp_path_factory) -> tuple[Config, Path, Any]:
    """A run's config, its folder, and the parameters of its checkpoint, all changed from the
    start.
    """
    config = make_config("bert", "2l8h")
    folder = tmp_path_factory.mktemp("pretrained") / "run"
    state = fresh_state(config)
    state = state._replace(params=jax.tree.map(lambda leaf: leaf * 1.5 + 0.25, state.params))
    save(config, folder, 7, state)
    return config, folder, jax.device_get(state.params)


def classification(config: Config, folder: Path) -> Config:
    model = replace(config.model, objective="classification", num_classes=3, next_sentence=False)
    data = ClassificationDataConfig(
        task="mnli", source="tsv:none", vocab_path="none", lowercase=True, sequence_length=config.data.sequence_length, seed=0
    )
    return starting_from(replace(config, model=model, data=data), folder, eval_batches=0)


@pytest.mark.parametrize("policy", ["none", "gathered_groups"])
def test_body_and_pooler_are_taken_and_the_heads_exchanged(pretrained, policy):
    """Sharded as the fresh state, also where the policies of both runs shard along other axes."""
    (config, folder, saved), shape = pretrained, (2, 2, 2)
    config = replace_policy(classification(config, folder), policy)
    state = fresh_state(config, shape)
    (params, opt_state, step), report = init_from_run(config, state, mesh_of(*shape))
    fresh = state.params
    assert opt_state is state.opt_state and step is state.step
    assert jax.tree.structure(params) == jax.tree.structure(fresh)
    for name in ("embeddings", "encoder", "pooler"):
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(params[name]), saved[name])
    jax.tree.map(np.testing.assert_array_equal, params["classification"], fresh["classification"])
    assert [leaf.sharding for leaf in jax.tree.leaves(params)] == [leaf.sharding for leaf in jax.tree.leaves(fresh)]
    (parent,) = report.pop("lineage")
    assert (parent["step"], parent["tokens"], parent["config"]["model"]["num_layers"]) == (7, None, 2)
    assert report == {
        "folder": str(folder),
        "step": 7,
        "taken": ["embeddings", "encoder", "pooler"],
        "fresh": ["classification"],
        "left": ["next_sentence", "prediction"],
        "moments": False,
    }


@pytest.mark.parametrize(("task", "classes", "taken"), [("rte", 2, False), ("wnli", 3, False), ("MNLI", 3, True)])
def test_the_classes_of_another_task_start_fresh(pretrained, tmp_path, task, classes, taken):
    first = classification(pretrained[0], pretrained[1])
    save(first, tmp_path / "mnli", 7, fresh_state(first))
    second = starting_from(first, tmp_path / "mnli")
    second = replace(second, model=replace(second.model, num_classes=classes), data=replace(second.data, task=task))
    state = fresh_state(second)._replace(params=jax.tree.map(lambda leaf: leaf + 1, fresh_state(second).params))
    (params, _, _), report = init_from_run(second, state, mesh_of(1, 1, 1))
    source = fresh_state(first) if taken else state
    jax.tree.map(np.testing.assert_array_equal, params["classification"], source.params["classification"])
    assert (report["fresh"], report["left"]) == ([], []) if taken else (["classification"], ["classification"])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (dict(residual="post_ln"), r"omega is float32\[2, 64\] there, absent in the config"),
        (dict(max_positions=32), r"embeddings\.position is float32\[64, 64\] there, float32\[32, 64\]"),
    ],
)
def test_another_shape_is_refused(pretrained, change, named):
    config, folder, _ = pretrained
    config = classification(config, folder)
    data = replace(config.data, sequence_length=32)
    config = replace(config, model=replace(config.model, **change), data=data)
    with pytest.raises(UserError, match=named):
        init_from_run(config, fresh_state(config), mesh_of(1, 1, 1))


def test_a_run_that_the_mesh_does_not_divide_is_not_called_damaged(make_config, tmp_path):
    other = make_config("bert", "2l8h", **{"model.num_heads": 3, "model.heads_per_layer": 3})
    save(other, tmp_path / "run", 7, fresh_state(other))
    config = starting_from(make_config("bert", "2l8h"), tmp_path / "run")
    with pytest.raises(UserError, match=r"^the model of train.start_from = .*: model.num_heads = 3 is not divisible by mesh"):
        init_from_run(config, fresh_state(config, (1, 1, 2)), mesh_of(1, 1, 2))


def steps_on(config: Config, state: TrainState, seeds: Sequence[int]) -> TrainState:
    mesh, step = mesh_of(1, 1, 1), train_step_of(config)
    for seed in seeds:
        state, _ = step(state, put_batch(random_batch(config, config.train.batch_size, seed), mesh))
    return state


def test_a_longer_position_table_goes_on_where_the_old_one_ends(make_config, tmp_path):
    """With its moments, also where the other run clips its gradients and this one does not."""
    config = make_config("bert", "2l8h", **NO_DROPOUT)
    trained = steps_on(config, fresh_state(config), range(2))
    save(config, tmp_path / "run", 2, trained)
    longer = replace(config.model, max_positions=config.model.max_positions + 16, next_sentence=False)
    optimizer = replace(config.optimizer, clip_norm=0.0)
    onwards = starting_from(replace(config, model=longer, optimizer=optimizer), tmp_path / "run", keep_moments=True)
    state, report = init_from_run(onwards, fresh_state(onwards), mesh_of(1, 1, 1))
    assert (report["fresh"], report["left"]) == ([], ["next_sentence", "pooler"])
    fresh = jax.device_get(fresh_state(onwards).params["embeddings"]["position"])
    for key in ("params", "mu", "nu"):
        before, after = (
            jax.device_get(one.params if key == "params" else optax.tree.get(one.opt_state, key)) for one in (trained, state)
        )
        table = after["embeddings"]["position"]
        np.testing.assert_array_equal(table[:-16], before["embeddings"]["position"])
        np.testing.assert_array_equal(table[-16:], fresh[-16:] if key == "params" else 0)
        assert before["embeddings"]["position"].any()
        jax.tree.map(np.testing.assert_array_equal, after["encoder"], before["encoder"])
    assert optax.tree.get(state.opt_state, "count") == 2


def test_moments_of_another_optimizer_are_refused(pretrained):
    config, folder, _ = pretrained
    config = starting_from(config, folder, keep_moments=True)
    config = replace(config, optimizer=replace(config.optimizer, name="lamb"))
    with pytest.raises(UserError, match=r"has the moments of adamw; allowed with optimizer.name = 'lamb': False"):
        init_from_run(config, fresh_state(config), mesh_of(1, 1, 1))


@pytest.mark.usefixtures("forgotten")
def test_moments_that_an_own_optimizer_did_not_keep_are_named(make_config, tmp_path, capsys):
    add_optimizer("mine")(lambda optimizer: optax.trace(optimizer.beta1) if optimizer.beta1 else optax.identity())
    config = make_config("bert", "2l8h", **{"optimizer.name": "mine", "optimizer.beta1": 0.0})
    save(config, tmp_path / "run", 1, fresh_state(config))
    used = {"field": "optimizer.name", "name": "mine", "file": "mine.py", "sha256": "0" * 64}
    RunFolder(tmp_path / "run").write_run({"data": {}, "code": {}, "numerics": {}, "entries": [used]})
    onwards = starting_from(replace(config, optimizer=replace(config.optimizer, beta1=0.5)), tmp_path / "run", keep_moments=True)
    with pytest.raises(UserError, match=r"the optimizer of the run before kept no \.trace.*; allowed: False"):
        init_from_run(onwards, fresh_state(onwards), mesh_of(1, 1, 1))
    assert "has the optimizer 'mine' of mine.py (sha256 000000000000), and test_restore.py" in capsys.readouterr().err


def test_a_run_whose_vocabulary_was_exchanged_starts_no_other(make_config, tmp_path):
    (tmp_path / "text.txt").write_text("\n\n".join(f"Text {number} is here. " * 20 for number in range(40)))
    source = {"data.source": f"text:{tmp_path / 'text.txt'}", "train.start_from": str(tmp_path / "other")}
    config = make_config("gpt", "6l4h", **source)
    corpus = load_corpus(config, None)
    folder = RunFolder.open_for_training(tmp_path / "other", config)
    corpus.save_vocab(folder.path)
    folder.write_run({"vocabulary": folder.vocabulary_hash(config)})
    check_same_vocabulary(config, corpus)
    folder.write_run({"vocabulary": "of another file"})
    with pytest.raises(UserError, match="is not the vocabulary that the run began with"):
        check_same_vocabulary(config, corpus)


def test_a_run_that_reads_a_text_otherwise_starts_no_other(make_config, tmp_path):
    (tmp_path / "text.txt").write_text("\n\n".join(f"Text {number} is here. " * 20 for number in range(40)))
    source = {"data.source": f"text:{tmp_path / 'text.txt'}", "model.vocab_size": 512, "data.validation_fraction": 0.2}
    cased = make_config("bert", "2l8h", **source, **{"data.lowercase": False})
    folder = RunFolder.open_for_training(tmp_path / "cased", cased)
    load_corpus(cased, None).save_vocab(folder.path)
    folder.write_run({"vocabulary": folder.vocabulary_hash(cased)})
    vocabulary = {"train.start_from": str(folder.path), "data.vocab_path": str(folder.path / "vocab.txt")}
    lower = make_config("bert", "2l8h", **source, **vocabulary)
    with pytest.raises(UserError, match=r"another vocabulary .* --config.data.vocab_path=.* and --config.data.lowercase=False"):
        check_same_vocabulary(lower, load_corpus(lower, None))
    of_bytes = make_config("gpt", "6l4h", **source, **{"train.start_from": str(folder.path)})
    with pytest.raises(UserError, match="was trained on wordpiece tokens, not bytes; start from another run"):
        check_same_vocabulary(of_bytes, load_corpus(of_bytes, None))
    same = make_config("bert", "2l8h", **source, **vocabulary, **{"data.lowercase": False})
    check_same_vocabulary(same, load_corpus(same, None))
