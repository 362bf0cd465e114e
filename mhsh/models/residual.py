"""The residual schemes: how the output of a sublayer is added to the residual stream."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from mhsh.config.entries import Variant, add_residual
from mhsh.config.schema import ModelConfig
from mhsh.models.kernels.residual import add_and_norm, copies, uncovered
from mhsh.models.kernels.select import takes_kernels
from mhsh.models.layers import LayerNorm
from mhsh.models.sublayer import Branch, ModuleSublayer, Sublayer
from mhsh.models.types import SUBLAYERS, Stack


class Stream(NamedTuple):
    """The state between two sublayers: the stream, and what a scheme carries besides."""

    x: Float[Array, "B T *streams D"]
    carried: Any  # a pytree


class Residual(nn.Module):
    """A residual scheme: `__call__` adds one sublayer f to the stream. `add_residual` gives it its
    name; nothing else names it.
    """

    config: ModelConfig
    stack: Stack  # of the sublayer
    sublayer: str  # its name in SUBLAYERS
    fused: ClassVar[bool] = False  # whether kernels add to the stream; a derived class says so itself
    final_norm: ClassVar[bool] = False  # whether a LayerNorm follows the last layer
    head_norms: ClassVar[bool] = False  # whether queries, keys and values have one
    decayed: ClassVar[Mapping[str, bool]] = {}  # whether each parameter but a LayerNorm's has weight decay

    @classmethod
    def start(cls, config: ModelConfig, stack: Stack, x: Float[Array, "B T D"], real: Bool[Array, "B T"]) -> Stream:
        """The stream as it enters the first sublayer."""
        del config, stack, real
        return Stream(x, None)

    @classmethod
    def is_fused(cls, config: ModelConfig) -> bool:
        """Whether kernels add to the stream (mhsh/models/kernels)."""
        return takes_kernels(config) and not cls.uncovered(config)

    @classmethod
    def uncovered(cls, config: ModelConfig) -> str:
        """Why no kernel adds to the stream of a model with this scheme; empty: one does."""
        return uncovered(config) if vars(cls).get("fused") else f"model.residual = {config.residual} has no kernel"

    @classmethod
    def finish(cls, config: ModelConfig, stack: Stack, stream: Stream) -> Float[Array, "B T D"]:
        """The output of the last sublayer, before the final LayerNorm. It may have parameters: it
        is called in a compact method of the stack.
        """
        del config, stack
        return stream.x

    @classmethod
    def total(cls, stream: Stream) -> Float[Array, "B T *streams D"]:
        """The stream as a probe sees it, with all that sublayers have added."""
        return stream.x

    @classmethod
    def left_out(cls, config: ModelConfig, stack: Stack, before: Stream, after: Stream) -> Stream:
        """The stream after a layer that it passes by; `after` is the one that it would leave."""
        del config, stack
        return Stream(before.x, after.carried)

    @classmethod
    def init_gain(cls, stack: Stack) -> float:
        """The factor on the initial value, output and feed-forward kernels of a stack."""
        del stack
        return 1.0

    @classmethod
    def layer_scales(cls, config: ModelConfig) -> tuple[float, float] | None:
        """The optimizer's factors on the layers' gradients and on their updates; None: none."""
        del config
        return None


class Weights(nn.Module):
    """Weights, computed from the stream, with which a scheme adds up its parts. With them held
    constant a stream is linear in what sublayers add to it.
    """


class NormedSum(Residual):
    """LN(w * x + f(x)), w a number or [D]. The next sublayer reads the copy that a kernel makes."""

    @classmethod
    def start(cls, config: ModelConfig, stack: Stack, x: Float[Array, "B T D"], real: Bool[Array, "B T"]) -> Stream:
        del stack, real
        return Stream(x, x.astype(config.compute_dtype) if cls.is_fused(config) and copies(config) else None)

    @classmethod
    def fixed_weight(cls, stack: Stack) -> float | None:
        """w; None: it is omega, a vector that is trained."""
        del stack
        return 1.0

    def setup(self) -> None:
        self.norm = LayerNorm(self.config)

    def __call__(self, stream: Stream, sublayer: Sublayer) -> Stream:
        weight = self.fixed_weight(self.stack)
        assert weight is not None, "a scheme that trains omega says so itself"
        return self.weighted(weight, stream, sublayer)

    def weighted(self, weight: Float[Array, " D"] | float, stream: Stream, sublayer: Sublayer) -> Stream:
        """The stream after a sublayer."""
        x, norm, config = stream.x, self.norm, self.config
        if not self.is_fused(config):
            return Stream(norm(jnp.asarray(weight, x.dtype) * x + sublayer(x).astype(x.dtype)), None)
        assert isinstance(sublayer, ModuleSublayer), "only training has kernels"
        read = stream.carried if copies(config) else x
        y, copy = add_and_norm(config, x, read, sublayer.branch(read), norm.scale, norm.bias, weight, normed_stream=True)
        return Stream(y, copy if copies(config) else None)


@add_residual("post_ln", label="Post-LN", formula=r"\mathrm{LN}(x + f(x))", growth="O(n)", source="arXiv 2004.08249, section 4.1")
class PostLN(NormedSum):
    """LN(x + f(x)) (Vaswani et al. 2017)."""

    fused: ClassVar[bool] = True


@add_residual(
    "pre_ln",
    label="Pre-LN",
    formula=r"x + f(\mathrm{LN}(x))",
    where="with a final LN",
    growth="O(log n)",
    source="arXiv 2004.08249, section 4.1",
)
class PreLN(Residual):
    """x + f(LN(x)), with a LayerNorm after the last layer (Xiong et al. 2020, arXiv 2002.04745)."""

    fused: ClassVar[bool] = True
    final_norm: ClassVar[bool] = True

    @classmethod
    def start(cls, config: ModelConfig, stack: Stack, x: Float[Array, "B T D"], real: Bool[Array, "B T"]) -> Stream:
        """With kernels the stream carries what the sublayer before puts out: nothing, at first."""
        del stack, real
        product = jnp.zeros(x.shape, config.compute_dtype)
        return Stream(x, Branch(product, jnp.zeros(x.shape[-1]), jnp.zeros(2, jnp.uint32)) if cls.is_fused(config) else None)

    @classmethod
    def uncovered(cls, config: ModelConfig) -> str:
        gathered = config.remat_policy == "gathered_groups"  # a seed, which is handed on, has no gradient
        return "model.remat_policy = gathered_groups hands no seeds on" if gathered else super().uncovered(config)

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
        del stack
        x, last = stream
        return x if last is None else x + last.output(config.hidden_dropout).astype(x.dtype)


@add_residual(
    "admin",
    label="Admin",
    formula=r"\mathrm{LN}(\omega \odot x + f(x))",
    where=r"$\omega$: a vector per sublayer",
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
        del stack

    def setup(self) -> None:
        super().setup()
        start = closed_form_omega(self.config.admin_omega, self.stack.num_sublayers)
        init = nn.with_logical_partitioning(nn.initializers.constant(start), ("embed",))
        self.omega = jnp.asarray(self.param("omega", init, (self.config.embed_dim,)))

    def __call__(self, stream: Stream, sublayer: Sublayer) -> Stream:
        return self.weighted(self.omega, stream, sublayer)


@add_residual(
    "deepnorm",
    label="DeepNorm",
    formula=r"\mathrm{LN}(\alpha x + f(x))",
    where=r"initial values scaled by $\beta$",
    growth="O(1)",
    source="arXiv 2203.00555, section 4",
)
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


@add_residual(
    "rezero",
    label="ReZero",
    formula=r"x + \alpha f(x)",
    where=r"$\alpha = 0$ at the start",
    growth="0",
    source="alpha = 0 multiplies every sublayer (arXiv 2003.04887)",
)
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


@add_residual(
    "keel",
    label="Keel",
    formula=r"\mathrm{LN}(n x + f(\mathrm{LN}(x)))",
    where="$n$ sublayers (arXiv 2601.19895)",
    growth="O(1/n)",
    source="alpha = n: each share is 1 / (1 + n^2) (arXiv 2601.19895)",
)
class Keel(Residual):
    """LN(alpha x + f(LN(x))), alpha the number of sublayers (Chen and Wei 2026, arXiv
    2601.19895), in every layer, the first too.
    """

    @nn.compact
    def __call__(self, stream: Stream, sublayer: Sublayer) -> Stream:
        branch = sublayer(LayerNorm(self.config, name="inner_norm")(stream.x)).astype(stream.x.dtype)
        return Stream(LayerNorm(self.config, name="norm")(self.stack.num_sublayers * stream.x + branch), None)


@add_residual(
    "peri_ln",
    label="Peri-LN",
    formula=r"x + \mathrm{LN}(f(\mathrm{LN}(x)))",
    where="with a final LN (arXiv 2502.02732)",
    growth="O(log n)",
    source="as Pre-LN's: every sublayer adds a variance of 1 (arXiv 2502.02732)",
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


@add_residual(
    "ln_scaling",
    label="LayerNorm scaling",
    formula=r"x + f(\mathrm{LN}(x) / \sqrt{l})",
    where="in layer $l$; with a final LN (arXiv 2502.05795)",
    growth="O(1)",
    source="layer l adds a variance of 1 / l (arXiv 2502.05795)",
)
class LNScaling(Residual):
    """x + f(LN(x) / sqrt(l)) in layer l = 1, 2, ..., with a LayerNorm after the last (Sun et al.
    2025, arXiv 2502.05795). The stream carries the number of sublayers before.
    """

    final_norm: ClassVar[bool] = True

    @classmethod
    def start(cls, config: ModelConfig, stack: Stack, x: Float[Array, "B T D"], real: Bool[Array, "B T"]) -> Stream:
        del config, stack, real
        return Stream(x, jnp.zeros((), jnp.int32))

    @nn.compact
    def __call__(self, stream: Stream, sublayer: Sublayer) -> Stream:
        count = stream.carried
        assert isinstance(count, jax.Array), "a pass starts from LNScaling.start"
        normed = LayerNorm(self.config, name="norm")(stream.x)
        layer = count // len(SUBLAYERS[self.stack.name]) + 1
        branch = sublayer(normed * jax.lax.rsqrt(layer.astype(jnp.float32)).astype(normed.dtype))
        return Stream(stream.x + branch.astype(stream.x.dtype), count + 1)


@add_residual(
    "completep",
    label="CompleteP",
    formula=r"x + (L_0 / L)^a f(\mathrm{LN}(x))",
    where="with a final LN, and its share of the optimizer (arXiv 2505.01618)",
    growth="O(1/n)",
    source="every share is 1 / n^2 (arXiv 2505.01618)",
)
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


@add_residual(
    "hybrid_norm",
    label="HybridNorm",
    formula=r"x + f(x)$; $y + f(y)$, $y = \mathrm{LN}(x)",
    where="attention with normalised queries, keys and values; feed-forward; with a final LN (arXiv 2503.04598)",
    growth="O(n)",
    source="as Post-LN's: normalised once a layer (arXiv 2503.04598)",
)
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
