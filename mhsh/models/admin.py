"""Admin's profiling pass: omega of every sublayer from one forward pass of the initial model."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from mhsh.config.schema import ModelConfig
from mhsh.models.build import MODELS, by_xla
from mhsh.models.residual import AdminProfile
from mhsh.models.types import SUBLAYERS, Batch


def is_profiled(config: ModelConfig) -> bool:
    """Whether omega is measured on the first batch."""
    return config.residual == "admin" and config.admin_omega == "profiled"


def profile_omega(config: ModelConfig, params: Any, batch: Batch) -> dict[str, Float[Array, "_ _"]]:
    """omega [L, sublayers] of each stack, sublayers as in SUBLAYERS, from one pass without dropout.

    Encoder and decoder each start at omega = 1 (arXiv 2004.08249, section 4.2). Pure and jittable;
    on a mesh the variances are over the global batch. `params` are those of the Admin model.
    """
    model = MODELS[config.objective](by_xla(config), AdminProfile)
    _, collected = model.apply({"params": params}, batch, None, mutable=["omega"])
    stacks: Any = collected["omega"]
    return {
        stack: jnp.stack([stacks[stack]["layers"][f"{name}_residual"]["omega"][0] for name in names], axis=1)
        for stack, names in SUBLAYERS.items()
        if stack in stacks
    }


def set_omega(params: Any, omega: dict[str, Float[Array, "_ _"]]) -> Any:
    """`params` with every omega vector [L,D] set to its sublayer's number; all else is shared."""
    changed = {}
    for stack, values in omega.items():
        layers = dict(params[stack]["layers"])
        for index, name in enumerate(SUBLAYERS[stack]):
            scheme = layers[f"{name}_residual"]
            old = scheme["omega"]
            new = jnp.broadcast_to(values[:, index, None], old.shape).astype(old.dtype)
            layers[f"{name}_residual"] = scheme | {"omega": new}
        changed[stack] = params[stack] | {"layers": layers}
    return params | changed


def read_omega(params: Any) -> dict[str, Float[Array, "_ _ D"]]:
    """The omega vectors [L,sublayers,D] of a model by stack."""
    return {
        stack: jnp.stack([params[stack]["layers"][f"{name}_residual"]["omega"] for name in names], axis=1)
        for stack, names in SUBLAYERS.items()
        if stack in params
    }
