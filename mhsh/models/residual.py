"""How a sublayer joins the residual stream: one strategy a scheme, all called the same way."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from mhsh.config.schema import ModelConfig
from mhsh.kernels.residual_norm import Norm
from mhsh.models.layers import LayerNorm
from mhsh.models.stack import Stack


class Profile(NamedTuple):
    """What Admin's profiling pass carries from sublayer to sublayer."""

    omega: Float[Array, ""]  # of the next sublayer
    real: Bool[Array, "B T"]  # False at padding, over which no variance is taken


class Stream(NamedTuple):
    """What one sublayer hands to the next: the residual stream, and the profile in a profiling
    pass.
    """

    x: Float[Array, "B T D"]
    profile: Profile | None


Sublayer = Callable[[Float[Array, "B T D"]], Float[Array, "B T D"]]
JoinedSublayer = Callable[[Float[Array, "B T D"], Norm], Float[Array, "B T D"]]  # LN(omega * x + f(x)) in fused kernels


class Residual(nn.Module):
    """A residual scheme: `__call__` joins one sublayer f, which includes its dropout, to the
    stream. The schemes that normalise the sum may be given the sublayer fused with its join
    (mhsh/kernels/supported.py), which they take instead.
    """

    config: ModelConfig
    stack: Stack  # that the sublayer stands in
    final_norm: ClassVar[bool] = False  # whether a LayerNorm follows the last layer

    @classmethod
    def start(cls, x: Float[Array, "B T D"], real: Bool[Array, "B T"]) -> Stream:
        """The stream as it enters the first sublayer."""
        del real
        return Stream(x, None)

    @classmethod
    def init_gain(cls, stack: Stack) -> float:
        """The factor on the initial value, output and feed-forward kernels of a stack."""
        del stack
        return 1.0


class PostLN(Residual):
    """LN(x + f(x)) (Vaswani et al. 2017)."""

    def setup(self) -> None:
        self.norm = LayerNorm(self.config)

    def __call__(self, stream: Stream, sublayer: Sublayer, fused: JoinedSublayer | None = None) -> Stream:
        if fused is not None:
            return Stream(fused(stream.x, self.norm.with_omega(1.0)), None)
        return Stream(self.norm(stream.x + sublayer(stream.x).astype(stream.x.dtype)), None)


class PreLN(Residual):
    """x + f(LN(x)), with a LayerNorm after the last layer (Xiong et al. 2020, arXiv 2002.04745)."""

    final_norm: ClassVar[bool] = True

    @nn.compact
    def __call__(self, stream: Stream, sublayer: Sublayer, fused: JoinedSublayer | None = None) -> Stream:
        assert fused is None, "this scheme has no fused form"
        return Stream(stream.x + sublayer(LayerNorm(self.config, name="norm")(stream.x)).astype(stream.x.dtype), None)


class Admin(Residual):
    """LN(omega * x + f(x)), omega [D] trainable, one per sublayer (Liu et al. 2020, arXiv
    2004.08249, eq. 5).
    """

    def setup(self) -> None:
        start = closed_form_omega(self.config.admin_omega, self.stack.num_sublayers)
        init = nn.with_logical_partitioning(nn.initializers.constant(start), ("embed",))
        self.omega = jnp.asarray(self.param("omega", init, (self.config.embed_dim,)))
        self.norm = LayerNorm(self.config)

    def __call__(self, stream: Stream, sublayer: Sublayer, fused: JoinedSublayer | None = None) -> Stream:
        if fused is not None:
            return Stream(fused(stream.x, self.norm.with_omega(self.omega)), None)
        x = self.omega.astype(stream.x.dtype) * stream.x + sublayer(stream.x).astype(stream.x.dtype)
        return Stream(self.norm(x), None)


class DeepNorm(Residual):
    """LN(alpha x + f(x)), kernels scaled by beta at the start (Wang et al. 2022, arXiv
    2203.00555).
    """

    @classmethod
    def init_gain(cls, stack: Stack) -> float:
        return deepnorm_constants(stack)[1]

    def setup(self) -> None:
        self.norm = LayerNorm(self.config)

    def __call__(self, stream: Stream, sublayer: Sublayer, fused: JoinedSublayer | None = None) -> Stream:
        alpha, _ = deepnorm_constants(self.stack)
        if fused is not None:
            return Stream(fused(stream.x, self.norm.with_omega(alpha)), None)
        return Stream(self.norm(alpha * stream.x + sublayer(stream.x).astype(stream.x.dtype)), None)


class ReZero(Residual):
    """x + alpha f(x), alpha a trainable scalar that starts at 0, no LayerNorm (Bachlechner et al.
    2020, arXiv 2003.04887).
    """

    @nn.compact
    def __call__(self, stream: Stream, sublayer: Sublayer, fused: JoinedSublayer | None = None) -> Stream:
        assert fused is None, "this scheme has no fused form"
        init = nn.with_logical_partitioning(nn.initializers.zeros, ())
        alpha = jnp.asarray(self.param("alpha", init, ()), stream.x.dtype)
        return Stream(stream.x + alpha * sublayer(stream.x).astype(stream.x.dtype), None)


class AdminProfile(Residual):
    """Admin's profiling pass: the same sum, omega taken from what the sublayers before this one put
    out.

    omega_1 = 1, omega_{i+1}^2 = Var[omega_i x_{i-1}] + Var[f_i(x_{i-1})] (arXiv 2004.08249, section
    4.2), variances over all real elements in fp32. Shares Admin's LayerNorm parameters; each omega
    is sown in the collection `omega`.
    """

    @classmethod
    def start(cls, x: Float[Array, "B T D"], real: Bool[Array, "B T"]) -> Stream:
        return Stream(x, Profile(jnp.ones((), jnp.float32), real))

    @nn.compact
    def __call__(self, stream: Stream, sublayer: Sublayer, fused: JoinedSublayer | None = None) -> Stream:
        del fused  # what the sublayer puts out must be seen before it is joined
        profile = stream.profile
        assert profile is not None, "a profiling pass starts from AdminProfile.start"
        branch = sublayer(stream.x)
        shortcut = profile.omega.astype(stream.x.dtype) * stream.x
        self.sow("omega", "omega", profile.omega)
        following = jnp.sqrt(real_variance(shortcut, profile.real) + real_variance(branch, profile.real))
        x = LayerNorm(self.config, name="norm")(shortcut + branch.astype(stream.x.dtype))
        return Stream(x, Profile(following, profile.real))


STRATEGIES: dict[str, type[Residual]] = {
    "post_ln": PostLN,
    "pre_ln": PreLN,
    "admin": Admin,
    "deepnorm": DeepNorm,
    "rezero": ReZero,
}


def closed_form_omega(admin_omega: str, num_sublayers: int) -> float:
    """omega before any data is seen, n sublayers: `closed_log` sqrt((n+1)/ln(n+1) - 1), for an
    output change of O(log n); `closed_one` sqrt(n), for O(1) (the two of the authors' admin-torch);
    `profiled` 1, until the profiling pass sets it.
    """
    n = num_sublayers
    return {"closed_log": math.sqrt((n + 1) / math.log(n + 1) - 1), "closed_one": math.sqrt(n), "profiled": 1.0}[admin_omega]


def deepnorm_constants(stack: Stack) -> tuple[float, float]:
    """alpha and beta (arXiv 2203.00555, figure 2): an encoder alone (2N)^1/4, (8N)^-1/4; beside M
    decoder layers
    0.81 (N^4 M)^1/16, 0.87 (N^4 M)^-1/16; the decoder (3M)^1/4, (12M)^-1/4.
    """
    if stack.decoder_layers:
        root = (stack.num_layers**4 * stack.decoder_layers) ** 0.0625
        return 0.81 * root, 0.87 / root
    n = stack.num_sublayers  # 2N of an encoder, 3M of a decoder
    return n**0.25, (4 * n) ** -0.25


def real_variance(x: Float[Array, "B T D"], real: Bool[Array, "B T"]) -> Float[Array, ""]:
    """The variance of all elements of the real positions, in fp32."""
    x = x.astype(jnp.float32)
    return jnp.var(x, where=jnp.broadcast_to(real[:, :, None], x.shape))
