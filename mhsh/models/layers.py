"""Initialisers with logical axis names, position tables and rotations, LayerNorm, activations, the
feed-forward sublayer.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.typing import Initializer
from jaxtyping import Array, Float, Int

from mhsh.config.schema import ModelConfig
from mhsh.models.devices import current_platform
from mhsh.models.dropout import Seeds, dropout, split_seeds
from mhsh.models.parameters import AXES, KERNELS, Kernel
from mhsh.models.saved import mark_saved
from mhsh.models.sublayer import Branch, SublayerModule

BERT_STDDEV = 0.02
LONGEST_WAVELENGTH = 10_000.0  # over 2 pi, in positions


def kernel_init(config: ModelConfig, kernel: Kernel, gain: float = 1.0) -> Initializer:
    """The initialiser of a kernel.

    `bert`: normal of deviation 0.02, truncated at two deviations (Devlin et al. 2018).
    `xavier`: uniform in +-gain * sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010).
    `fairseq`: as `xavier`, where a kernel is one of several that are one matrix there. The code
    of Admin's authors (github.com/LiyuanLucasLiu/Transformer-Clinic at 70f72b7,
    fairseq/fairseq) draws queries, keys and values as one matrix [3D,D]
    (modules/multihead_attention.py, lines 42 and 78), the output matrix by itself (line 84),
    and each feed-forward matrix by itself (modules/transformer_layer.py, line 690).

    Where model.fans = ungrouped, heads and feed-forward units count as in the layer that was
    regrouped. Then what the layers of a group add is what that layer would have added.
    """
    if config.init == "bert":
        init = truncated_normal(BERT_STDDEV * gain)
    else:
        init = functools.partial(
            _glorot_uniform,
            grouped=[AXES[axis].regrouped for axis in kernel.axes],
            num_inputs=kernel.num_inputs,
            gain=gain,
            factor=config.layers_per_group if config.fans == "ungrouped" else 1.0,
            num_joint=kernel.num_joint if config.init == "fairseq" else 1,
        )
    return nn.with_logical_partitioning(init, kernel.axes)


def _glorot_uniform(
    key: Array,
    shape: Sequence[int],
    dtype: Any = jnp.float32,
    *,
    grouped: Sequence[bool],
    num_inputs: int,
    gain: float,
    factor: float,
    num_joint: int,
) -> Array:
    """Uniform, by the fans that a kernel [*inputs, *outputs] has where the axes that are `grouped`
    are `factor` times as long.
    """

    def fan(axes: slice, times: float) -> float:
        return math.prod(shape[axes]) * (times if any(grouped[axes]) else 1.0)

    inputs, outputs = slice(num_inputs), slice(num_inputs, None)
    own = fan(inputs, 1.0) + fan(outputs, 1.0)
    scale = gain**2 * own / (fan(inputs, factor) + num_joint * fan(outputs, factor))
    axes = range(len(shape))
    return nn.initializers.variance_scaling(scale, "fan_avg", "uniform", in_axis=axes[inputs], out_axis=axes[outputs])(
        key, shape, dtype
    )


def embedding_init(config: ModelConfig, names: Sequence[str]) -> Initializer:
    """The initialiser of an embedding table: for `bert` as for kernels, else normal of deviation
    D^-1/2, as in fairseq's Transformer (Transformer-Clinic 70f72b7, fairseq/models/transformer.py
    line 732).
    """
    if config.init == "bert":
        init = truncated_normal(BERT_STDDEV)
    else:
        init = nn.initializers.normal(config.embed_dim**-0.5)
    return nn.with_logical_partitioning(init, tuple(names))


def truncated_normal(stddev: float) -> Initializer:
    """A normal truncated at two deviations and not rescaled: BERT's `initializer_range`."""
    return nn.initializers.truncated_normal(stddev, lower=-2.0, upper=2.0)


def bias_init(names: Sequence[str]) -> Initializer:
    """Zeros, with logical axis names."""
    return nn.with_logical_partitioning(nn.initializers.zeros, tuple(names))


def bias_param(
    module: nn.Module, name: str, config: ModelConfig, names: Sequence[str], shape: tuple[int, ...]
) -> Float[Array, "*shape"]:
    """A bias: the parameter `name` of `module`, or without model.bias zeros, which XLA does not
    add.
    """
    return jnp.asarray(module.param(name, bias_init(names), shape)) if config.bias else jnp.zeros(shape)


def linear(module: nn.Module, name: str, config: ModelConfig, gain: float = 1.0) -> tuple[Array, Array]:
    """A kernel of KERNELS and its bias, as parameters of `module`."""
    kernel = KERNELS[f"{name}_kernel"]
    inputs, outputs = kernel.sides(config)
    weights = module.param(f"{name}_kernel", kernel_init(config, kernel, gain), inputs + outputs)
    return weights, bias_param(module, f"{name}_bias", config, kernel.axes[kernel.num_inputs :], outputs)


def position_table(module: nn.Module, name: str, config: ModelConfig) -> Float[Array, "T D"]:
    """A vector for each of T = max_positions: the parameter `name` of `module`, or sinusoids."""
    if config.positions == "sinusoidal":
        return jnp.asarray(sinusoids(config.max_positions, config.embed_dim))
    # Every device reads all positions: only the width is ever sharded.
    init = embedding_init(config, ("positions", "embed"))
    return module.param(name, init, (config.max_positions, config.embed_dim))


def sinusoids(num_positions: int, width: int) -> Float[np.ndarray, "T D"]:
    """sin(t / 10000^(2i/D)) and cos of the same for i = 0 ... D/2 - 1.

    All sines come before all cosines; Vaswani et al. 2017, section 3.5, interleave them, which is
    another order of the same columns.
    """
    frequencies = LONGEST_WAVELENGTH ** (-np.arange(0, width, 2) / width)
    angles = np.arange(num_positions)[:, None] * frequencies
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)[:, :width].astype(np.float32)


class Rotation(NamedTuple):
    """The angle of each pair of a head's elements at each position, by its cosine and sine."""

    cos: Float[Array, "B T pairs"]
    sin: Float[Array, "B T pairs"]


def rotation(config: ModelConfig, positions: Int[Array, "B T"] | None) -> Rotation | None:
    """The angles t / rope_theta^(2i/H), i = 0 ... H/2 - 1, of rotary positions t; None where
    positions are in a table.
    """
    if config.positions != "rotary":
        return None
    assert positions is not None, "a language model has them"
    frequencies = config.rope_theta ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
    angles = positions[:, :, None] * jnp.asarray(frequencies, jnp.float32)
    return Rotation(jnp.cos(angles), jnp.sin(angles))


def rotate(x: Float[Array, "B T N H"], rotation: Rotation | None) -> Float[Array, "B T N H"]:
    """Each pair (i, i + H/2) of a head turned by its angle, in fp32 (RoPE: Su et al. 2021, arXiv
    2104.09864, where pairs are (2i, 2i + 1)); `x` itself without a rotation.
    """
    if rotation is None:
        return x
    cos, sin = rotation.cos[:, :, None], rotation.sin[:, :, None]
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


class LayerNorm(nn.Module):
    """LayerNorm (Ba et al. 2016) or, where model.norm is rms, its form without mean and bias (Zhang
    and Sennrich 2019, arXiv 1910.07467); fp32 statistics, returns the residual stream's dtype.
    """

    config: ModelConfig

    def setup(self) -> None:
        config, width = self.config, (self.config.embed_dim,)
        self.scale = jnp.asarray(self.param("scale", nn.with_logical_partitioning(nn.initializers.ones, ("embed",)), width))
        self.bias = bias_param(self, "bias", config, ("embed",), width) if config.norm == "layer" else jnp.zeros(width)

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        config = self.config
        normed = _normalize_rows(x.astype(jnp.float32), config.layer_norm_epsilon, config.norm == "layer")
        return (normed * self.scale + self.bias).astype(config.residual_dtype)


class HeadNorm(nn.Module):
    """LayerNorm of each head by itself, with a gain [H] for all heads and no bias, as flax's
    MultiHeadDotProductAttention has with normalize_qk, and with model.norm = rms Qwen3; fp32
    statistics, returns the compute dtype.
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, x: Float[Array, "*rows H"]) -> Float[Array, "*rows H"]:
        config = self.config
        init = nn.with_logical_partitioning(nn.initializers.ones, ("head_dim",))
        scale = jnp.asarray(self.param("scale", init, (config.head_dim,)))
        normed = _normalize_rows(x.astype(jnp.float32), config.layer_norm_epsilon, config.norm == "layer")
        return (normed * scale).astype(config.compute_dtype)


def normalize(
    x: Float[Array, "*rows D"], epsilon: float, centre: bool = True
) -> tuple[Float[Array, "*rows D"], Float[Array, "*rows 1"]]:
    """Rows of mean 0 and variance 1, or without `centre` of mean square 1, and the factor of each
    row.

    The mean is subtracted before squaring: E[x^2] - E[x]^2 loses digits once omega * x dominates
    the sum.
    """
    centred = x - jnp.mean(x, axis=-1, keepdims=True) if centre else x
    inverse = jax.lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + epsilon)
    return centred * inverse, inverse


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _normalize_rows(x: Float[Array, "*rows D"], epsilon: float, centre: bool) -> Float[Array, "*rows D"]:
    """Each row minus its mean, divided by its deviation; without `centre` divided by its root mean
    square.

    The backward pass is written out because a CPU would keep three arrays for the derived one.
    """
    return normalize(x, epsilon, centre)[0]


def _normalize_rows_forward(x: Array, epsilon: float, centre: bool) -> tuple[Array, tuple[Array, Array]]:
    normed, inverse = normalize(x, epsilon, centre)
    return normed, (normed, inverse)


def _normalize_rows_backward(epsilon: float, centre: bool, saved: tuple[Array, Array], gradient: Array) -> tuple[Array]:
    normed, inverse = saved
    projection = jnp.mean(gradient * normed, axis=-1, keepdims=True)
    centred = gradient - jnp.mean(gradient, axis=-1, keepdims=True) if centre else gradient
    return (inverse * (centred - normed * projection),)


_normalize_rows.defvjp(_normalize_rows_forward, _normalize_rows_backward)


def _save_input_only(activation: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """`activation` with a backward pass that keeps only its argument and recomputes the derivative.

    JAX would keep three arrays of the hidden layer's size; recomputing costs no measurable time.
    """

    @jax.custom_vjp
    def function(x: Array) -> Array:
        return activation(x)

    def backward(x: Array, gradient: Array) -> tuple[Array, ...]:
        return jax.vjp(activation, x)[1](gradient)

    function.defvjp(lambda x: (activation(x), x), backward)
    return function


ACTIVATIONS = {
    # jax.nn.gelu uses erfc, which XLA's CPU backend expands into seven passes; PyTorch uses erf
    # too. In fp32 the two differ by at most 3e-7.
    "gelu": _save_input_only(lambda x: 0.5 * x * (1.0 + jax.lax.erf(x * math.sqrt(0.5)))),
    "gelu_tanh": _save_input_only(functools.partial(jax.nn.gelu, approximate=True)),
    "relu": jax.nn.relu,
    "silu": _save_input_only(jax.nn.silu),
}


class FeedForward(SublayerModule):
    """Two projections with an activation between, D -> F -> D (Vaswani et al. 2017, eq. 2). Where
    model.mlp is gated, the first is multiplied by the activation of a third one, D -> F (Shazeer
    2020, arXiv 2002.05202).

    Dropout follows the activation (mlp_dropout) and the second projection (hidden_dropout).
    """

    gain: float = 1.0  # DeepNorm's beta on both kernels

    def setup(self) -> None:
        config, gain = self.config, self.gain
        self.up_kernel, self.up_bias = linear(self, "up", config, gain)
        if config.mlp == "gated":
            self.gate_kernel, self.gate_bias = linear(self, "gate", config, gain)
        self.down_kernel, self.down_bias = linear(self, "down", config, gain)

    def branch(self, x: Float[Array, "B T D"], seeds: Seeds) -> Branch:
        config = self.config
        hidden_seed, out_seed = split_seeds(seeds, 2)
        dtype = jnp.dtype(config.compute_dtype)
        up, up_bias, down = (each.astype(dtype) for each in (self.up_kernel, self.up_bias, self.down_kernel))
        hidden = mark_saved(_product(x.astype(dtype), up) + up_bias, "hidden")
        activation = ACTIVATIONS[config.activation]
        if config.mlp == "gated":
            gate = _product(x.astype(dtype), self.gate_kernel.astype(dtype)) + self.gate_bias.astype(dtype)
            hidden = activation(mark_saved(gate, "hidden")) * hidden
        else:
            hidden = activation(hidden)
        hidden = dropout(hidden, config.mlp_dropout, hidden_seed)
        return Branch(_product(hidden, down), self.down_bias, out_seed)


def _product(x: Float[Array, "B T D"], kernel: Float[Array, "D F"]) -> Float[Array, "B T F"]:
    """x times `kernel`, on CPUs with rows as one axis: where a kernel's gradient is a sum over two,
    XLA transposes the other factor first. Results are equal bit by bit. What accelerators gain or
    lose by it has not been counted (docs/development/speed.md).
    """
    if current_platform() != "cpu":
        return jnp.einsum("BTD,DF->BTF", x, kernel)
    return jnp.einsum("RD,DF->RF", x.reshape(-1, x.shape[-1]), kernel).reshape(*x.shape[:-1], -1)
