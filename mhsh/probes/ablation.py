"""Ablation: the loss of a model whose layers are left out or change places. Is the depth used?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mhsh.config.schema import ModelConfig
from mhsh.errors import UserError
from mhsh.models.losses import compute_metrics, loss_weights, total_loss
from mhsh.models.types import Batch, sort_stacks
from mhsh.probes.interceptors import PROBE, after_layers, map_examples, non_padding, plain_model, run_intercepted
from mhsh.probes.similarity import similarities


def ablation(config: ModelConfig, params: Any, batches: Sequence[Batch]) -> dict[str, dict[str, Any]]:
    """The losses by stack; a list over layers holds a list over the K batches.

    - `whole`: the loss of the model as it is (K values).
    - `skipped`: the loss without layer l: the stream passes it by. What a scheme derives from the
      depth stays, as does the number of every other layer.
    - `swapped`: the loss with layers l and l + 1 in each other's place.
    - `without_last`: {k: loss without the last k layers}, k = 1, 2, 4, ... and all of them.
    - `influence`: 1 - the mean cosine between a token's stream before and after layer l (Men et al.
      2024, ShortGPT, arXiv 2403.03853).
    - `later`: how much the later layers depend on layer l: the largest relative change of what one
      of them adds, |c' - c| / |c| averaged over tokens, where l is skipped (Csordas et al. 2025,
      arXiv 2505.13898); 0 of the last layer. Of the first batch alone.

    Raises UserError where the layers are passed several times.
    """
    if config.loops > 1:
        raise UserError(f"model.loops = {config.loops}: a layer is in every pass; allowed with mhsh probe ablation: 1")
    losses = _Losses(config, params)
    found: dict[str, dict[str, Any]] = {}
    for stack, depth in losses.depths.items():
        counts = sorted({2**power for power in range(depth.bit_length()) if 2**power < depth} | {depth})
        found[stack] = {
            "whole": [losses(batch) for batch in batches],
            "skipped": [[losses(batch, stack, skipped=[layer]) for batch in batches] for layer in range(depth)],
            "swapped": [[losses(batch, stack, swapped=layer) for batch in batches] for layer in range(depth - 1)],
            "without_last": {
                str(count): [losses(batch, stack, skipped=range(depth - count, depth)) for batch in batches] for count in counts
            },
            "later": losses.later_changes(batches[0], stack),
        }
    cosines = similarities(config, params, batches)
    for stack, figures in found.items():
        figures["influence"] = (1 - np.array([each[stack]["cosine"] for each in cosines]).T).tolist()
    return found


class _Losses:
    """The loss of a model with other layers, by one compiled program."""

    def __init__(self, config: ModelConfig, params: Any) -> None:
        self._model, self._params = plain_model(config), params
        depths = {"encoder": config.num_layers, "decoder": config.num_decoder_layers}
        self.depths = {stack: depth for stack, depth in depths.items() if depth}
        self._loss = jax.jit(self._compute_loss)
        self._streams = jax.jit(self._compute_additions)

    def __call__(self, batch: Batch, stack: str = "encoder", skipped: Sequence[int] = (), swapped: int | None = None) -> float:
        order = {name: np.arange(depth) for name, depth in self.depths.items()}
        if swapped is not None:
            order[stack][[swapped, swapped + 1]] = swapped + 1, swapped
        return float(self._loss(self._params, dict(batch), self._gates(stack, skipped), order))

    def later_changes(self, batch: Batch, stack: str) -> list[float]:
        """The figures `later` of this batch."""
        depth = self.depths[stack]
        baseline = np.asarray(self._streams(self._params, dict(batch), self._gates(stack, ()))[stack])
        real = np.asarray(non_padding(batch, stack))[None]
        changes = []
        for layer in range(depth):
            other = np.asarray(self._streams(self._params, dict(batch), self._gates(stack, [layer]))[stack])
            after = slice(layer + 1, depth)
            sizes = np.linalg.norm(baseline[after], axis=-1)
            relative = np.linalg.norm(other[after] - baseline[after], axis=-1) / np.where(sizes > 0, sizes, 1.0)
            means = (relative * real).sum(axis=(1, 2)) / real.sum()
            changes.append(float(means.max(initial=0.0)))
        return changes

    def _gates(self, stack: str, skipped: Sequence[int]) -> dict[str, Any]:
        """The number that a gate adds to the 1 of each layer: -1 where it is skipped."""
        gates = {name: np.zeros(depth, np.float32) for name, depth in self.depths.items()}
        gates[stack][list(skipped)] = -1
        return {name: {"layers": {"gate": each}} for name, each in gates.items()}

    def _compute_loss(self, params: Any, batch: Batch, gates: Any, order: Any) -> Float[Array, ""]:
        ordered = params | {
            stack: params[stack] | {"layers": jax.tree.map(lambda leaf, stack=stack: leaf[order[stack]], params[stack]["layers"])}
            for stack in order
        }
        outputs, _ = run_intercepted(self._model, ordered, batch, after_layers(_gate_layer), gates)
        return total_loss(compute_metrics(outputs, batch), loss_weights(batch))

    def _compute_additions(self, params: Any, batch: Batch, gates: Any) -> Any:
        """The addition of every layer to the stream, by stack: [L,B,T,D]."""

        def sow(layer: Any, args: tuple[Any, ...], result: Any) -> Any:
            result = _gate_layer(layer, args, result)
            added = layer.residual.total(result[0]) - layer.residual.total(args[0])
            layer.sow(PROBE, "added", added.reshape(*added.shape[:2], -1))
            return result

        def example_additions(example: Batch) -> Any:
            _, sown = run_intercepted(self._model, params, example, after_layers(sow), gates)
            return {stack: found["layers"]["added"][0][:, 0] for stack, found in sown.items()}

        return jax.tree.map(lambda each: jnp.moveaxis(each, 0, 1), sort_stacks(map_examples(example_additions, batch)))


def _gate_layer(layer: Any, args: tuple[Any, ...], result: Any) -> Any:
    """A layer whose stream passes it by where its gate is closed."""
    (after, nothing), before = result, args[0]
    opened = 1 + layer.perturb("gate", jnp.zeros(()), PROBE) > 0.5
    skipped = layer.residual.skip_layer(layer.config, layer.stack, before, after)
    return jax.tree.map(lambda one, other: jnp.where(opened, one, other), after, skipped), nothing
