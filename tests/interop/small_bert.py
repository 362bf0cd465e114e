"""Small BERTs for the tests of import and export: configs, parameters like trained ones, batches,
outputs.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np
from msgspec.structs import replace

from mhsh.config.resolve import from_dict
from mhsh.config.schema import Config, ModelConfig
from mhsh.data.wordpiece import SPECIALS, WordPieceTokenizer
from mhsh.models.admin import profile_omega
from mhsh.models.build import build_model, forward
from mhsh.models.costs import parameter_shapes
from mhsh.models.types import SUBLAYERS, Outputs
from tests.conftest import load_fields

GOLDEN = Path(__file__).parent / "golden"  # made by make_golden.py
LENGTH = 12
WORDS = ("the", "a", "of", "number", "##s", "##ing", "go", "é", "e", ".", ",", "THE", "Go")
TOKENS = (*SPECIALS, *WORDS)
SMALL = dict(
    vocab_size=31,
    max_positions=16,
    num_layers=2,
    num_heads=3,
    head_dim=4,
    embed_dim=12,
    mlp_dim=20,
    residual="post_ln",
    hidden_dropout=0.1,
    attention_dropout=0.1,
    embedding_dropout=0.1,
    mlp_dropout=0.0,
    compute_dtype="float32",
)
HEADS: dict[str, dict[str, Any]] = {
    "mlm": dict(objective="mlm", next_sentence=False),
    "pretraining": dict(objective="mlm", next_sentence=True),
    "classification": dict(objective="classification", next_sentence=False, num_classes=3),
    "regression": dict(objective="classification", next_sentence=False, num_classes=1),
    "span": dict(objective="span", next_sentence=False),
}


def small_tokenizer(lowercase: bool = True) -> WordPieceTokenizer:
    """The five specials, and words enough to make a sentence."""
    return WordPieceTokenizer(TOKENS, lowercase)


def small_config(**model: Any) -> Config:
    """configs/bert.py:2l8h with SMALL and `model` in the model section."""
    fields = load_fields("bert", "2l8h")
    fields["model"] |= SMALL | {"heads_per_layer": 0} | model
    fields["data"] |= dict(sequence_length=LENGTH, max_predictions=4)
    return from_dict(fields)


def small_model(**model: Any) -> ModelConfig:
    """The model section of configs/bert.py:2l8h with SMALL and `model` in it; also of other
    objectives than mlm.
    """
    base = small_config().model
    return replace(base, **model)


def trained_params(model: ModelConfig, seed: int = 0) -> Any:
    """Parameters in which nothing is silent: kernels that keep the variance, LayerNorms and biases
    off their start, and omega a fifth around what the profiling pass finds while the LayerNorms are
    at their start, one in twenty of them negative.
    """
    rng = np.random.default_rng(seed)

    def leaf(path: tuple[Any, ...], shape: Any) -> np.ndarray:
        name, noise = path[-1].key, rng.standard_normal(shape.shape)
        if name in ("scale", "omega"):
            return (1 + 0.2 * noise).astype(np.float32)
        if name.endswith("kernel"):
            stacked = path[0].key == "encoder"
            inputs = np.prod(shape.shape[stacked : -1 if not name.startswith(("query", "key", "value")) else -2])
            return (noise / np.sqrt(inputs)).astype(np.float32)
        return (0.2 * noise).astype(np.float32)

    params = jax.tree_util.tree_map_with_path(leaf, parameter_shapes(model))
    if model.residual == "admin":
        layers, profiled = params["encoder"]["layers"], _profiled(model, params, seed)
        for index, name in enumerate(SUBLAYERS["encoder"]):
            omega = layers[f"{name}_residual"]["omega"]
            signs = np.where(rng.random(omega.shape) < 0.05, -1, 1).astype(np.float32)
            layers[f"{name}_residual"]["omega"] = omega * signs * profiled[:, index, None]
    return params


def _profiled(model: ModelConfig, params: Any, seed: int) -> np.ndarray:
    """Omega [L, sublayers] of these parameters with every LayerNorm at its start."""
    starts = {"scale": np.ones_like, "bias": np.zeros_like}

    def leaf(path: tuple[Any, ...], values: np.ndarray) -> np.ndarray:
        return starts[path[-1].key](values) if "norm" in {part.key for part in path} else values

    fresh, batch = jax.tree_util.tree_map_with_path(leaf, params), as_batch(*random_inputs(model, seed))
    return np.asarray(jax.jit(lambda fresh: profile_omega(model, fresh, batch))(fresh)["encoder"])


def same(a: Any, b: Any) -> bool:
    """Whether two trees of arrays are equal to the byte."""
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        x.shape == y.shape and x.dtype == y.dtype and x.tobytes() == y.tobytes()
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def random_inputs(model: ModelConfig, seed: int = 0, rows: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Token ids, the mask of real tokens (rows of different lengths, the first full) and token
    types [B,T].
    """
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, model.vocab_size, (rows, LENGTH))
    lengths = np.array([LENGTH, *rng.integers(3, LENGTH, rows - 1)])
    mask = np.arange(LENGTH) < lengths[:, None]
    types = (np.arange(LENGTH) >= rng.integers(1, LENGTH, rows)[:, None]) & mask
    return ids, mask.astype(np.int64), types.astype(np.int64)


def as_batch(ids: np.ndarray, mask: np.ndarray, types: np.ndarray) -> dict[str, np.ndarray]:
    """What mhsh's model reads of what transformers' reads; every position is predicted."""
    everywhere = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    arrays = {
        "inputs": ids,
        "inputs_position": everywhere,
        "inputs_segmentation": mask,
        "token_types": types,
        "targets_position": everywhere,
    }
    return {name: np.ascontiguousarray(values, np.int32) for name, values in arrays.items()}


@functools.partial(jax.jit, static_argnums=0)
def _outputs(model: ModelConfig, params: Any, batch: dict[str, jax.Array]) -> Outputs:
    return forward(build_model(model), params, batch, None)


def outputs(model: ModelConfig, params: Any, batch: dict[str, np.ndarray]) -> Outputs:
    """The outputs without dropout, compiled."""
    return _outputs(model, params, batch)
