"""Admin's profiling pass: omega of every sublayer from one forward pass of the fresh model on one batch."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from mhsh.config import ModelConfig
from mhsh.models.bert import Batch, Bert
from mhsh.models.residual import AdminProfile

# The order in which the stream meets a layer's sublayers.
SUBLAYERS = ("attention_residual", "feed_forward_residual")


def profile_omega(config: ModelConfig, params: Any, batch: Batch) -> Float[Array, "L 2"]:
    """omega by layer and sublayer (attention, feed-forward), in one pass in depth order inside the layer scan, dropout off.

    Pure and jittable: on a mesh, the variances are over the global batch. `params` are those of the Admin model.
    """
    _, collected = Bert(config, AdminProfile).apply({"params": params}, batch, deterministic=True, mutable=["omega"])
    layers: Any = collected["omega"]["encoder"]["layers"]
    return jnp.stack([layers[name]["omega"][0] for name in SUBLAYERS], axis=1)


def set_omega(params: Any, omega: Float[Array, "L 2"]) -> Any:
    """`params` with every omega vector [L, D] filled with its sublayer's figure; everything else is shared."""
    layers = dict(params["encoder"]["layers"])
    for index, name in enumerate(SUBLAYERS):
        old = layers[name]["omega"]
        layers[name] = layers[name] | {"omega": jnp.broadcast_to(omega[:, index, None], old.shape).astype(old.dtype)}
    return params | {"encoder": params["encoder"] | {"layers": layers}}


def read_omega(params: Any) -> Float[Array, "L 2 D"]:
    """The omega vectors of a model, by layer and sublayer."""
    layers = params["encoder"]["layers"]
    return jnp.stack([layers[name]["omega"] for name in SUBLAYERS], axis=1)
