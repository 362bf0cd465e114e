"""Amplification: how much a stack's output changes when its parameters change a little, and how it
grows with depth: the exponent of a power law, and the best of four laws.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float
from msgspec.structs import replace
from scipy import stats

from mhsh.config.entries import variant as scheme_variant
from mhsh.config.schema import ModelConfig
from mhsh.errors import UserError
from mhsh.models.admin import is_profiled, profile_omega, set_omega
from mhsh.models.build import Model, build_model
from mhsh.models.layers import normalize
from mhsh.models.transformer import Encoder
from mhsh.models.types import SUBLAYERS, Batch
from mhsh.probes.interceptors import non_padding, plain_model

# {sublayer of the encoder: {parameter: scale}}
Scales = dict[str, dict[str, float]]
Note = Callable[[str], None]  # gets lines on the progress

_NOISE, _SEED = 1e-3, 0  # deviation over that of a fresh weight; where its draws begin


CONFIDENCE = 0.95  # of intervals

# The laws of the theory. Each has one free factor, so that the fits are comparable.
LAWS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "O(1/n)": lambda n: 1 / n,
    "O(1)": np.ones_like,
    "O(log n)": np.log,
    "O(n)": lambda n: n,
}


class Growth(NamedTuple):
    """The growth of y with n. Deviations are of ln y: 0.1 is about 10 % of y."""

    exponent: float  # p of y ~ n^p
    low: float  # the ends of its interval
    high: float
    deviations: dict[str, float]  # root mean square, of y from each law times its best factor
    law: str  # the law with the smallest deviation


def scheme_amplification(
    config: ModelConfig, scheme: str, depths: Sequence[int], batch: Batch, *, num_draws: int, note: Note
) -> dict[str, Any]:
    """`fresh_amplification` by a variant of a residual scheme on stacks of some depths, and its
    growth with their number of sublayers, for JSON: what is not finite is None. Raises UserError
    where the layers are passed several times.
    """
    if config.loops > 1:
        raise UserError(
            f"model.loops = {config.loops}: depths count layers that are passed once; allowed with mhsh probe amplification: 1"
        )
    variant, fields = scheme_variant(scheme)
    scales = plain_deviations(config, batch)
    base_layers = config.base_layers or config.num_layers  # of completep, as where a shape is regrouped
    points, means = [], []
    for depth in depths:
        model = replace(config, num_layers=depth, base_layers=base_layers, remat_policy="none", **fields)
        draws = fresh_amplification(model, batch, scales, num_draws=num_draws, noise=_NOISE, seed=_SEED)
        note(f"{scheme}, {depth} layers: {draws.mean():.3g}")
        means.append(draws.mean())
        interval = dict(zip(("mean", "low", "high"), map(_finite, mean_interval(draws)), strict=True))
        points.append({"layers": depth, "sublayers": 2 * depth, **interval, "draws": list(map(_finite, draws))})
    fitted = growth([2 * depth for depth in depths], means)
    return {
        "scheme": scheme,
        "label": variant.label,
        "theory": variant.growth,
        "source": variant.source,
        "growth": None if fitted is None else fitted._asdict(),
        "points": points,
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
    arrays, model = dict(batch), build_model(config)
    fresh = jax.jit(lambda key, batch: nn.unbox(model.init(key, batch, None))["params"])
    profile = jax.jit(lambda params, batch: set_omega(params, profile_omega(config, params, batch)))
    output = jax.jit(functools.partial(_encoder_output, plain_model(config)))
    changes = []
    for draw in range(num_draws):
        # The device's own random bits compile in half the time.
        params = fresh(jax.random.key(seed + draw, impl="rbg"), arrays)
        params = profile(params, arrays) if is_profiled(config) else params
        changed = add_noise(params, scales, noise, np.random.default_rng((seed, draw)))
        outputs = output(params, arrays), output(changed, arrays)
        changes.append(mean_square(*outputs, non_padding(batch, "encoder")))
    return np.array(jax.device_get(changes), np.float64)


def add_noise(params: Any, scales: Scales, noise: float, rng: np.random.Generator) -> Any:
    """The parameters with normal noise on the encoder's sublayers (see `fresh_amplification`)."""
    layers = dict(params["encoder"]["layers"])
    for name, kernel_scales in scales.items():
        delta = {
            kernel: noise * scale * rng.standard_normal(layers[name][kernel].shape, np.float32)
            for kernel, scale in kernel_scales.items()
            if scale > 0
        }
        layers[name] = layers[name] | {kernel: layers[name][kernel] + change for kernel, change in delta.items()}
    return params | {"encoder": params["encoder"] | {"layers": layers}}


def plain_deviations(config: ModelConfig, batch: Batch) -> Scales:
    """The standard deviation of each parameter of the encoder's sublayers at a Post-LN start; 0 for
    parameters that start constant.
    """
    plain = replace(config, residual="post_ln", num_layers=1, qk_norm=False)
    init = jax.jit(lambda: nn.unbox(build_model(plain).init(jax.random.key(0), batch, None))["params"]["encoder"]["layers"])
    layers = init()
    return {name: {kernel: float(jnp.std(leaf)) for kernel, leaf in layers[name].items()} for name in SUBLAYERS["encoder"]}


def _encoder_output(model: Model, params: Any, batch: Batch) -> Float[Array, "B T D"]:
    _, state = model.apply(
        {"params": params}, batch, None, capture_intermediates=lambda module, _: type(module) is Encoder, mutable=["intermediates"]
    )
    return cast(Any, state)["intermediates"]["encoder"]["__call__"][0]


def mean_square(x: Float[Array, "B T D"], y: Float[Array, "B T D"], real: Bool[Array, "B T"]) -> Float[Array, ""]:
    """The mean square, over all elements of the tokens, of the difference between the two
    normalised arrays.
    """
    x, y = (normalize(each.astype(jnp.float32), 0.0)[0] for each in (x, y))
    return jnp.mean((x - y) ** 2, where=jnp.broadcast_to(real[:, :, None], x.shape))


def growth(n: Sequence[int] | np.ndarray, y: Sequence[float] | np.ndarray) -> Growth | None:
    """The growth of positive y with n > 1, fitted in logarithms: small and large n weigh the same.
    None if fewer than three values are positive and finite.

    The exponent is the least-squares slope of ln y over ln n, with its t-interval of CONFIDENCE
    (number of values less two degrees of freedom). If no power law holds it is the mean slope over
    this range: log n from 12 to 768 has about 0.23.
    """
    depths, figures = np.asarray(n, float), np.asarray(y, float)
    usable = np.isfinite(figures) & (figures > 0)
    depths, logs = depths[usable], np.log(figures[usable])
    if len(np.unique(depths)) < 3:
        return None
    x = np.log(depths)
    exponent, intercept = np.polyfit(x, logs, 1)
    # Not scipy's linregress: its error is nan where all values are equal.
    variance = np.sum((logs - exponent * x - intercept) ** 2) / (len(x) - 2)
    error = math.sqrt(variance / np.sum((x - x.mean()) ** 2))
    half_width = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(x) - 2)) * error
    deviations = {law: float(np.std(logs - np.log(shape(depths)))) for law, shape in LAWS.items()}
    law = min(deviations, key=deviations.__getitem__)
    return Growth(float(exponent), float(exponent - half_width), float(exponent + half_width), deviations, law)


def mean_interval(values: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """The mean of independent values and its t-interval of CONFIDENCE (infinite for one value)."""
    figures = np.asarray(values, float)
    mean = float(figures.mean())
    if len(figures) < 2:
        return mean, -math.inf, math.inf
    half_width = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(figures) - 1) * stats.sem(figures))
    return mean, mean - half_width, mean + half_width
