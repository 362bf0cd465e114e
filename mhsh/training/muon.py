"""Muon: the momentum of each kernel of a layer, orthogonalised."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from mhsh.config.entries import add_optimizer
from mhsh.config.schema import Config, OptimizerConfig
from mhsh.config.shapes import feed_forward_kernels
from mhsh.models.parameters import KERNELS, STACKED, Kernel, is_kernel, parameter_path
from mhsh.training.optimizer import adam


def muon_axes(kernel: Kernel, heads: str) -> MuonDimensionNumbers:
    """The axes that a kernel contracts, and those of its output, counted from the last one; all
    others number the matrices, layers first: with `heads` = each (optimizer.muon_heads) heads, too.
    """
    numbers = range(-len(kernel.axes), 0)
    inputs, outputs = (
        tuple(number for number in side if heads == "joined" or kernel.axes[number] not in ("heads", "kv_heads"))
        for side in (numbers[: kernel.num_inputs], numbers[kernel.num_inputs :])
    )
    return MuonDimensionNumbers(inputs, outputs)


# The root mean square of AdamW's updates, to which Muon's are scaled (arXiv 2502.16982, section
# 2.2), so that AdamW's learning rate and weight decay carry over.
MUON_RMS = 0.2

NEWTON_SCHULZ_STEPS = 5


def orthogonalization_flops(config: Config) -> int:
    """FLOPs of the Newton-Schulz iterations of one update."""
    model = config.model
    attentions, stacks = model.num_layers + 2 * model.num_decoder_layers, model.num_layers + model.num_decoder_layers
    each = config.optimizer.muon_heads == "each"
    attention = sum(  # of the kernels of queries and output, and of those of keys and values
        2 * (heads if each else 1) * _orthogonalized_flops(model.embed_dim, model.head_dim * (1 if each else heads))
        for heads in (model.num_heads, model.kv_heads)
    )
    feed_forward = feed_forward_kernels(model) * _orthogonalized_flops(model.embed_dim, model.mlp_dim)
    return attentions * attention + stacks * feed_forward


def _orthogonalized_flops(rows: int, columns: int) -> int:
    """The FLOPs of one matrix. Each iteration computes A = X X^T, A A, and a sum of both times X,
    of X with its shorter side first.
    """
    shorter, longer = sorted((rows, columns))
    return NEWTON_SCHULZ_STEPS * (2 * 2 * shorter**2 * longer + 2 * shorter**3)


# Its updates have one size, whatever that of the gradients, which CompleteP scales.
@add_optimizer(
    "muon", source="Jordan et al. 2024, kellerjordan.github.io/posts/muon", whole_matrices=True, flops=orthogonalization_flops
)
def muon(optimizer: OptimizerConfig) -> optax.GradientTransformation:
    """Muon for the layers' kernels (Jordan et al. 2024, kellerjordan.github.io/posts/muon): the
    Nesterov momentum of a matrix, orthogonalised by five Newton-Schulz iterations and scaled to a
    root mean square of MUON_RMS. All other parameters, also the heads' kernels, have Adam's
    moments.

    A stacked kernel is a matrix for each layer: of all heads, or of one head (muon_heads = each).
    """
    moments, by_name = adam(optimizer), {name: muon_axes(kernel, optimizer.muon_heads) for name, kernel in KERNELS.items()}

    def matrix(path: tuple[Any, ...], leaf: Any) -> MuonDimensionNumbers | None:
        *parents, name = (whole := parameter_path(path)).split("/")
        return by_name[name] if STACKED in parents and name in by_name and is_kernel(whole) else None

    def matrices(updates: Any) -> Any:
        return jax.tree_util.tree_map_with_path(matrix, updates)

    def rule(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(lambda *leaf: "moments" if matrix(*leaf) is None else "muon", params)

    def scale_update(path: tuple[Any, ...], update: jax.Array) -> jax.Array:
        axes = matrix(path, update)
        assert axes is not None, "only kernels are here"
        sides = (np.take(update.shape, side).prod() for side in (axes.reduction_axis, axes.output_axis))
        return MUON_RMS * math.sqrt(max(sides)) * update

    scale = optax.stateless(lambda updates, params: jax.tree_util.tree_map_with_path(scale_update, updates))
    orthogonalize = scale_by_muon(ns_steps=NEWTON_SCHULZ_STEPS, beta=optimizer.momentum, weight_dimension_numbers=matrices)
    return optax.partition({"muon": optax.chain(orthogonalize, scale), "moments": moments}, rule)
