"""Synthetic batches: the shapes and dtypes of real ones, with values that a model can read, and
losses that are finite.
"""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from mhsh.bench.decoding import Workload, writer
from mhsh.bench.steps import synthetic_batch
from mhsh.models.kernels.select import allow_interpreter
from mhsh.training.state import example_batch

HEADS = dict(next_sentence=False)
CONFIGS = [
    ("bert", "2l8h", {}),
    ("quickstart", "6l4h_post_ln", {}),
    ("translation", "tiny", {}),
    ("bert", "2l8h", dict(HEADS, objective="classification", num_classes=3)),
    ("bert", "2l8h", dict(HEADS, objective="classification", num_classes=1)),
    ("bert", "2l8h", dict(HEADS, objective="span")),
]


@pytest.mark.parametrize(("task", "variant", "overrides"), CONFIGS)
def test_values_are_in_range(make_config, task, variant, overrides):
    config = make_config(task, variant)
    config = replace(config, model=replace(config.model, **overrides))
    batch, like = synthetic_batch(config, 3), example_batch(config, 3)
    model, length = config.model, config.data.sequence_length
    assert {key: (each.shape, each.dtype) for key, each in batch.items()} == {
        key: (each.shape, each.dtype) for key, each in like.items()
    }
    limits = {"inputs": model.vocab_size, "decoder_inputs": model.vocab_size, "token_types": model.num_token_types}
    limits |= {"inputs_position": length, "targets_position": length, "next_sentence": 2}
    for key, limit in limits.items():
        if key in batch:
            assert batch[key].min() >= 0 and batch[key].max() < limit, key
    assert all((batch[key] == 1).all() for key in batch if key.endswith("_segmentation") or key.endswith("weights"))
    assert (batch["inputs_position"] == np.arange(length)).all()
    if model.objective != "classification" or model.num_classes > 1:
        limit = {"classification": 3, "span": length}.get(model.objective, model.vocab_size)
        assert batch["targets"].min() >= 0 and batch["targets"].max() < limit
    if model.objective == "mlm":
        assert (np.diff(batch["targets_position"], axis=1) > 0).all(), "no position is predicted twice"


def test_equal_configs_give_equal_batches(make_config):
    first, second = (synthetic_batch(make_config("bert", "2l8h"), 2) for _ in range(2))
    assert all((first[key] == second[key]).all() for key in first)
    assert len(np.unique(first["inputs"])) > 10


def test_a_model_that_writes_has_no_kernels(make_config):
    """They are of training, and would have whole rows of tokens."""
    config = make_config("quickstart", "6l4h_post_ln", **{"model.kernels": "fused"})
    config = replace(config, model=replace(config.model, num_layers=1))
    with allow_interpreter():
        (written,) = writer(config)(Workload({}, [np.arange(3, dtype=np.int32)], [2]))
    assert len(written) == 2
