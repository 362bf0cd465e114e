"""Dependency: the share of each sublayer in the final residual stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from mhsh.config.entries import SCHEMES
from mhsh.config.schema import ModelConfig
from mhsh.errors import UserError
from mhsh.models.build import Model
from mhsh.models.layers import LayerNorm
from mhsh.models.residual import Residual, Weights
from mhsh.models.transformer import Decoder, Encoder
from mhsh.models.types import SUBLAYERS, Batch, sort_stacks
from mhsh.probes.interceptors import PROBE, map_examples, non_padding, plain_model, run_intercepted

_ROUNDING = 0.01  # of a share, in bf16
_STACKS: dict[type, str] = {Encoder: "encoder", Decoder: "decoder"}


def dependency(config: ModelConfig, params: Any, batch: Batch) -> dict[str, dict[str, Any]]:
    """Shares of the variance of a stack's output, which sum to 1, by stack: a list over the layers
    for each sublayer, `input` for the stack's input, and `biases` for the biases of its LayerNorms.

    With its statistics held constant, a LayerNorm is linear; so is a mixture of several streams or
    blocks with its weights held constant. So the output y of a stack is a sum of parts. The part of
    a sublayer is its output f_i(.), multiplied by omega (Admin), alpha (DeepNorm, ReZero) and
    gamma/sigma of every LayerNorm after it:

        y = c_input + sum_i c_i + c_biases,    share_i = Cov[c_i, y] / Var[y]

    over all elements of the tokens. If the parts are independent, as Liu et al. assume, share_i is
    their beta_i^2 of the last sublayer (arXiv 2004.08249, section 4.1). If they are not, the shares
    still sum to 1, and a part that opposes the rest has a negative share. In Pre-LN the stream is a
    plain sum, followed by the final LayerNorm. Raises UserError where the shares of a user's scheme
    do not sum to 1: its stream is no sum of parts.
    """
    model = plain_model(config)

    def shares(params: Any, batch: Batch) -> Any:
        # The deviation of y from its mean; 0 at padding.
        outputs = map_examples(lambda example: _outputs(model, params, example, None), batch)
        deviations = {
            stack: _deviation(y[:, 0], non_padding(batch, stack))[:, None].astype(jnp.float32) for stack, y in outputs.items()
        }
        first = {key: value[:1] for key, value in batch.items()}
        _, zeros = jax.eval_shape(lambda: run_intercepted(model, params, first, _gate_additions([])))
        gates_at_one = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), zeros)

        def gate_gradients(pair: tuple[Batch, dict[str, Array]]) -> Any:
            example, deviation = pair

            def product(gates: Any) -> Float[Array, ""]:
                ys = _outputs(model, params, example, gates)
                return sum((jnp.sum(ys[stack].astype(jnp.float32) * deviation[stack]) for stack in ys), start=jnp.zeros(()))

            return jax.grad(product)(gates_at_one)

        examples = {key: jnp.asarray(value)[:, None] for key, value in batch.items()}
        products = jax.tree.map(lambda each: each.sum(axis=0), jax.lax.map(gate_gradients, (examples, deviations)))
        variances = {stack: jnp.sum(deviation**2) for stack, deviation in deviations.items()}
        return {stack: jax.tree.map(lambda each: each / variances[stack], products[stack]) for stack in variances}  # noqa: B023

    found = jax.device_get(jax.jit(shares)(params, dict(batch)))
    named = {stack: _name_shares(stack, each) for stack, each in sort_stacks(found).items()}
    for stack, each in named.items():
        parts = np.concatenate([np.ravel(share) for share in each.values()])
        if SCHEMES.files(config.residual) and abs(parts.sum() - 1) > _ROUNDING * abs(parts).sum():
            raise UserError(
                f"model.residual = {config.residual!r}: the shares in the {stack} sum to {parts.sum():.3f}, not to 1, as its "
                "stream is no sum of parts; compute weights from the stream in a mhsh.models.residual.Weights, and norms in a "
                "mhsh.models.layers.LayerNorm"
            )
    return named


def _outputs(model: Model, params: Any, batch: Batch, gates: Any) -> dict[str, Float[Array, "B T D"]]:
    """The output of each stack: a linear function of its gates, which are 1 + `gates`."""
    outputs: list[tuple[str, Array]] = []
    run_intercepted(model, params, batch, _gate_additions(outputs), gates)
    return dict(outputs)


def _gate_additions(outputs: list[tuple[str, Array]]) -> Callable[..., Any]:
    """An interceptor that puts a gate on everything that is added to a stream. Gradients run only
    through the gates and down the stream. It appends the output of each stack to `outputs`.
    """

    def interceptor(call: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any], context: Any) -> Any:
        module = context.module
        if context.method_name != "__call__":
            return call(*args, **keywords)
        if isinstance(module, Residual):
            stream, sublayer = args[:2]
            branch = _gate(module, "branch")
            return call(stream, lambda x: branch * jax.lax.stop_gradient(sublayer(x)))
        if isinstance(module, LayerNorm):
            return _apply_frozen_norm(module, *args, **keywords)
        if isinstance(module, Weights):
            return jax.lax.stop_gradient(call(*args, **keywords))
        if type(module) in _STACKS:
            y = call(_gate(module, "input") * jax.lax.stop_gradient(args[0]), *args[1:])
            outputs.append((_STACKS[type(module)], y))
            return y
        return call(*args, **keywords)

    return interceptor


def _gate(module: nn.Module, name: str) -> Float[Array, ""]:
    return 1 + module.perturb(name, jnp.zeros(()), PROBE)


def _apply_frozen_norm(norm: LayerNorm, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
    """A LayerNorm with constant deviations and a gate on its bias."""
    x = x.astype(jnp.float32)
    centred = x - x.mean(axis=-1, keepdims=True) if norm.config.norm == "layer" else x
    deviation = jnp.sqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + norm.config.layer_norm_epsilon)
    y = centred / jax.lax.stop_gradient(deviation) * norm.scale + _gate(norm, "bias_gate") * norm.bias
    return y.astype(norm.config.residual_dtype)


def _deviation(y: Float[Array, "B T D"], real: Bool[Array, "B T"]) -> Float[Array, "B T D"]:
    y, where = y.astype(jnp.float32), real[:, :, None]
    return jnp.where(where, y - jnp.mean(y, where=jnp.broadcast_to(where, y.shape)), 0.0)


def _name_shares(stack: str, shares: Any) -> dict[str, Any]:
    layers = shares["layers"]
    sublayers = {name: np.asarray(layers[f"{name}_residual"]["branch"]).tolist() for name in SUBLAYERS[stack]}
    biases = [leaf for path, leaf in jax.tree_util.tree_leaves_with_path(shares) if path[-1].key == "bias_gate"]
    return sublayers | {"input": float(shares["input"]), "biases": float(sum(leaf.sum() for leaf in biases))}
