"""Small random batches in the form of the data pipeline, for tests of what comes after it."""

from __future__ import annotations

import numpy as np

from mhsh.config.schema import Config
from mhsh.training.state import example_batch


def random_batch(config: Config, batch_size: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Rows of random tokens with random padding and an unequal number of predictions a row."""
    rng = np.random.default_rng(seed)
    batch = example_batch(config, batch_size)
    rows, length = batch["inputs"].shape
    real = rng.integers(length // 2, length + 1, rows)
    batch["inputs"] = rng.integers(5, config.model.vocab_size, (rows, length), dtype=np.int32)
    batch["inputs_position"] = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    batch["inputs_segmentation"] = (np.arange(length) < real[:, None]).astype(np.int32)
    if config.model.objective in ("classification", "span"):
        most = config.model.num_classes if config.model.objective == "classification" else length // 2
        batch["targets"] = rng.integers(0, max(most, 2), batch["targets"].shape).astype(batch["targets"].dtype)
        batch["weights"] = np.ones(batch["targets"].shape, np.float32)
        return _with_types(batch, real)
    predicted = batch["targets"].shape[1]
    batch["targets"] = rng.integers(5, config.model.vocab_size, (rows, predicted), dtype=np.int32)
    counts = rng.integers(1, predicted + 1, rows)
    batch["weights"] = (np.arange(predicted) < counts[:, None]).astype(np.float32)
    if "decoder_inputs" in batch:
        real = rng.integers(1, length + 1, rows)
        batch["decoder_inputs"] = np.concatenate([np.full((rows, 1), 2, np.int32), batch["targets"][:, :-1]], axis=1)
        batch["targets_position"] = batch["inputs_position"]
        batch["targets_segmentation"] = (np.arange(length) < real[:, None]).astype(np.int32)
        batch["weights"] = batch["targets_segmentation"].astype(np.float32)
    elif "targets_position" in batch:
        batch["targets_position"] = np.sort(rng.integers(0, real[:, None], (rows, predicted)), axis=1).astype(np.int32)
    batch = _with_types(batch, real)
    if "next_sentence" in batch:
        batch["next_sentence"] = rng.integers(0, 2, rows, dtype=np.int32)
        batch["row_weights"] = np.ones(rows, np.float32)
    return batch


def _with_types(batch: dict[str, np.ndarray], real: np.ndarray) -> dict[str, np.ndarray]:
    if "token_types" in batch:
        batch["token_types"] = (np.arange(batch["inputs"].shape[1]) >= real[:, None] // 2).astype(np.int32)
    return batch
