"""A model and its parameters as a folder that transformers loads: the plain Post-LN BERT that
computes the same. Omega is folded into the weights, heads are padded, tables written out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float64
from msgspec.structs import replace

from mhsh.config.schema import ModelConfig
from mhsh.data.wordpiece import WordPieceTokenizer
from mhsh.errors import UserError
from mhsh.interop.bert_config import EXPORTABLE, bert_config, check_fields
from mhsh.interop.bert_tensors import to_tensors
from mhsh.interop.vocabulary import write_vocabulary
from mhsh.interop.weights import CONFIG_FILE, write_weights
from mhsh.models.layers import sinusoids
from mhsh.models.schemes import deepnorm_constants
from mhsh.models.types import SUBLAYERS, encoder_stack

# What divides by less grows a million times and more: half precision, in which exported models are
# run, could not hold it.
SMALLEST_OMEGA = 1e-6
# The kernels of each sublayer that read the residual stream; their inputs are axis 1, after the
# layers.
_READERS = {"attention": ("query_kernel", "key_kernel", "value_kernel"), "feed_forward": ("up_kernel",)}


def export_bert(
    folder: Path, model: ModelConfig, params: Any, tokenizer: WordPieceTokenizer, *, lowercase: bool, labels: Sequence[str]
) -> ModelConfig:
    """Writes the files into `folder`; returns the plain BERT that they hold. `labels` name the
    classes by number (empty: LABEL_0, LABEL_1, ...). Raises UserError where no plain BERT computes
    what the model does, or a file cannot be written.
    """
    plain, plain_params = plain_bert(model, params)
    config = bert_config(plain, tokenizer.pad_id, labels)
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    masks = plain.objective == "mlm"
    write_vocabulary(folder, tokenizer, lowercase=lowercase, max_positions=plain.max_positions, masks=masks)
    write_weights(folder, to_tensors(plain, plain_params))
    return plain


def plain_bert(model: ModelConfig, params: Any) -> tuple[ModelConfig, Any]:
    """A Post-LN model with learned tables and N H = D, and fp32 parameters with which it computes
    what `model` does with `params`.

    What is plain already is passed on bit for bit. Raises UserError where there is none: another
    objective, another residual scheme, an omega that cannot be divided by, heads too wide.
    """
    check_exportable(model)
    params = jax.tree.map(np.asarray, params)
    return pad_heads(*fold_residuals(*write_tables(model, params)))


def write_tables(model: ModelConfig, params: Any) -> tuple[ModelConfig, Any]:
    """Sines as a table like a learned one; and two silent token types where there are none."""
    embeddings = dict(params["embeddings"])
    if model.positions == "sinusoidal":
        embeddings["position"] = sinusoids(model.max_positions, model.embed_dim)
    if not model.num_token_types:
        embeddings["token_type"] = np.zeros((2, model.embed_dim), np.float32)
    plain = replace(model, positions="learned", num_token_types=model.num_token_types or 2)
    return plain, params | {"embeddings": embeddings}


def fold_residuals(model: ModelConfig, params: Any) -> tuple[ModelConfig, Any]:
    """LN(omega x + f(x)) as LN(x' + f'(x')) with x' = omega x, for Admin's omega and DeepNorm's
    alpha.

    x is the affine output of the LayerNorm before the sublayer (the embeddings' before the first),
    so its scale and bias times omega make x'; and f' is f with the kernels that read x divided by
    omega along their inputs. The last LayerNorm stays as it is: what reads it are the heads. All of
    it in fp64, rounded once. Raises UserError where an omega is not finite, or is below
    SMALLEST_OMEGA: what f reads of such a coordinate cannot be had from omega x.
    """
    if model.residual == "post_ln":
        return model, params
    omega = _omega(model, params)
    layers = dict(params["encoder"]["layers"])
    for name in SUBLAYERS["encoder"]:
        readers = {kernel: _scale_axes(layers[name][kernel], 1 / omega[name]) for kernel in _READERS[name]}
        layers[name] = layers[name] | readers
    attention, feed_forward = omega["attention"], omega["feed_forward"]
    # The LayerNorm after each sublayer feeds the next one.
    following = {"attention": feed_forward, "feed_forward": np.concatenate([attention[1:], np.ones_like(attention[:1])])}
    for name, factor in following.items():
        norm = layers[f"{name}_residual"]["norm"]
        layers[f"{name}_residual"] = {"norm": {part: _scale_axes(values, factor) for part, values in norm.items()}}
    norm = {part: _scale_axes(values, attention[0]) for part, values in params["embeddings"]["norm"].items()}
    folded = params | {"embeddings": params["embeddings"] | {"norm": norm}, "encoder": params["encoder"] | {"layers": layers}}
    return replace(model, residual="post_ln"), folded


def pad_heads(model: ModelConfig, params: Any) -> tuple[ModelConfig, Any]:
    """The model with heads of width D / N' that attend as before: zeros beside the H that there
    are, and as many heads of zeros as N' is more.

    transformers divides the scores by sqrt(D / N'), so that queries grow by sqrt(D / N' / H), in
    fp64. Raises UserError where N heads of width H have no room in D.
    """
    num_heads, head_dim = _head_grid(model)
    if (num_heads, head_dim) == (model.num_heads, model.head_dim):
        return model, params
    more = ((0, num_heads - model.num_heads), (0, head_dim - model.head_dim))
    scale = np.float64(math.sqrt(head_dim / model.head_dim))
    attention = dict(params["encoder"]["layers"]["attention"])
    for part in ("query", "key", "value"):
        for values, axes in ((f"{part}_kernel", ((0, 0), (0, 0))), (f"{part}_bias", ((0, 0),))):
            wide = np.pad(attention[values], (*axes, *more))
            attention[values] = (wide * scale).astype(np.float32) if part == "query" else wide
    attention["out_kernel"] = np.pad(attention["out_kernel"], ((0, 0), *more, (0, 0)))
    encoder = params["encoder"] | {"layers": params["encoder"]["layers"] | {"attention": attention}}
    return replace(model, num_heads=num_heads, head_dim=head_dim), params | {"encoder": encoder}


def check_exportable(model: ModelConfig) -> None:
    """Raises UserError where no plain BERT computes what the model does."""
    check_fields("model", model, EXPORTABLE, "BERT")
    _head_grid(model)


def _omega(model: ModelConfig, params: Any) -> dict[str, Float64[np.ndarray, "L D"]]:
    """The factor on the stream before every sublayer."""
    names = SUBLAYERS["encoder"]
    if model.residual == "deepnorm":
        alpha, _ = deepnorm_constants(encoder_stack(model))
        return {name: np.full((model.num_layers, model.embed_dim), alpha, np.float64) for name in names}
    omega = {name: params["encoder"]["layers"][f"{name}_residual"]["omega"].astype(np.float64) for name in names}
    for name, values in omega.items():
        bad = ~(np.isfinite(values) & (np.abs(values) >= SMALLEST_OMEGA))
        if bad.any():
            layer, element = np.argwhere(bad)[0]
            raise UserError(
                f"omega of encoder layer {layer}, {name}, element {element}, is {values[layer, element]:g} (of {bad.sum()} such): "
                f"folding divides weights by it, which needs {SMALLEST_OMEGA:g} or more in size; export another step"
            )
    return omega


def _scale_axes(values: np.ndarray, factor: Float64[np.ndarray, "*layers D"]) -> np.ndarray:
    """Values [L,D,...] or [D] times a factor for each of [L,D] or [D]."""
    factor = factor.reshape(factor.shape + (1,) * (values.ndim - factor.ndim))
    return (values.astype(np.float64) * factor).astype(np.float32)


def _head_grid(model: ModelConfig) -> tuple[int, int]:
    """N' >= N and the width D / N' >= H, of the fewest heads that divide D."""
    width = model.embed_dim
    for num_heads in range(model.num_heads, width // model.head_dim + 1):
        if width % num_heads == 0:
            return num_heads, width // num_heads
    raise UserError(
        f"model.num_heads = {model.num_heads} of model.head_dim = {model.head_dim} cannot be exported: transformers divides "
        f"model.embed_dim = {width} among the heads, and no number of heads from {model.num_heads} on leaves each that width"
    )
