"""A translation model small enough to decode with in a test, its parameters drawn at random, and a vocabulary for it."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from flax import linen as nn

from mhsh.config import Config, from_dict
from mhsh.data.translation_tokenizer import TranslationTokenizer, train_tokenizer
from mhsh.models.model import build_model
from mhsh.models.seq2seq import Seq2Seq

MAX_POSITIONS = 32


def small_config() -> Config:
    """Two layers of two heads on either side."""
    return from_dict(
        {
            "model": dict(
                objective="translation",
                vocab_size=320,
                max_positions=MAX_POSITIONS,
                positions="sinusoidal",
                num_token_types=0,
                next_sentence=False,
                num_layers=2,
                num_decoder_layers=2,
                num_heads=2,
                head_dim=8,
                embed_dim=16,
                mlp_dim=32,
                activation="relu",
                residual="admin",
                admin_omega="closed_log",
                init="xavier",
                hidden_dropout=0.1,
                attention_dropout=0.1,
                mlp_dropout=0.1,
                embedding_dropout=0.1,
                layer_norm_epsilon=1e-5,
                compute_dtype="float32",
                residual_dtype="float32",
                remat_policy="none",
                scan_unroll=1,
            ),
            "data": dict(
                source="numbers",
                validation_source="",
                tokenizer="bpe",
                vocab_path="",
                sequence_length=16,
                layout="packed",
                max_length_ratio=2.0,
                validation_fraction=0.0,
                validation_sentences=0,
                seed=0,
            ),
            "optimizer": dict(
                name="radam",
                learning_rate=1e-3,
                schedule="inverse_sqrt",
                warmup_steps=4,
                beta1=0.9,
                beta2=0.98,
                epsilon=1e-8,
                weight_decay=0.0,
                clip_norm=0.0,
            ),
            "train": dict(
                seed=0,
                num_steps=8,
                batch_size=4,
                label_smoothing=0.1,
                accumulation_steps=1,
                log_interval=1,
                eval_interval=0,
                eval_batches=0,
                checkpoint_interval=4,
                keep_checkpoints=5,
                keep_every=0,
                max_skipped_steps=5,
                hang_seconds=0,
            ),
            "mesh": dict(data=-1, fsdp=1, tensor=1),
        }
    )


@functools.cache
def small_tokenizer() -> TranslationTokenizer:
    """A vocabulary with a few pieces longer than a byte."""
    return train_tokenizer(
        "bpe", ["der die das und in den von zu mit sich the of and to in a is"] * 3, small_config().model.vocab_size
    )


def small_model() -> Seq2Seq:
    """The model of `small_config`."""
    model = build_model(small_config().model)
    assert isinstance(model, Seq2Seq)
    return model


@functools.cache
def random_params(seed: int) -> Any:
    """Parameters as they are initialised, the kernels eight times as large: the output then hangs on the input."""
    row = np.zeros((1, 4), np.int32)
    source = {"inputs": row, "inputs_position": row, "inputs_segmentation": row}
    batch = source | {"decoder_inputs": row, "targets_position": row, "targets_segmentation": row}
    params = nn.unbox(small_model().init(jax.random.key(seed), batch, deterministic=True))["params"]
    return jax.tree_util.tree_map_with_path(lambda path, leaf: 8 * leaf if "kernel" in jax.tree_util.keystr(path) else leaf, params)
