"""Dropout whose mask is a hash of a key and an element's position: no mask is drawn, stored or
communicated.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, UInt32

from mhsh.models.devices import shard_index

# None as a key or a seed: nothing is dropped.
DropoutKey = Key[Array, ""] | None
Seed = UInt32[Array, "2"] | None  # the 64 random bits of a mask
Seeds = UInt32[Array, "... 2"] | None


def dropout(x: Float[Array, "*rows C"], rate: float, seed: Seed) -> Float[Array, "*rows C"]:
    """`x` with each element divided by 1 - `rate` with that probability, or 0 (Srivastava et al.
    2014).

    The mask depends on the seed and on the element's position in the whole array, of which a device
    may have a shard along the first axis. So it is the same on every mesh. The backward pass
    recomputes it.
    """
    return x if seed is None or rate == 0.0 else _drop_by_hash(x, seed, rate)


def subkeys(key: DropoutKey, count: int) -> tuple[DropoutKey, ...]:
    """`count` keys from one, or as many times None."""
    return (None,) * count if key is None else tuple(jax.random.split(key, count))


def seed_of(key: DropoutKey) -> Seed:
    """The seed of one mask."""
    return None if key is None else jax.random.bits(key, (2,), jnp.uint32)


def layer_seeds(key: DropoutKey, lengths: tuple[int, ...], num_sublayers: int) -> Seeds:
    """Two seeds for each sublayer of each layer, [*lengths, sublayers, 2, 2], however grouped.

    They are drawn for all layers at once: in a layer, each draw would be kernels of its own.
    """
    if key is None:
        return None
    split = jax.vmap(jax.random.split, in_axes=(0, None))
    keys = split(split(jax.random.split(key, math.prod(lengths)), num_sublayers).reshape(-1), 2)
    seeds = jax.vmap(functools.partial(jax.random.bits, shape=(2,), dtype=jnp.uint32))(keys.reshape(-1))
    return seeds.reshape(*lengths, num_sublayers, 2, 2)


def split_seeds(seeds: Seeds, count: int) -> tuple[Seeds, ...]:
    """The seeds along the first axis, or as many times None."""
    return (None,) * count if seeds is None else tuple(seeds)


def row_states(
    seed: UInt32[Array, 2] | tuple[Array, Array], rows: UInt32[Array, "*rows"]
) -> tuple[UInt32[Array, "*rows"], UInt32[Array, "*rows"]]:
    """64 bits for each row, from the rows' numbers; `keep_mask` mixes them with the columns."""
    return _mix(_mix(rows + seed[0]) ^ seed[1]), _mix(_mix(rows ^ seed[1]) + seed[0])


def keep_mask(states: tuple[Array, Array], columns: UInt32[Array, "*#axes"], rate: float) -> Array:
    """The elements that are kept, from the states of their rows and the numbers of their columns,
    broadcast against each other.

    A multiply-and-shift hash with 32 bits of state (the constants of Chris Wellons's "lowbias32").
    The row's second word is added half-way, so that rows are not shifted copies of each other.
    XLA fuses this uint32 arithmetic into the loop that uses the mask.
    """
    first, second = states
    return _mix(first + columns * jnp.uint32(0x9E3779B9), second) >= jnp.uint32(_threshold(rate))


def kept_scale(rate: float) -> float:
    """The factor on kept elements that preserves the mean."""
    return 2**32 / (2**32 - _threshold(rate))


def drop(x: Float[Array, "*axes"], mask: Bool[Array, "*axes"], rate: float) -> Float[Array, "*axes"]:
    """`x` divided by 1 - `rate` where the mask is True, else 0."""
    # In fp32: bf16 has 1 / 0.9 only to 0.2 %.
    scaled = (x.astype(jnp.float32) * kept_scale(rate)).astype(x.dtype)
    return jnp.where(mask, scaled, jnp.zeros((), x.dtype))


def _threshold(rate: float) -> int:
    """Words below it are dropped: the rate in units of 2^-32."""
    return min(round(rate * 2**32), 2**32 - 1)


def _mix(word: Array, added: Array | int = 0) -> Array:
    """The hash; `added` is added half-way."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x7FEB352D)
    word = ((word ^ (word >> 15)) + added) * jnp.uint32(0x846CA68B)
    return word ^ (word >> 16)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _drop_by_hash(x: Float[Array, "*rows C"], seed: Array, rate: float) -> Float[Array, "*rows C"]:
    *lead, num_columns = x.shape
    rows = jnp.broadcast_to(shard_index() * jnp.uint32(math.prod(lead)), (*lead, 1))
    for axis in range(len(lead)):
        stride = math.prod(lead[axis + 1 :])
        rows = rows + jax.lax.broadcasted_iota(jnp.uint32, rows.shape, axis) * jnp.uint32(stride)
    columns = jax.lax.broadcasted_iota(jnp.uint32, (*(1 for _ in lead), num_columns), len(lead))
    return drop(x, keep_mask(row_states(seed, rows), columns, rate), rate)


def _forward(x: Float[Array, "*rows C"], seed: Array, rate: float) -> tuple[Array, Array]:
    return _drop_by_hash(x, seed, rate), seed


def _backward(rate: float, seed: Array, gradient: Float[Array, "*rows C"]) -> tuple[Array, None]:
    return _drop_by_hash(gradient, seed, rate), None


_drop_by_hash.defvjp(_forward, _backward)
