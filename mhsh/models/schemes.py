"""The residual schemes but for those of several streams or blocks, and their constants."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from mhsh.config.entries import Variant, add_residual
from mhsh.config.schema import ModelConfig
from mhsh.models.kernels.residual import add_and_norm
from mhsh.models.layers import LayerNorm
from mhsh.models.residual import NormedSum, Residual, Stream
from mhsh.models.sublayer import Branch, ModuleSublayer, Sublayer
from mhsh.models.types import SUBLAYERS, Stack


@add_residual("post_ln", label="Post-LN", growth="O(n)", source="arXiv 2004.08249, section 4.1")
class PostLN(NormedSum):
    """LN(x + f(x)) (Vaswani et al. 2017)."""

    fused: ClassVar[bool] = True


@add_residual("pre_ln", label="Pre-LN", growth="O(log n)", source="arXiv 2004.08249, section 4.1")
class PreLN(Residual):
    """x + f(LN(x)), with a LayerNorm after the last layer (Xiong et al. 2020, arXiv 2002.04745)."""

    fused: ClassVar[bool] = True
    final_norm: ClassVar[bool] = True

    @classmethod
    def start(cls, config: ModelConfig, stack: Stack, x: Float[Array, "B T D"], real: Bool[Array, "B T"]) -> Stream:
        """The stream. With kernels it carries the output of the sublayer before: at first zeros."""
        product = jnp.zeros(x.shape, config.compute_dtype)
        return Stream(x, Branch(product, jnp.zeros(x.shape[-1]), jnp.zeros(2, jnp.uint32)) if cls.is_fused(config) else None)

    @classmethod
    def kernel_obstacle(cls, config: ModelConfig) -> str:
        gathered = config.remat_policy == "gathered_groups"  # a seed, which is handed on, has no gradient
        return "model.remat_policy = gathered_groups hands no seeds on" if gathered else super().kernel_obstacle(config)

    @nn.compact
    def __call__(self, stream: Stream, sublayer: Sublayer) -> Stream:
        x, norm, config = stream.x, LayerNorm(self.config, name="norm"), self.config
        # Without seeds nothing tells the end of the stack that nothing is dropped.
        adds_later = self.is_fused(config) and isinstance(sublayer, ModuleSublayer)
        if not adds_later or (config.hidden_dropout and not sublayer.drops):
            return Stream(x + sublayer(norm(x)).astype(x.dtype), stream.carried)
        x, normed = add_and_norm(config, x, x, stream.carried, norm.scale, norm.bias, 1.0, normed_stream=False)
        branch = sublayer.branch(normed)
        return Stream(x, branch._replace(seed=branch.seed if sublayer.drops else stream.carried.seed))

    @classmethod
    def finish(cls, config: ModelConfig, stack: Stack, stream: Stream) -> Float[Array, "B T D"]:
        x, last = stream
        return x if last is None else x + last.output(config.hidden_dropout).astype(x.dtype)


@add_residual(
    "admin",
    label="Admin",
    growth="O(log n)",
    source="arXiv 2004.08249, section 4.2",
    fields={"admin_omega": "profiled"},
    variants={
        "admin_closed_log": Variant(
            r"Admin, closed form $O(\log n)$", "O(log n)", "the authors' admin-torch", {"admin_omega": "closed_log"}
        ),
        "admin_closed_one": Variant("Admin, closed form $O(1)$", "O(1)", "the authors' admin-torch", {"admin_omega": "closed_one"}),
    },
)
class Admin(NormedSum):
    """LN(omega * x + f(x)), omega [D] trainable, one per sublayer (Liu et al. 2020, arXiv
    2004.08249, eq. 5).
    """

    fused: ClassVar[bool] = True
    decayed: ClassVar[Mapping[str, bool]] = {"omega": False}

    @classmethod
    def fixed_weight(cls, stack: Stack) -> None:
        return None

    def setup(self) -> None:
        super().setup()
        start = closed_form_omega(self.config.admin_omega, self.stack.num_sublayers)
        init = nn.with_logical_partitioning(nn.initializers.constant(start), ("embed",))
        self.omega = jnp.asarray(self.param("omega", init, (self.config.embed_dim,)))

    def __call__(self, stream: Stream, sublayer: Sublayer) -> Stream:
        return self.add_sublayer(self.omega, stream, sublayer)


@add_residual("deepnorm", label="DeepNorm", growth="O(1)", source="arXiv 2203.00555, section 4")
class DeepNorm(NormedSum):
    """LN(alpha x + f(x)), kernels scaled by beta at the start (Wang et al. 2022, arXiv
    2203.00555).
    """

    fused: ClassVar[bool] = True

    @classmethod
    def init_gain(cls, stack: Stack) -> float:
        return deepnorm_constants(stack)[1]

    @classmethod
    def fixed_weight(cls, stack: Stack) -> float:
        return deepnorm_constants(stack)[0]


@add_residual("rezero", label="ReZero", growth="0", source="alpha = 0 multiplies every sublayer (arXiv 2003.04887)")
class ReZero(Residual):
    """x + alpha f(x), alpha a trainable scalar that starts at 0, no LayerNorm (Bachlechner et al.
    2020, arXiv 2003.04887).
    """

    decayed: ClassVar[Mapping[str, bool]] = {"alpha": False}

    @nn.compact
    def __call__(self, stream: Stream, sublayer: Sublayer) -> Stream:
        init = nn.with_logical_partitioning(nn.initializers.zeros, ())
        alpha = jnp.asarray(self.param("alpha", init, ()), stream.x.dtype)
        return Stream(stream.x + alpha * sublayer(stream.x).astype(stream.x.dtype), None)


@add_residual("keel", label="Keel", growth="O(1/n)", source="alpha = n: each share is 1 / (1 + n^2) (arXiv 2601.19895)")
class Keel(Residual):
    """LN(alpha x + f(LN(x))), alpha the number of sublayers (Chen and Wei 2026, arXiv
    2601.19895), in every layer, the first too.
    """

    @nn.compact
    def __call__(self, stream: Stream, sublayer: Sublayer) -> Stream:
        branch = sublayer(LayerNorm(self.config, name="inner_norm")(stream.x)).astype(stream.x.dtype)
        return Stream(LayerNorm(self.config, name="norm")(self.stack.num_sublayers * stream.x + branch), None)


@add_residual(
    "peri_ln", label="Peri-LN", growth="O(log n)", source="as Pre-LN's: every sublayer adds a variance of 1 (arXiv 2502.02732)"
)
class PeriLN(Residual):
    """x + LN(f(LN(x))), with a LayerNorm after the last layer (Kim et al. 2025, arXiv
    2502.02732).
    """

    final_norm: ClassVar[bool] = True

    @nn.compact
    def __call__(self, stream: Stream, sublayer: Sublayer) -> Stream:
        branch = sublayer(LayerNorm(self.config, name="norm")(stream.x))
        return Stream(stream.x + LayerNorm(self.config, name="output_norm")(branch), None)


@add_residual("ln_scaling", label="LayerNorm scaling", growth="O(1)", source="layer l adds a variance of 1 / l (arXiv 2502.05795)")
class LNScaling(Residual):
    """x + f(LN(x) / sqrt(l)) in layer l = 1, 2, ..., with a LayerNorm after the last (Sun et al.
    2025, arXiv 2502.05795). The stream carries the number of sublayers before.
    """

    final_norm: ClassVar[bool] = True

    @classmethod
    def start(cls, config: ModelConfig, stack: Stack, x: Float[Array, "B T D"], real: Bool[Array, "B T"]) -> Stream:
        return Stream(x, jnp.zeros((), jnp.int32))

    @nn.compact
    def __call__(self, stream: Stream, sublayer: Sublayer) -> Stream:
        count = stream.carried
        assert isinstance(count, jax.Array), "a pass starts from LNScaling.start"
        normed = LayerNorm(self.config, name="norm")(stream.x)
        layer = count // len(SUBLAYERS[self.stack.name]) + 1
        branch = sublayer(normed * jax.lax.rsqrt(layer.astype(jnp.float32)).astype(normed.dtype))
        return Stream(stream.x + branch.astype(stream.x.dtype), count + 1)


@add_residual("completep", label="CompleteP", growth="O(1/n)", source="every share is 1 / n^2 (arXiv 2505.01618)")
class CompleteP(Residual):
    """x + (L0 / L)^a f(LN(x)), with a LayerNorm after the last layer (Dey et al. 2025, arXiv
    2505.01618). The layers' Adam epsilon is multiplied by m^-a, which is as a larger gradient, and
    their rate by m^(a-1), where m = L / L0 (table 1).
    """

    final_norm: ClassVar[bool] = True

    @classmethod
    def layer_scales(cls, config: ModelConfig) -> tuple[float, float]:
        m, a = depth_multiple(config), config.depth_exponent
        return m**a, m ** (a - 1)

    @nn.compact
    def __call__(self, stream: Stream, sublayer: Sublayer) -> Stream:
        factor = depth_multiple(self.config) ** -self.config.depth_exponent
        branch = sublayer(LayerNorm(self.config, name="norm")(stream.x))
        return Stream(stream.x + factor * branch.astype(stream.x.dtype), None)


@add_residual("hybrid_norm", label="HybridNorm", growth="O(n)", source="as Post-LN's: normalised once a layer (arXiv 2503.04598)")
class HybridNorm(Residual):
    """x + f(x) around attention, whose queries, keys and values are normalised
    (mhsh/models/attention.py); y + f(y), y = LN(x), around the feed-forward; a LayerNorm after the
    last layer (Zhuo et al. 2025, arXiv 2503.04598; the authors' BryceZhuo/HybridNorm at f0dd605,
    dense_model/olmo/model.py, lines 668 to 673, 815 to 890 and 1517, with ffn_residual_after_norm).
    """

    final_norm: ClassVar[bool] = True
    head_norms: ClassVar[bool] = True

    @nn.compact
    def __call__(self, stream: Stream, sublayer: Sublayer) -> Stream:
        x = LayerNorm(self.config, name="norm")(stream.x) if self.sublayer == "feed_forward" else stream.x
        return Stream(x + sublayer(x).astype(x.dtype), None)


def depth_multiple(config: ModelConfig) -> float:
    """L / L0 of CompleteP: 1 where model.base_layers is 0."""
    return config.num_layers / (config.base_layers or config.num_layers)


def closed_form_omega(admin_omega: str, num_sublayers: int) -> float:
    """omega of n sublayers without data, as in the authors' admin-torch.

    `closed_log`: sqrt((n+1)/ln(n+1) - 1), for an output change of O(log n). `closed_one`: sqrt(n),
    for O(1). `profiled`: 1, until the profiling pass sets it.
    """
    n = num_sublayers
    return {"closed_log": math.sqrt((n + 1) / math.log(n + 1) - 1), "closed_one": math.sqrt(n), "profiled": 1.0}[admin_omega]


def deepnorm_constants(stack: Stack) -> tuple[float, float]:
    """alpha and beta (arXiv 2203.00555, figure 2).

    An encoder alone: (2N)^1/4, (8N)^-1/4. An encoder before M decoder layers: 0.81 (N^4 M)^1/16,
    0.87 (N^4 M)^-1/16. The decoder: (3M)^1/4, (12M)^-1/4.
    """
    if stack.decoder_layers:
        root = (stack.num_layers**4 * stack.decoder_layers) ** 0.0625
        return 0.81 * root, 0.87 / root
    n = stack.num_sublayers  # 2N of an encoder, 3M of a decoder
    return n**0.25, (4 * n) ** -0.25
