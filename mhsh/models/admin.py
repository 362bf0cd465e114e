"""Admin's profiling pass: omega of every sublayer from one forward pass of the fresh model on one
batch.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from mhsh.config.schema import ModelConfig
from mhsh.models.build import MODELS
from mhsh.models.residual import AdminProfile
from mhsh.models.stack import SUBLAYERS
from mhsh.models.types import Batch


def profile_omega(config: ModelConfig, params: Any, batch: Batch) -> dict[str, Float[Array, "_ _"]]:
    """omega [L, sublayers] of every stack, sublayers as in SUBLAYERS, in one pass in depth order,
    dropout off.

    The encoder and then the decoder, each from omega = 1 (arXiv 2004.08249, section 4.2). Pure and
    jittable: on a mesh, the variances are over the global batch. `params` are those of the Admin
    model.
    """
    model = MODELS[config.objective](config, AdminProfile)
    _, collected = model.apply({"params": params}, batch, None, mutable=["omega"])
    stacks: Any = collected["omega"]
    return {
        stack: jnp.stack([stacks[stack]["layers"][f"{name}_residual"]["omega"][0] for name in names], axis=1)
        for stack, names in SUBLAYERS.items()
        if stack in stacks
    }


def set_omega(params: Any, omega: dict[str, Float[Array, "_ _"]]) -> Any:
    """`params` with every omega vector [L, D] filled with its sublayer's figure; everything else is
    shared.
    """
    changed = {}
    for stack, figures in omega.items():
        layers = dict(params[stack]["layers"])
        for index, name in enumerate(SUBLAYERS[stack]):
            joined = layers[f"{name}_residual"]
            old = joined["omega"]
            new = jnp.broadcast_to(figures[:, index, None], old.shape).astype(old.dtype)
            layers[f"{name}_residual"] = joined | {"omega": new}
        changed[stack] = params[stack] | {"layers": layers}
    return params | changed


def read_omega(params: Any) -> dict[str, Float[Array, "_ _ D"]]:
    """The omega vectors of a model by stack, layer and sublayer."""
    return {
        stack: jnp.stack([params[stack]["layers"][f"{name}_residual"]["omega"] for name in names], axis=1)
        for stack, names in SUBLAYERS.items()
        if stack in params
    }
