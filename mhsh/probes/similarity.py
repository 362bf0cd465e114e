"""Similarity of the residual stream before and after each layer: is the depth used?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from mhsh.config.schema import ModelConfig
from mhsh.models.types import Batch, sort_stacks
from mhsh.probes.interceptors import PROBE, after_layers, non_padding, plain_model, run_intercepted

Similarity = dict[str, dict[str, list[float]]]


def linear_cka(x: Float[Array, "P D"], y: Float[Array, "P E"], counts: Bool[Array, " P"]) -> Float[Array, ""]:
    """|Y'X|^2 / (|X'X| |Y'Y|) in Frobenius norms, with columns centred over the P tokens that count
    (Kornblith et al. 2019, arXiv 1905.00414, section 3.4). 1 if y is x rotated, reflected, shifted
    or scaled; 0 if they are uncorrelated.
    """
    x, y = _centre(x, counts), _centre(y, counts)
    return _squares(y, x) / jnp.sqrt(_squares(x, x) * _squares(y, y))


def mean_cosine(x: Float[Array, "P D"], y: Float[Array, "P D"], counts: Bool[Array, " P"]) -> Float[Array, ""]:
    """The cosine between the x and y of a token, averaged over the tokens that count."""
    x, y = x.astype(jnp.float32), y.astype(jnp.float32)
    cosine = (x * y).sum(-1) / (jnp.linalg.norm(x, axis=-1) * jnp.linalg.norm(y, axis=-1))
    return jnp.mean(cosine, where=counts)


def similarity(config: ModelConfig, params: Any, batch: Batch) -> Similarity:
    """The similarity by stack, for each layer: `cka` and `cosine` between the residual stream
    before and after it, over the tokens that are not padding.
    """
    return similarities(config, params, [batch])[0]


def similarities(config: ModelConfig, params: Any, batches: Sequence[Batch]) -> list[Similarity]:
    """`similarity` of each batch, by one compiled program."""
    model = plain_model(config)

    @jax.jit
    def collect(params: Any, batch: Batch) -> dict[str, Any]:
        def sow(layer: Any, args: tuple[Any, ...], result: Any) -> Any:
            counts = non_padding(batch, layer.stack.name).reshape(-1)
            before, after = (layer.residual.total(stream).reshape(len(counts), -1) for stream in (args[0], result[0]))
            layer.sow(PROBE, "cka", linear_cka(before, after, counts))
            layer.sow(PROBE, "cosine", mean_cosine(before, after, counts))
            return result

        return run_intercepted(model, params, batch, after_layers(sow))[1]

    return [_to_lists(jax.device_get(collect(params, dict(batch)))) for batch in batches]


def _to_lists(sown: dict[str, Any]) -> Similarity:
    layers = {stack: figures["layers"] for stack, figures in sort_stacks(sown).items()}
    return {stack: {name: np.asarray(each[name][0]).tolist() for name in ("cka", "cosine")} for stack, each in layers.items()}


def _centre(x: Float[Array, "P D"], counts: Bool[Array, " P"]) -> Float[Array, "P D"]:
    x, counts = x.astype(jnp.float32), counts[:, None]
    return jnp.where(counts, x - jnp.mean(x, axis=0, keepdims=True, where=counts), 0.0)


def _squares(x: Float[Array, "P D"], y: Float[Array, "P E"]) -> Float[Array, ""]:
    return jnp.sum(jnp.einsum("PD,PE->DE", x, y, precision="highest") ** 2)
