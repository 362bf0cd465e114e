"""The layers of an encoder one after the other, with a backward pass of their own: for models whose
sublayers kernels add to the stream.

jax's scan would copy what those kernels keep into stacks, and out of them again. Here they write
and read the stacks in place.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Float

from mhsh.config.schema import ModelConfig
from mhsh.models.dropout import Seeds
from mhsh.models.kernels.join import Join, Operands, SavedNorm, ScanPlace, backward, empty_sums, first_row, forward, make_join
from mhsh.models.residual import NormedSum, Residual, Stream
from mhsh.models.saved import record_saved, replay_saved
from mhsh.models.sublayer import Branch
from mhsh.models.types import SUBLAYERS
from mhsh.models.vectors import Packing, Path, pack, unpack


def covers(config: ModelConfig, residual: type[Residual]) -> bool:
    """Whether this scan computes the encoder of a model."""
    all_vectors = config.bias and config.norm == "layer"  # side by side, as a kernel reads them
    once = config.remat_policy == "projections" and config.loops == 1
    return issubclass(residual, NormedSum) and residual.is_fused(config) and all_vectors and once


def scan_packed_layers(layer: Any, packing: Packing, num_layers: int, unroll: int) -> Any:
    """The module class of copies of `layer` over packed parameters. It is called as an nn.scan of
    it is, with `unroll` layers in one iteration, or the next number below that divides them.
    """
    unroll = max(count for count in range(1, unroll + 1) if num_layers % count == 0)

    class Scanned(nn.Module):
        config: Any
        residual: Any
        stack: Any

        @nn.compact
        def __call__(self, stream: Stream, seeds: Seeds, context: Any) -> tuple[Stream, None]:
            one = layer(self.config, self.residual, self.stack, parent=None)
            weight = self.residual.fixed_weight(self.stack)
            layers = _Layers(one, packing, unroll, make_join(self.config, weight, seeds is not None))
            return Stream(_apply_layers(layers, dict(self.variables["params"]), stream.x, seeds, context), None), None

    return Scanned


@dataclasses.dataclass(frozen=True, eq=False)
class _Layers:
    """The module, packing and join that all layers share."""

    layer: Any  # a module
    packing: Packing
    unroll: int  # layers in an iteration
    plain: Join  # of a sublayer, wherever it is

    @functools.cached_property
    def joins(self) -> dict[str, tuple[Join, list[Path]]]:
        """The join of each sublayer, by its name, with the paths of its vectors: its last bias, and
        those of its scheme.
        """
        columns, paths = self.packing.columns(), {name: self._vectors(name) for name in SUBLAYERS["encoder"]}
        firsts = tuple(columns[vectors[0]] for vectors in paths.values())
        return {
            name: (self.plain._replace(scan=ScanPlace(number, firsts, self.unroll)), vectors)
            for number, (name, vectors) in enumerate(paths.items())
        }

    def _vectors(self, name: str) -> list[Path]:
        last_bias = [path for path in self.packing.shapes if path[0] == name][-1:]
        return last_bias + [path for path in self.packing.shapes if path[0] == f"{name}_residual"]

    def parameters(self, packed_layers: Any, number: int) -> Any:
        """The parameters of one layer of an iteration, as its modules read them."""
        return unpack(self.packing, {"params": jax.tree.map(lambda leaf: leaf[number], packed_layers)})["params"]

    def product(self, name: str, shape: tuple[int, ...], seeds: Seeds, context: Any) -> Callable[[Any, Array], Array]:
        """A sublayer, without its last bias and the dropout behind it, as a function of its
        parameters and of what it reads [M,D].
        """

        def run(parameters: Any, read: Array) -> Array:
            arguments = (name, read.reshape(shape), seeds, context)
            branch: Branch = self.layer.apply({"params": {name: parameters}}, *arguments, method="branch")
            return branch.product.reshape(read.shape)

        return run

    def operands(self, vectors: Array, seeds: Seeds, iteration: Array, layer: int, first: Array) -> Operands:
        """The operands of the join behind a sublayer, whose second seed it takes."""
        seed = jnp.zeros(2, jnp.uint32) if seeds is None else seeds[1]
        return Operands(vectors, seed, iteration[None], np.full(1, layer, np.int32), first)

    def group_by_iteration(self, tree: Any) -> Any:
        """The tree with its axis of layers split in two: iterations, and layers in one."""
        return jax.tree.map(lambda leaf: leaf.reshape(-1, self.unroll, *leaf.shape[1:]), tree)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _apply_layers(layers: _Layers, params: Any, x: Float[Array, "B T D"], seeds: Seeds, context: Any) -> Float[Array, "B T D"]:
    return _run(layers, params, x, seeds, context, None)[0]


def _forward(layers: _Layers, params: Any, x: Array, seeds: Seeds, context: Any) -> tuple[Array, Any]:
    rows, start = x.shape[0] * x.shape[1], x.astype(layers.plain.copy_dtype).reshape(-1, x.shape[-1])
    slots = len(params["vectors"]) * len(layers.joins) + 1
    normed = jnp.zeros((slots * rows, x.shape[-1]), start.dtype).at[:rows].set(start)
    out, norms, saved = _run(layers, params, x, seeds, context, SavedNorm(normed, jnp.zeros(slots * rows)))
    return out, (params, seeds, context, norms, saved)


def _run(layers: _Layers, params: Any, x: Array, seeds: Seeds, context: Any, norms: SavedNorm | None) -> tuple[Array, Any, Any]:
    """The stream behind the last layer; and with stacks to keep it in, all that the backward pass
    reads.
    """
    shape, first = x.shape, first_row(x)

    def iteration(carry: Any, inputs: Any) -> tuple[Any, Any]:
        (number, stream, read, norms), (its_params, its_seeds) = carry, inputs
        saved = []
        for layer in range(layers.unroll):
            parameters = layers.parameters(its_params, layer)
            saved.append({})
            for place, (name, (join, _)) in enumerate(layers.joins.items()):
                sublayer_seeds = None if its_seeds is None else its_seeds[layer, place]
                product = record_saved(layers.product(name, shape, sublayer_seeds, context))
                out, _, saved[-1][name] = jax.vjp(product, parameters[name], read, has_aux=True)
                operands = layers.operands(params["vectors"], sublayer_seeds, number, layer, first)
                stream, read, new = forward(join, stream, out, operands, norms)
                norms = norms and new
        return (number + 1, stream, read, norms), jax.tree.map(lambda *parts: jnp.stack(parts), *saved) if norms else None

    start = x.reshape(-1, shape[-1])
    carry = (jnp.int32(0), start, start.astype(layers.plain.copy_dtype), norms)
    (_, stream, _, norms), saved = jax.lax.scan(iteration, carry, layers.group_by_iteration((params, seeds)))
    return stream.reshape(shape), norms, saved


def _backward(layers: _Layers, residuals: Any, d_out: Array) -> tuple[Any, Array, None, None]:
    params, seeds, context, norms, saved = residuals
    shape, first, d_stream = d_out.shape, first_row(d_out), d_out.reshape(-1, d_out.shape[-1])
    # The gradient of what a product read does not depend on it: all else is found saved.
    unread = jnp.full_like(d_stream, jnp.nan, layers.plain.copy_dtype)

    def iteration(carry: Any, inputs: Any) -> tuple[Any, Any]:
        (number, d_stream, d_read, sums), (its_params, its_seeds, its_saved) = carry, inputs
        gradients: list[dict[Any, Array]] = [{} for _ in range(layers.unroll)]
        products, reads = [], []
        for layer in reversed(range(layers.unroll)):
            parameters = layers.parameters(its_params, layer)
            for place, (name, (join, _)) in reversed([*enumerate(layers.joins.items())]):
                sublayer_seeds = None if its_seeds is None else its_seeds[layer, place]
                operands = layers.operands(params["vectors"], sublayer_seeds, number, layer, first)
                join_number = layer * len(layers.joins) + place
                d_stream, d_product, sums, made = backward(join, d_stream, d_read, None, norms, operands, sums, join_number)
                product = replay_saved(
                    layers.product(name, shape, sublayer_seeds, context), [part[layer] for part in its_saved[name]]
                )
                _, d_read = jax.vjp(product, parameters[name], unread)[1](d_product)
                products.append((layer, name, product, parameters[name], d_product))
                reads += made
        for (layer, name, product, its_parameters, d_product), read in zip(products, reads, strict=True):
            d_parameters, _ = jax.vjp(product, its_parameters, read)[1](d_product)
            gradients[layer] |= {(name, *path): leaf for path, leaf in flatten_dict(d_parameters).items()}
        # One sum for all joins.
        d_vectors = sums.reshape(layers.unroll, len(layers.joins), layers.plain.num_vectors, -1, shape[-1]).sum(3)
        for its_gradients, its_vectors in zip(gradients, d_vectors, strict=True):
            for (_, paths), rows in zip(layers.joins.values(), its_vectors, strict=True):
                its_gradients |= dict(zip(paths, rows, strict=True))
        stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *gradients)
        return (number - 1, d_stream, d_read, sums), pack(layers.packing, {"params": unflatten_dict(stacked)})["params"]

    sums = empty_sums(layers.plain, d_stream, layers.unroll * len(layers.joins))
    last = jnp.int32(len(params["vectors"]) // layers.unroll - 1)
    carry = (last, d_stream, jnp.zeros_like(d_stream, layers.plain.copy_dtype), sums)
    inputs_by_iteration = (*layers.group_by_iteration((params, seeds)), saved)
    (_, d_stream, d_read, _), d_params = jax.lax.scan(iteration, carry, inputs_by_iteration, reverse=True)
    d_params = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), d_params)
    return d_params, (d_stream + d_read.astype(d_stream.dtype)).reshape(shape), None, None


_apply_layers.defvjp(_forward, _backward)
