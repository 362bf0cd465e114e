"""Where a diverged run's numbers stop being finite: the first layer with a non-finite activation,
and the gradient norm of each layer.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.sharding import Mesh, PartitionSpec

from mhsh.config.schema import Config
from mhsh.models.build import Model, forward
from mhsh.models.losses import compute_metrics, loss_weights, total_loss
from mhsh.models.types import Batch, in_stack_order
from mhsh.probes.gradient_flow import norm_by_layer
from mhsh.training.sharding import axis_rules, replicated
from mhsh.training.shards import manual_specs, over_shards, psum_batch, psum_gradients


def nan_report(config: Config, model: Model, mesh: Mesh, params: Any, batch: Batch) -> dict[str, Any]:
    """The report of one forward and one backward pass of `batch` without dropout.

    Returns plain values for a JSON file: `first_nonfinite_layer` (such as "encoder 1", counted from
    1 as a token passes them; None: no layer), `nonfinite_parameters` (paths),
    `gradient_norm_by_layer` (by stack; None where not finite), `loss` (None where not finite).
    """

    def inspect(params: Any, batch: Batch) -> tuple[Any, tuple[Any, Any]]:
        _, sown = model.apply({"params": params}, batch, None, mutable=["diagnosis"])
        stacks: Any = sown["diagnosis"]
        broken = {stack: ~layers["layers"]["finite"][0].reshape(-1) for stack, layers in stacks.items()}
        weights = psum_batch(loss_weights(batch))

        def loss(params: Any) -> jax.Array:
            return total_loss(compute_metrics(forward(model, params, batch, None), batch), weights)

        value, gradients = jax.value_and_grad(loss)(params)
        seen = psum_batch((jax.tree.map(lambda layers: layers.astype(jnp.float32), broken), value))
        return psum_gradients(gradients, config), seen

    def report(params: Any, batch: Batch) -> tuple[Any, Any, Any]:
        out_specs = manual_specs(config.model), PartitionSpec()
        gradients, (broken, value) = over_shards(inspect, config.model, out_specs)(params, batch)
        finite = {stack: layers == 0 for stack, layers in broken.items()}
        return finite, value, {stack: norm_by_layer(gradients[stack]["layers"]) for stack in finite}

    with jax.set_mesh(mesh), nn.logical_axis_rules(axis_rules(config.model)):
        finite, loss, norms = jax.device_get(jax.jit(report, out_shardings=replicated(mesh))(params, dict(batch)))
        broken = jax.device_get(jax.jit(lambda tree: jax.tree.map(lambda leaf: ~jnp.isfinite(leaf).all(), tree))(params))
    first = [
        f"{stack} {layer + 1}"
        for stack, layers in in_stack_order(finite).items()
        for layer in np.flatnonzero(~np.asarray(layers))[:1]
    ]
    return {
        "first_nonfinite_layer": first[0] if first else None,
        "nonfinite_parameters": [
            jax.tree_util.keystr(path, simple=True, separator="/")
            for path, bad in jax.tree_util.tree_leaves_with_path(broken)
            if bad
        ],
        "gradient_norm_by_layer": {stack: [_finite(norm) for norm in layers] for stack, layers in in_stack_order(norms).items()},
        "loss": _finite(loss),
    }


def format_report(report: dict[str, Any]) -> str:
    """The report as half a line."""
    layer = report["first_nonfinite_layer"]
    where = f"first non-finite activations in layer {layer}" if layer is not None else "activations are finite in every layer"
    norms = [norm for stack in report["gradient_norm_by_layer"].values() for norm in stack if norm is not None]
    return f"{where}; gradient norms by layer " + (f"{min(norms):.3g} to {max(norms):.3g}" if norms else "are not finite")


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
