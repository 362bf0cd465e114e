"""Admin's profiling pass: omega of every sublayer from one forward pass of the initial model."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from mhsh.config.entries import SCHEMES
from mhsh.config.schema import ModelConfig
from mhsh.models.build import MODELS, xla_config
from mhsh.models.layers import LayerNorm
from mhsh.models.residual import Residual, Stream
from mhsh.models.schemes import Admin
from mhsh.models.sublayer import Sublayer
from mhsh.models.types import SUBLAYERS, Batch, Stack


class Profile(NamedTuple):
    """The values that Admin's profiling pass hands from sublayer to sublayer."""

    omega: Float[Array, ""]  # of the next sublayer
    real: Bool[Array, "B T"]  # False at padding, which no variance includes


class AdminProfile(Residual):
    """Admin's profiling pass: the same sum, with omega from the outputs of the sublayers before.

    omega_1 = 1, omega_{i+1}^2 = Var[omega_i x_{i-1}] + Var[f_i(x_{i-1})] (arXiv 2004.08249, section
    4.2), with fp32 variances over all elements that are not padding. The LayerNorm parameters are
    Admin's; each omega is sown in the collection `omega`.
    """

    @classmethod
    def start(cls, config: ModelConfig, stack: Stack, x: Float[Array, "B T D"], real: Bool[Array, "B T"]) -> Stream:
        return Stream(x, Profile(jnp.ones((), jnp.float32), real))

    @nn.compact
    def __call__(self, stream: Stream, sublayer: Sublayer) -> Stream:
        profile = stream.carried
        assert isinstance(profile, Profile), "a profiling pass starts from AdminProfile.start"
        branch = sublayer(stream.x)
        shortcut = profile.omega.astype(stream.x.dtype) * stream.x
        self.sow("omega", "omega", profile.omega)
        following = jnp.sqrt(real_variance(shortcut, profile.real) + real_variance(branch, profile.real))
        x = LayerNorm(self.config, name="norm")(shortcut + branch.astype(stream.x.dtype))
        return Stream(x, Profile(following, profile.real))


def has_omega(config: ModelConfig) -> bool:
    """Whether the residual scheme is Admin, or one derived of it."""
    return issubclass(SCHEMES[config.residual].residual, Admin)


def is_profiled(config: ModelConfig) -> bool:
    """Whether omega is measured on the first batch."""
    return has_omega(config) and config.admin_omega == "profiled"


def profile_omega(config: ModelConfig, params: Any, batch: Batch) -> dict[str, Float[Array, "_ _"]]:
    """omega [L, sublayers] of each stack, sublayers as in SUBLAYERS, from one pass without dropout.

    Encoder and decoder each start at omega = 1 (arXiv 2004.08249, section 4.2). Pure and jittable;
    on a mesh the variances are over the global batch. `params` are those of the Admin model.
    """
    model = MODELS[config.objective](xla_config(config), AdminProfile)
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


def real_variance(x: Float[Array, "B T D"], real: Bool[Array, "B T"]) -> Float[Array, ""]:
    """The fp32 variance of all elements of `x` where `real` is True."""
    x = x.astype(jnp.float32)
    return jnp.var(x, where=jnp.broadcast_to(real[:, :, None], x.shape))
