"""Amplification: how much a stack's output changes when its parameters change a little, against its
depth.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int, Key
from msgspec.structs import replace

from mhsh.config.schema import ModelConfig
from mhsh.kernels.residual_norm import normalised
from mhsh.models.admin import profile_omega, set_omega
from mhsh.models.build import build_model
from mhsh.models.stack import SUBLAYERS
from mhsh.models.transformer import Encoder, EncoderLayer
from mhsh.models.types import Batch
from mhsh.probes.interceptors import PROBE, num_non_padding, over_rows, run_watched, watch, watchable

# Of each parameter of a sublayer of the encoder, by sublayer and name.
Scales = dict[str, dict[str, float]]


class Scheme(NamedTuple):
    """A residual scheme as it starts, and how E|f(w) - f(w + delta)|^2 of n sublayers should
    grow.
    """

    residual: str
    admin_omega: str
    theory: str
    source: str


# Where a change of every f_i by itself changes the sum by C, and beta_i^2 is the share of the
# stream that f_i has when it joins it, the output changes by about sum_i beta_i^2 C (Liu et al.
# 2020, arXiv 2004.08249, theorem 2).
SCHEMES = {
    "post_ln": Scheme("post_ln", "profiled", "O(n)", "arXiv 2004.08249, section 4.1"),
    "pre_ln": Scheme("pre_ln", "profiled", "O(log n)", "arXiv 2004.08249, section 4.1"),
    "admin_profiled": Scheme("admin", "profiled", "O(log n)", "arXiv 2004.08249, section 4.2"),
    "admin_closed_log": Scheme("admin", "closed_log", "O(log n)", "the authors' admin-torch"),
    "admin_closed_one": Scheme("admin", "closed_one", "O(1)", "the authors' admin-torch"),
    "deepnorm": Scheme("deepnorm", "profiled", "O(1)", "arXiv 2203.00555, section 4"),
    "rezero": Scheme("rezero", "profiled", "0", "alpha = 0 multiplies every sublayer (arXiv 2003.04887)"),
}


def fresh_amplification(
    config: ModelConfig, batch: Batch, scales: Scales, *, num_draws: int, noise: float, seed: int
) -> Float[np.ndarray, " K"]:
    """|f(w) - f(w + delta)|^2 of a fresh encoder of `config`, averaged over all elements of the
    real tokens, for K = `num_draws` pairs of an initialisation w and a change delta. f is the
    stack's output with LayerNorm's normalisation (no gains) on top, so that 2 is what two outputs
    without any likeness have.

    delta is normal noise on the weights of all sublayers, of the deviation `noise` times `scales`
    (`plain_deviations`): the same delta for every scheme and depth, as an optimiser's step does not
    know them. Biases, which start at 0, LayerNorms, omega, alpha and embeddings stay as they are.
    Of `config` the residual scheme and, for Admin, the start of omega count: `profiled` is profiled
    on `batch`.
    """
    model, arrays = watchable(config), dict(batch)
    profiled = config.residual == "admin" and config.admin_omega == "profiled"

    def start(key: Key[Array, ""], batch: Batch) -> Any:
        return nn.unbox(build_model(config).init(key, batch, None))["params"]

    def profile(params: Any, batch: Batch) -> Any:
        return set_omega(params, profile_omega(config, params, batch))

    fresh, profile, output = jax.jit(start), jax.jit(profile), jax.jit(functools.partial(_encoder_output, model))
    changes = []
    for draw in range(num_draws):
        # Its bits are of the device's own making, which compiles in half the time.
        params = fresh(jax.random.key(seed + draw, impl="rbg"), arrays)
        params = profile(params, arrays) if profiled else params
        changed = disturbed(params, scales, noise, np.random.default_rng((seed, draw)))
        outputs = output(params, arrays), output(changed, arrays)
        changes.append(mean_square(*outputs, num_non_padding(batch, "encoder")))
    return np.array(jax.device_get(changes), np.float64)


def layer_amplification(
    config: ModelConfig, params: Any, batch: Batch, scales: Scales, *, num_draws: int, noise: float, seed: int
) -> Float[np.ndarray, "K L"]:
    """The same for given parameters: the change of the normalised residual stream after each
    encoder layer, where those up to it were changed; K changes, each as large as of a fresh model.
    Rows are looked at one at a time.
    """
    model = watchable(config)

    def watcher(module: nn.Module, method: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        result = call(*args)
        if type(module) is EncoderLayer and method == "__call__":
            module.sow(PROBE, "stream", result[0].x)
        return result

    def streams(params: Any, row: Batch) -> Float[Array, "L 1 T D"]:
        return watch(model, params, row, watcher)["encoder"]["layers"]["stream"][0]

    def change(params: Any, changed: Any, batch: Batch) -> Float[Array, " L"]:
        def of_row(row: Batch) -> tuple[Float[Array, " L"], Int[Array, ""]]:
            real = num_non_padding(row, "encoder")
            squares = jax.vmap(lambda a, b: mean_square(a, b, real))(streams(params, row), streams(changed, row))
            return squares, real.sum()

        squares, counts = over_rows(of_row, batch)
        return counts @ squares / counts.sum()

    compiled = jax.jit(change)
    draws = (disturbed(params, scales, noise, np.random.default_rng((seed, draw))) for draw in range(num_draws))
    return np.array(jax.device_get([compiled(params, changed, dict(batch)) for changed in draws]), np.float64)


def disturbed(params: Any, scales: Scales, noise: float, rng: np.random.Generator) -> Any:
    """The parameters with normal noise on the encoder's sublayers, `noise` times `scales` (see
    `fresh_amplification`).
    """
    layers = dict(params["encoder"]["layers"])
    for name, of_sublayer in scales.items():
        delta = {
            kernel: noise * scale * rng.standard_normal(layers[name][kernel].shape, np.float32)
            for kernel, scale in of_sublayer.items()
            if scale > 0
        }
        layers[name] = layers[name] | {kernel: layers[name][kernel] + change for kernel, change in delta.items()}
    return params | {"encoder": params["encoder"] | {"layers": layers}}


def plain_deviations(config: ModelConfig, batch: Batch) -> Scales:
    """The deviation of every parameter of the encoder's sublayers at a start without gains; 0 of
    those that start as constants.
    """
    plain = replace(config, residual="post_ln", num_layers=1)
    init = jax.jit(lambda: nn.unbox(build_model(plain).init(jax.random.key(0), batch, None))["params"]["encoder"]["layers"])
    layers = init()
    return {name: {kernel: float(jnp.std(leaf)) for kernel, leaf in layers[name].items()} for name in SUBLAYERS["encoder"]}


def _encoder_output(model: Any, params: Any, batch: Batch) -> Float[Array, "B T D"]:
    found: list[Array] = []

    def watcher(module: nn.Module, method: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        result = call(*args)
        if type(module) is Encoder and method == "__call__":
            found.append(result)
        return result

    run_watched(model, params, batch, watcher)
    return found[0]


def mean_square(one: Float[Array, "B T D"], other: Float[Array, "B T D"], real: Bool[Array, "B T"]) -> Float[Array, ""]:
    """Over all elements of the real tokens, of the difference of the two as LayerNorm normalises
    them.
    """
    one, other = (normalised(each.astype(jnp.float32), 0.0)[0] for each in (one, other))
    return jnp.mean((one - other) ** 2, where=jnp.broadcast_to(real[:, :, None], one.shape))
