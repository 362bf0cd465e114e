"""Amplification: how much a stack's output changes when its parameters change a little."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int, Key
from msgspec.structs import replace

from mhsh.config.schema import ModelConfig
from mhsh.config.shapes import SCHEMES
from mhsh.models.admin import profile_omega, set_omega
from mhsh.models.build import build_model
from mhsh.models.layers import normalize
from mhsh.models.transformer import Encoder, EncoderLayer
from mhsh.models.types import SUBLAYERS, Batch
from mhsh.probes.growth import growth, mean_interval
from mhsh.probes.interceptors import PROBE, after_calls, map_examples, non_padding, plain_model, run_and_collect, run_intercepted

# {sublayer of the encoder: {parameter: scale}}
Scales = dict[str, dict[str, float]]
Note = Callable[[str], None]  # gets lines on the progress

_NOISE, _SEED = 1e-3, 0  # deviation over that of a fresh weight; where its draws begin


class Theory(NamedTuple):
    """How E|f(w) - f(w + delta)|^2 should grow with the number n of sublayers."""

    growth: str
    source: str


# By the names of mhsh.config.shapes.SCHEMES. The output changes by about sum_i beta_i^2 C (Liu et
# al. 2020, arXiv 2004.08249, theorem 2): C is the change of one sublayer's output f_i alone, and
# beta_i^2 the share of f_i in the stream where it is added.
THEORY = {
    "post_ln": Theory("O(n)", "arXiv 2004.08249, section 4.1"),
    "pre_ln": Theory("O(log n)", "arXiv 2004.08249, section 4.1"),
    "admin": Theory("O(log n)", "arXiv 2004.08249, section 4.2"),
    "admin_closed_log": Theory("O(log n)", "the authors' admin-torch"),
    "admin_closed_one": Theory("O(1)", "the authors' admin-torch"),
    "deepnorm": Theory("O(1)", "arXiv 2203.00555, section 4"),
    "rezero": Theory("0", "alpha = 0 multiplies every sublayer (arXiv 2003.04887)"),
    "keel": Theory("O(1/n)", "alpha = n: each share is 1 / (1 + n^2) (arXiv 2601.19895)"),
    "peri_ln": Theory("O(log n)", "as Pre-LN's: every sublayer adds a variance of 1 (arXiv 2502.02732)"),
    "ln_scaling": Theory("O(1)", "layer l adds a variance of 1 / l (arXiv 2502.05795)"),
    "completep": Theory("O(1/n)", "every share is 1 / n^2 (arXiv 2505.01618)"),
    "hybrid_norm": Theory("O(n)", "as Post-LN's: normalised once a layer (arXiv 2503.04598)"),
}


def scheme_amplification(
    config: ModelConfig, scheme: str, depths: Sequence[int], batch: Batch, *, num_draws: int, note: Note
) -> dict[str, Any]:
    """`fresh_amplification` by one of SCHEMES on stacks of some depths, and its growth with their
    number of sublayers, for JSON: what is not finite is None.
    """
    scales = plain_deviations(config, batch)
    points, means = [], []
    for depth in depths:
        model = replace(config, num_layers=depth, remat_policy="none", **SCHEMES[scheme])
        draws = fresh_amplification(model, batch, scales, num_draws=num_draws, noise=_NOISE, seed=_SEED)
        note(f"{scheme}, {depth} layers: {draws.mean():.3g}")
        means.append(draws.mean())
        interval = dict(zip(("mean", "low", "high"), map(_finite, mean_interval(draws)), strict=True))
        points.append({"layers": depth, "sublayers": 2 * depth, **interval, "draws": list(map(_finite, draws))})
    fitted = growth([2 * depth for depth in depths], means)
    theory = THEORY[scheme]
    return {
        "scheme": scheme,
        "theory": theory.growth,
        "source": theory.source,
        "growth": None if fitted is None else fitted._asdict(),
        "points": points,
    }


def amplification(config: ModelConfig, params: Any, batch: Batch, *, num_draws: int) -> dict[str, Any]:
    """`layer_amplification` of a model, its means and their growth with the layers, for JSON."""
    scales = plain_deviations(config, batch)
    changes = layer_amplification(config, params, batch, scales, num_draws=num_draws, noise=_NOISE, seed=_SEED)
    means = changes.mean(axis=0)
    fitted = growth([2 * layer for layer in range(1, len(means) + 1)], means)
    return {
        "means": list(map(_finite, means)),
        "draws": [list(map(_finite, draw)) for draw in changes],
        # Without its interval, which holds for independent values: the layers of a model are not.
        "growth": None if fitted is None else {"exponent": fitted.exponent, "deviations": fitted.deviations, "law": fitted.law},
    }


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def fresh_amplification(
    config: ModelConfig, batch: Batch, scales: Scales, *, num_draws: int, noise: float, seed: int
) -> Float[np.ndarray, " K"]:
    """|f(w) - f(w + delta)|^2 of a fresh encoder of `config`, averaged over all elements of the
    tokens, for K = `num_draws` pairs of an initialisation w and a change delta. f is the stack's
    normalised output, without gains. Two independent outputs give 2.

    delta is normal noise on the weights of all sublayers, with the standard deviation `noise` times
    `scales` (`plain_deviations`). It is the same for every scheme and depth, because a step of the
    optimiser does not depend on them either. Biases (0 at the start), LayerNorms, omega, alpha and
    embeddings do not change. A profiled omega is profiled on `batch`.
    """
    arrays = dict(batch)
    fresh, profile, output = _programs(config)
    profiled = config.residual == "admin" and config.admin_omega == "profiled"
    changes = []
    for draw in range(num_draws):
        # The device's own random bits compile in half the time.
        params = fresh(jax.random.key(seed + draw, impl="rbg"), arrays)
        params = profile(params, arrays) if profiled else params
        changed = disturbed(params, scales, noise, np.random.default_rng((seed, draw)))
        outputs = output(params, arrays), output(changed, arrays)
        changes.append(mean_square(*outputs, non_padding(batch, "encoder")))
    return np.array(jax.device_get(changes), np.float64)


def layer_amplification(
    config: ModelConfig, params: Any, batch: Batch, scales: Scales, *, num_draws: int, noise: float, seed: int
) -> Float[np.ndarray, "K L"]:
    """The same for given parameters and each encoder layer: the change of the normalised residual
    stream after it, for K changes of all sublayers. The changes are as large as for a fresh model.
    """
    model = plain_model(config)

    def sow(layer: nn.Module, args: tuple[Any, ...], result: Any) -> Any:
        del args
        layer.sow(PROBE, "stream", result[0].x)
        return result

    def streams(params: Any, example: Batch) -> Float[Array, "L 1 T D"]:
        return run_and_collect(model, params, example, after_calls({EncoderLayer}, sow))["encoder"]["layers"]["stream"][0]

    def change(params: Any, changed: Any, batch: Batch) -> Float[Array, " L"]:
        def of_example(example: Batch) -> tuple[Float[Array, " L"], Int[Array, ""]]:
            real = non_padding(example, "encoder")
            squares = jax.vmap(lambda a, b: mean_square(a, b, real))(streams(params, example), streams(changed, example))
            return squares, real.sum()

        squares, counts = map_examples(of_example, batch)
        return counts @ squares / counts.sum()

    compiled = jax.jit(change)
    draws = (disturbed(params, scales, noise, np.random.default_rng((seed, draw))) for draw in range(num_draws))
    return np.array(jax.device_get([compiled(params, changed, dict(batch)) for changed in draws]), np.float64)


def disturbed(params: Any, scales: Scales, noise: float, rng: np.random.Generator) -> Any:
    """The parameters with normal noise on the encoder's sublayers (see `fresh_amplification`)."""
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
    """The standard deviation of each parameter of the encoder's sublayers at a Post-LN start; 0 for
    parameters that start constant.
    """
    plain = replace(config, residual="post_ln", num_layers=1)
    init = jax.jit(lambda: nn.unbox(build_model(plain).init(jax.random.key(0), batch, None))["params"]["encoder"]["layers"])
    layers = init()
    return {name: {kernel: float(jnp.std(leaf)) for kernel, leaf in layers[name].items()} for name in SUBLAYERS["encoder"]}


@functools.lru_cache(maxsize=4)
def _programs(config: ModelConfig) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """Compiled: fresh parameters; parameters with omega profiled; the encoder's output."""

    def fresh(key: Key[Array, ""], batch: Batch) -> Any:
        return nn.unbox(build_model(config).init(key, batch, None))["params"]

    def profile(params: Any, batch: Batch) -> Any:
        return set_omega(params, profile_omega(config, params, batch))

    return jax.jit(fresh), jax.jit(profile), jax.jit(functools.partial(_encoder_output, plain_model(config)))


def _encoder_output(model: Any, params: Any, batch: Batch) -> Float[Array, "B T D"]:
    found: list[Array] = []

    def keep(encoder: nn.Module, args: tuple[Any, ...], result: Any) -> Any:
        del encoder, args
        found.append(result)
        return result

    run_intercepted(model, params, batch, after_calls({Encoder}, keep))
    return found[0]


def mean_square(one: Float[Array, "B T D"], other: Float[Array, "B T D"], real: Bool[Array, "B T"]) -> Float[Array, ""]:
    """The mean square, over all elements of the tokens, of the difference between the two
    normalised arrays.
    """
    one, other = (normalize(each.astype(jnp.float32), 0.0)[0] for each in (one, other))
    return jnp.mean((one - other) ** 2, where=jnp.broadcast_to(real[:, :, None], one.shape))
