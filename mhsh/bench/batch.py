"""Synthetic batches: random tokens without padding, in the shapes and dtypes of real ones."""

from __future__ import annotations

import numpy as np

from mhsh.config.schema import Config
from mhsh.training.state import example_batch

SEED = 0


def synthetic_batch(config: Config, rows: int) -> dict[str, np.ndarray]:
    """`rows` rows of data.sequence_length tokens, one segment each; the same for equal configs."""
    generator = np.random.default_rng(SEED)
    model = config.model
    batch = example_batch(config, rows)
    rows, length = batch["inputs"].shape
    position = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
    for key, values in batch.items():
        if key in ("inputs", "decoder_inputs"):
            batch[key] = generator.integers(model.vocab_size, size=values.shape, dtype=np.int32)
        elif key == "token_types":
            batch[key] = (position >= length // 2).astype(np.int32) % model.num_token_types
        elif key == "next_sentence":
            batch[key] = generator.integers(2, size=values.shape, dtype=np.int32)
        elif key.endswith("_position"):
            positions = [np.sort(generator.permutation(length)[: values.shape[1]]) for _ in range(rows)]
            batch[key] = np.stack(positions).astype(np.int32)  # all of 0 ... T - 1 in order; with mlm, P of them
        elif key.endswith("_segmentation") or key.endswith("weights"):
            batch[key] = np.ones_like(values)
    batch["targets"] = _targets(config, batch["targets"], generator)
    return batch


def _targets(config: Config, like: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    model = config.model
    if np.issubdtype(like.dtype, np.floating):
        return generator.random(like.shape, np.float32)
    classes = {"classification": model.num_classes, "span": config.data.sequence_length}.get(model.objective, model.vocab_size)
    return generator.integers(classes, size=like.shape, dtype=like.dtype)
