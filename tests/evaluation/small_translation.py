"""A translation model small enough to decode with in a test, its parameters drawn at random, and a
vocabulary for it.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from flax import linen as nn

from mhsh.config.resolve import from_dict
from mhsh.config.schema import Config
from mhsh.data.subword import SubwordTokenizer, train_subword
from mhsh.models.build import build_model
from mhsh.models.seq2seq import Seq2Seq
from tests.conftest import load_fields

MAX_POSITIONS = 32


def small_config() -> Config:
    """Two layers of two heads on either side, and room for 32 tokens."""
    fields = load_fields("translation", "tiny")
    shape = dict(num_heads=2, heads_per_layer=2, head_dim=8, embed_dim=16, mlp_dim=32)
    fields["model"] |= dict(vocab_size=320, max_positions=MAX_POSITIONS, admin_omega="closed_log", **shape)
    fields["data"] |= dict(sequence_length=16, validation_sentences=0)
    fields["optimizer"] |= dict(warmup_steps=4)
    fields["train"] |= dict(num_steps=8, batch_size=4, checkpoint_interval=4)
    return from_dict(fields)


@functools.cache
def small_tokenizer() -> SubwordTokenizer:
    """A vocabulary with a few pieces longer than a byte."""
    return train_subword(["der die das und in den von zu mit sich the of and to in a is"] * 3, small_config().model.vocab_size)


def small_model() -> Seq2Seq:
    """The model of `small_config`."""
    model = build_model(small_config().model)
    assert isinstance(model, Seq2Seq)
    return model


@functools.cache
def random_params(seed: int) -> Any:
    """Initial parameters, kernels eight times as large: the output then depends on the input."""
    row = np.zeros((1, 4), np.int32)
    source = {"inputs": row, "inputs_position": row, "inputs_segmentation": row}
    batch = source | {"decoder_inputs": row, "targets_position": row, "targets_segmentation": row}
    params = nn.unbox(jax.jit(small_model().init)(jax.random.key(seed), batch, None))["params"]
    return jax.tree_util.tree_map_with_path(lambda path, leaf: 8 * leaf if "kernel" in jax.tree_util.keystr(path) else leaf, params)
