"""Looking into the one model from outside: what its modules compute is seen, or changed, while it
runs, unknown to them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool
from msgspec.structs import replace

from mhsh.config.schema import ModelConfig
from mhsh.models.build import Model, build_model
from mhsh.models.types import Batch

# What watchers leave behind; the scans over layers stack it on axis 0 (mhsh/models/transformer.py,
# SOWN).
PROBE = "probe"

# Called in place of every method of every module: the module, the method's name, the method and its
# arguments. What it returns takes the place of what the method returns.
Watcher = Callable[[nn.Module, str, Callable[..., Any], tuple[Any, ...]], Any]


def watchable(config: ModelConfig) -> Model:
    """The model of a config with all that it computes open to a watcher: fused kernels hide it,
    rematerialisation repeats it.

    The same function of the same parameters.
    """
    return build_model(replace(config, kernels="plain", remat_policy="none"))


def watch(model: Model, params: Any, batch: Batch, watcher: Watcher) -> dict[str, Any]:
    """One forward pass without dropout under the eyes of `watcher`; pure, as far as the watcher is.

    Returns what it left behind with `module.sow(PROBE, name, value)` or `module.perturb(name,
    value, PROBE)`, by module.
    """
    with nn.intercept_methods(_interceptor(watcher)):
        _, left = model.apply({"params": params}, batch, None, mutable=[PROBE])
    kept: Any = left.get(PROBE, {})
    return dict(kept)


def run_watched(model: Model, params: Any, batch: Batch, watcher: Watcher, given: Any = None) -> None:
    """As `watch`, nothing kept; `given` is read back by `perturb` where `watch` has left its
    zeros.
    """
    variables = {"params": params} if given is None else {"params": params, PROBE: given}
    with nn.intercept_methods(_interceptor(watcher)):
        model.apply(variables, batch, None)


def num_non_padding(batch: Batch, stack: str) -> Bool[Array, "B T"]:
    """False at the padding of what a stack reads."""
    key = "inputs_segmentation" if stack == "encoder" else "targets_segmentation"
    return jnp.asarray(batch[key]) > 0


def over_rows(function: Callable[[Batch], Any], batch: Batch) -> Any:
    """`function` of each row of a batch (as a batch of one), results stacked: what is kept of a
    pass is of one row at a time.
    """
    rows = {key: jnp.asarray(value)[:, None] for key, value in batch.items()}
    return jax.lax.map(function, rows)


def _interceptor(watcher: Watcher) -> Callable[..., Any]:
    def intercept(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], context: Any) -> Any:
        if kwargs:  # flax's own methods; the model's are called with what stands in a row
            return method(*args, **kwargs)
        return watcher(context.module, context.method_name, method, args)

    return intercept
