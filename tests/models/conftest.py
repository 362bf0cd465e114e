"""A tiny BERT, literal batches, and one measure of "equal" for the tests of the models."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from msgspec.structs import replace

from mhsh.config.schema import ModelConfig
from mhsh.models.build import build_model
from mhsh.models.costs import parameter_shapes

TINY = dict(
    vocab_size=48,
    max_positions=16,
    num_layers=3,
    num_heads=2,
    head_dim=4,
    embed_dim=12,
    mlp_dim=20,
    residual="post_ln",
    remat_policy="none",
    init="xavier",
    hidden_dropout=0.0,
    attention_dropout=0.0,
    embedding_dropout=0.0,
)


@pytest.fixture(scope="session")
def tiny(make_config) -> Callable[..., ModelConfig]:
    """tiny(num_heads=1): a BERT with all its parts that compiles in a second, dropout off, fields
    replaced.
    """
    return functools.partial(replace, make_config("bert", "2l8h").model, **TINY)


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., dict[str, np.ndarray]]:
    """make_batch([[1, 1, 2, 0]]): random tokens in these segments (0: padding), P positions of each
    row predicted.
    """

    def make(segmentation: Sequence[Sequence[int]], *, vocab_size: int = 48, predicted: int = 3, seed: int = 0) -> dict[str, Any]:
        segments = np.array(segmentation, np.int32)
        rows, length = segments.shape
        starts = np.array([[np.argmax(row == segment) for segment in row] for row in segments], np.int32)
        rng = np.random.default_rng(seed)
        weights = rng.integers(0, 2, (rows, predicted)).astype(np.float32)
        weights[:, 0] = 1.0
        return {
            "inputs": rng.integers(0, vocab_size, (rows, length)).astype(np.int32),
            "inputs_position": np.arange(length, dtype=np.int32)[None] - starts,
            "inputs_segmentation": segments,
            "token_types": rng.integers(0, 2, (rows, length)).astype(np.int32),
            "targets_position": np.stack([rng.permutation(length)[:predicted] for _ in segments]).astype(np.int32),
            "targets": rng.integers(0, vocab_size, (rows, predicted)).astype(np.int32),
            "weights": weights,
            "next_sentence": rng.integers(0, 2, (rows,)).astype(np.int32),
            "row_weights": np.ones((rows,), np.float32),
        }

    return make


@pytest.fixture(scope="session")
def tiny_seq2seq(tiny) -> Callable[..., ModelConfig]:
    """tiny_seq2seq(num_heads=1): an encoder of two layers and a decoder of three, else as
    `tiny`.
    """
    base = tiny(
        objective="translation",
        positions="sinusoidal",
        num_token_types=0,
        next_sentence=False,
        num_layers=2,
        num_decoder_layers=3,
        activation="relu",
        layer_norm_epsilon=1e-5,
    )
    return functools.partial(replace, base)


@pytest.fixture(scope="session")
def make_pairs() -> Callable[..., dict[str, np.ndarray]]:
    """make_pairs([[1, 1, 2, 0]], [[1, 2, 2, 2]]): random sentence pairs in these segments of
    sources and targets.
    """

    def make(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], *, seed: int = 0) -> dict[str, Any]:
        rng = np.random.default_rng(seed)
        batch = {}
        for side, rows in (("inputs", sources), ("targets", targets)):
            segments = np.array(rows, np.int32)
            starts = np.array([[np.argmax(row == segment) for segment in row] for row in segments], np.int32)
            batch[side] = rng.integers(4, 48, segments.shape).astype(np.int32)
            batch[f"{side}_segmentation"] = segments
            batch[f"{side}_position"] = np.arange(segments.shape[1], dtype=np.int32)[None] - starts
        first = batch["targets_position"] == 0
        batch["decoder_inputs"] = np.where(first, 2, np.roll(batch["targets"], 1, axis=1)).astype(np.int32)
        return batch | {"weights": (batch["targets_segmentation"] > 0).astype(np.float32)}

    return make


@pytest.fixture(scope="session")
def fresh() -> Callable[..., Any]:
    """fresh(config, batch, seed=0): the initial parameters."""

    def init(config: ModelConfig, batch: dict[str, np.ndarray], seed: int = 0) -> Any:
        model = build_model(config)
        return jax.jit(lambda key: nn.unbox(model.init(key, batch, None))["params"])(jax.random.key(seed))

    return init


@pytest.fixture(scope="session")
def random_like() -> Callable[..., Any]:
    """random_like(shapes): parameters of noise, scales and omegas about 1; none is silent, as
    biases and alphas at first are.
    """

    def make(shapes: Any, seed: int = 1) -> Any:
        rng = np.random.default_rng(seed)

        def leaf(path: tuple[Any, ...], shape: Any) -> np.ndarray:
            centre = 1.0 if path[-1].key in ("scale", "omega") else 0.0
            return (centre + 0.3 * rng.standard_normal(shape.shape)).astype(np.float32)

        return jax.tree.map(jnp.asarray, jax.tree_util.tree_map_with_path(leaf, nn.unbox(shapes)))

    return make


@pytest.fixture(scope="session")
def random_params(random_like) -> Callable[..., Any]:
    """random_params(config): such parameters for a whole model."""
    return lambda config, seed=1: random_like(parameter_shapes(config), seed)


@pytest.fixture(scope="session")
def error() -> Callable[[Any, Any], float]:
    """error(actual, expected): the largest difference of any leaf, relative to that leaf's largest
    element.

    A leaf that is zero but for rounding (the gradient of a key bias, which softmax does not see) is
    held against the largest leaf.
    """

    def measure(actual: Any, expected: Any) -> float:
        assert jax.tree.structure(actual) == jax.tree.structure(expected)
        pairs = [
            (np.asarray(a, np.float64), np.asarray(e, np.float64))
            for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
        ]
        assert all(a.shape == e.shape for a, e in pairs)
        largest = max(np.abs(e).max() for _, e in pairs)
        assert np.isfinite(largest) and largest > 0
        scales = [np.abs(e).max() if np.abs(e).max() > 1e-5 * largest else largest for _, e in pairs]
        return max(np.abs(a - e).max() / scale for (a, e), scale in zip(pairs, scales, strict=True))

    return measure
