"""Gradient flow: the norm of the loss's gradient in every layer and sublayer."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from msgspec.structs import replace

from mhsh.config.schema import ModelConfig
from mhsh.models.build import build_model, forward
from mhsh.models.losses import compute_metrics, loss_weights, total_loss
from mhsh.models.types import SUBLAYERS, Batch


def gradient_flow(config: ModelConfig, params: Any, batch: Batch) -> dict[str, Any]:
    """The loss of a batch without dropout (nats), and by stack the gradient's norm in each layer.

    `layer` is the norm over all parameters of a layer. There is one for each sublayer, and `joins`
    for LayerNorms, omega and alpha. The squares of these parts add up to the square of `layer`.
    """
    # This policy makes memory grow with the square root of the depth; the gradient is the same.
    model = build_model(replace(config, remat_policy="groups"))

    def loss(params: Any) -> Float[Array, ""]:
        return total_loss(compute_metrics(forward(model, params, batch, None), batch), loss_weights(batch))

    def norms(params: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params)
        return value, {
            stack: _stack_norms(gradients[stack]["layers"], names) for stack, names in SUBLAYERS.items() if stack in gradients
        }

    value, found = jax.device_get(jax.jit(norms)(params))
    return {
        "loss": float(value),
        "stacks": {
            stack: {part: np.asarray(found[stack][part]).tolist() for part in ("layer", *names, "joins")}
            for stack, names in SUBLAYERS.items()
            if stack in found
        },
    }


def norm_by_layer(gradients: Any) -> Float[Array, " L"]:
    """The norm over all leaves, for each layer (the first axis)."""
    squares = [jnp.sum(jnp.square(leaf), axis=tuple(range(1, leaf.ndim))) for leaf in jax.tree.leaves(gradients)]
    return jnp.sqrt(sum(squares, start=jnp.zeros(())))


def _stack_norms(layers: Any, names: tuple[str, ...]) -> dict[str, Float[Array, " L"]]:
    # A join without parameters, as HybridNorm's around attention, has no entry.
    joins = {name: gradients for name, gradients in layers.items() if name not in names}
    parts = {name: layers[name] for name in names} | {"joins": joins}
    return {"layer": norm_by_layer(layers)} | {part: norm_by_layer(gradients) for part, gradients in parts.items()}
