"""Interceptors: functions that see, or change, what the modules of a model compute. The model knows
nothing of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool
from msgspec.structs import replace

from mhsh.config.schema import ModelConfig
from mhsh.models.build import Model, build_model, xla_config
from mhsh.models.transformer import Layer
from mhsh.models.types import Batch, Outputs

# The collection that interceptors write to. Scans over layers stack it on axis 0
# (mhsh/models/transformer.py, SOWN).
PROBE = "probe"

# As flax calls it in place of every method of every module: with the method, its arguments (only a
# user's scheme has keywords), and a context that has the module and the method's name. Its result
# replaces the method's.
Interceptor = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any], Any]


def after_layers(function: Callable[[Layer, tuple[Any, ...], Any], Any]) -> Interceptor:
    """Replaces the result of every layer by `function` of the layer, its arguments and result."""

    def interceptor(call: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any], context: Any) -> Any:
        result = call(*args, **keywords)
        # The scan over layers is a derived class, and does not count.
        is_layer = context.method_name == "__call__" and type(context.module) is Layer
        return function(context.module, args, result) if is_layer else result

    return interceptor


def plain_model(config: ModelConfig) -> Model:
    """A model that computes the function of `config` by XLA alone and without rematerialisation:
    kernels hide what an interceptor wants to see, and rematerialisation repeats it.
    """
    return build_model(replace(xla_config(config), remat_policy="none"))


def run_intercepted(
    model: Model, params: Any, batch: Batch, interceptor: Interceptor, perturbations: Any = None
) -> tuple[Outputs, dict[str, Any]]:
    """Runs one forward pass without dropout. Pure if the interceptor is.

    Returns the outputs; and by module, what the interceptor wrote with `module.sow(PROBE, name,
    value)` or `module.perturb(name, value, PROBE)`, which adds the `perturbations`. What layers
    wrote is stacked in the order in which a token passes them, with model.loops in all passes.
    """
    config, variables = model.config, {"params": params}
    if perturbations is not None:
        variables[PROBE] = _reshape_layers(perturbations, config, lambda passed: (config.loops, -1, *passed.shape[1:]))
    with nn.intercept_methods(interceptor):
        outputs, written = cast(Any, model.apply(variables, batch, None, mutable=[PROBE]))
    return outputs, _reshape_layers(written.get(PROBE, {}), config, lambda passed: (-1, *passed.shape[2:]))


def _reshape_layers(written: Any, config: ModelConfig, shape_of: Callable[[Any], tuple[int, ...]]) -> dict[str, Any]:
    """The arrays that the scans over passes and layers stacked, reshaped with model.loops."""
    if config.loops == 1:
        return dict(written)
    return {
        stack: found | {"layers": jax.tree.map(lambda leaf: leaf.reshape(shape_of(leaf)), found["layers"])}
        if "layers" in found
        else found
        for stack, found in written.items()
    }


def non_padding(batch: Batch, stack: str) -> Bool[Array, "B T"]:
    """True at the tokens that `stack` reads, False at padding."""
    key = "inputs_segmentation" if stack == "encoder" else "targets_segmentation"
    return jnp.asarray(batch[key]) > 0


def map_examples(function: Callable[[Batch], Any], batch: Batch) -> Any:
    """Stacks `function` of each example, as a batch of one: only its values are in memory."""
    examples = {key: jnp.asarray(value)[:, None] for key, value in batch.items()}
    return jax.lax.map(function, examples)
