"""The checksum of what was validated: the same on any mesh, and another for any other batches."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
from jax.sharding import PartitionSpec
from msgspec.structs import replace

from mhsh.data.load import load_corpus
from mhsh.data.tables import ArrayTable
from mhsh.models.build import build_model
from mhsh.training.sharding import ROWS, process_rows, put_batch
from mhsh.training.step import compile_eval_step, predict_step
from mhsh.training.validation import Validator
from tests.training.batches import random_batch
from tests.training.states import ONE, fresh_state, mesh_of


@pytest.fixture(scope="module")
def config(make_config, tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n".join(f"It is {n}. Then comes {n + 1}.\nAll is well." for n in range(200)) + "\n")
    small = {"vocab_size": 300, "num_layers": 1, "heads_per_layer": 0, "embed_dim": 16, "head_dim": 2, "mlp_dim": 16}
    data = {"data.source": f"text:{path}", "data.validation_fraction": 0.3}
    return make_config("bert", "2l8h", **{f"model.{name}": value for name, value in small.items()}, **data)


def test_the_checksum_is_that_of_all_validation_batches(config):
    corpus = load_corpus(config, None)
    rows = corpus.validation.all()
    other = {name: values.copy() for name, values in rows.items()}
    other["tokens"][-1, 1] += 1  # the last row, in the last batch
    corpora = {"same": corpus, "other": dataclasses.replace(corpus, validation=ArrayTable(other))}
    found = {}
    for name, shape in (("same", ONE), ("same", (4, 2, 1)), ("other", ONE)):
        mesh, params = mesh_of(*shape), fresh_state(config, shape).params
        validator = Validator(config, build_model(config.model), mesh, corpora[name], params)
        assert validator.num_batches > 1
        found[name, shape] = [validator(params).batches, validator(params, validator.num_batches - 1).batches]
    assert found["same", ONE] == found["same", (4, 2, 1)]
    assert found["other", ONE][0] != found["same", ONE][0]
    assert found["other", ONE][1] == found["same", ONE][1] != found["same", ONE][0]


def test_the_parts_of_the_loss_are_those_of_its_batches(config):
    corpus, mesh = load_corpus(config, None), mesh_of(*ONE)
    params = fresh_state(config, ONE).params
    validator = Validator(config, build_model(config.model), mesh, corpus, params)
    batches = corpus.validation_batches(config.train.batch_size, process_rows(mesh, config.train.batch_size))
    weights = [batch["weights"].sum() for batch in batches]
    whole, first = validator(params), validator(params, 1)
    assert 1 < len(whole.loss_parts) == validator.num_batches <= 20
    assert first.loss_parts == [first.values["target_loss"]] == whole.loss_parts[:1]
    np.testing.assert_allclose(np.average(whole.loss_parts, weights=weights), whole.values["target_loss"], rtol=1e-12)


def test_a_validation_is_cut_into_the_micro_batches_of_a_step(config):
    """On two devices: it needs no more memory than they do, and changes no figure and no row."""
    corpus, model, mesh = load_corpus(config, None), build_model(config.model), mesh_of(2, 1, 1)
    params, batch = fresh_state(config, (2, 1, 1)).params, put_batch(random_batch(config, config.train.batch_size), mesh)
    values, sizes, logits = [], [], []
    for count in (1, 4):
        cut = replace(config, train=replace(config.train, accumulation_steps=count))
        validator = Validator(cut, model, mesh, corpus, params)
        values.append(validator(params, 1).values)
        sizes.append(validator._step.memory_analysis().temp_size_in_bytes)
        step = functools.partial(predict_step, count=count)
        logits.append(np.asarray(compile_eval_step(step, (PartitionSpec(), ROWS), cut, model, mesh, params)(params, batch)[1]))
    assert values[1] == pytest.approx(values[0], rel=1e-5)
    np.testing.assert_allclose(logits[1], logits[0], rtol=0, atol=1e-5 * np.abs(logits[0]).max())
    assert sizes[1] < sizes[0] / 2
