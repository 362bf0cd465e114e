"""The checksum of what was validated: the same on any mesh, and another for any other batches."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

from mhsh.data.load import load_corpus
from mhsh.data.tables import ArrayTable
from mhsh.models.build import build_model
from mhsh.training.sharding import process_rows
from mhsh.training.validation import Decoding, Validator
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
        make = functools.partial(Validator, config, build_model(config.model), mesh, corpora[name])
        validator = make(process_rows(mesh, config.train.batch_size), params, Decoding(0, 1, 0.0))
        assert validator.num_batches > 1
        found[name, shape] = [validator(params).batches, validator(params, validator.num_batches - 1).batches]
    assert found["same", ONE] == found["same", (4, 2, 1)]
    assert found["other", ONE][0] != found["same", ONE][0]
    assert found["other", ONE][1] == found["same", ONE][1] != found["same", ONE][0]


def test_the_parts_of_the_loss_are_those_of_its_batches(config):
    corpus, mesh = load_corpus(config, None), mesh_of(*ONE)
    params = fresh_state(config, ONE).params
    rows = process_rows(mesh, config.train.batch_size)
    validator = Validator(config, build_model(config.model), mesh, corpus, rows, params, Decoding(0, 1, 0.0))
    weights = [batch["weights"].sum() for batch in corpus.validation_batches(config.train.batch_size, rows)]
    whole, first = validator(params), validator(params, 1)
    assert 1 < len(whole.loss_parts) == validator.num_batches <= 20
    assert first.loss_parts == [first.values["target_loss"]] == whole.loss_parts[:1]
    np.testing.assert_allclose(np.average(whole.loss_parts, weights=weights), whole.values["target_loss"], rtol=1e-12)
