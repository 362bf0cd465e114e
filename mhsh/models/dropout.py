"""Dropout whose mask is a hash of a key and an element's position: no mask is drawn, stored or
communicated.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, UInt32

from mhsh.models.devices import shard_index

Seed = UInt32[Array, "2"]
DropoutKey = Key[Array, ""] | None  # None: nothing is dropped


def dropout(x: Float[Array, "*rows C"], rate: float, key: DropoutKey) -> Float[Array, "*rows C"]:
    """`x` with each element divided by 1 - `rate` with that probability, or 0 (Srivastava et al.
    2014). A key of None drops nothing.

    The mask depends on the key and on the element's position in the whole array, of which a device
    may have a shard along the first axis. So it is the same on every mesh. The backward pass
    recomputes it.
    """
    if key is None or rate == 0.0:
        return x
    return _dropped(x, _seed_of(key), rate)


def subkeys(key: DropoutKey, count: int) -> tuple[DropoutKey, ...]:
    """`count` keys from one, or as many times None."""
    return (None,) * count if key is None else tuple(jax.random.split(key, count))


def layer_keys(key: DropoutKey, lengths: tuple[int, ...]) -> Key[Array, " ..."] | None:
    """A key for each layer, stacked in the shape `lengths`, or None. Grouping changes no key."""
    return None if key is None else jax.random.split(key, math.prod(lengths)).reshape(lengths)


def row_states(seed: Seed, rows: UInt32[Array, "*rows"]) -> tuple[UInt32[Array, "*rows"], UInt32[Array, "*rows"]]:
    """64 bits for each row, from the rows' numbers; `keep` mixes them with the columns."""
    return _mixed(_mixed(rows + seed[0]) ^ seed[1]), _mixed(_mixed(rows ^ seed[1]) + seed[0])


def keep(states: tuple[Array, Array], columns: UInt32[Array, "*#axes"], rate: float) -> Array:
    """Which elements are kept, from the states of their rows and the numbers of their columns,
    broadcast against each other.

    A multiply-and-shift hash with 32 bits of state (the constants of Chris Wellons's "lowbias32").
    The row's second word is added half-way, so that rows are not shifted copies of each other.
    XLA fuses this uint32 arithmetic into the loop that uses the mask.
    """
    first, second = states
    return _mixed(first + columns * jnp.uint32(0x9E3779B9), second) >= jnp.uint32(_threshold(rate))


def _seed_of(key: Key[Array, ""]) -> Seed:
    """The 64 random bits of a mask."""
    return jax.random.bits(key, (2,), jnp.uint32)


def _threshold(rate: float) -> int:
    """Words below it are dropped: the rate in units of 2^-32."""
    return min(round(rate * 2**32), 2**32 - 1)


def _mixed(word: Array, added: Array | int = 0) -> Array:
    """The hash; `added` is added half-way."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x7FEB352D)
    word = ((word ^ (word >> 15)) + added) * jnp.uint32(0x846CA68B)
    return word ^ (word >> 16)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _dropped(x: Float[Array, "*rows C"], seed: Seed, rate: float) -> Float[Array, "*rows C"]:
    *lead, num_columns = x.shape
    rows = jnp.broadcast_to(shard_index() * jnp.uint32(math.prod(lead)), (*lead, 1))
    for axis in range(len(lead)):
        stride = math.prod(lead[axis + 1 :])
        rows = rows + jax.lax.broadcasted_iota(jnp.uint32, rows.shape, axis) * jnp.uint32(stride)
    columns = jax.lax.broadcasted_iota(jnp.uint32, (*(1 for _ in lead), num_columns), len(lead))
    # In fp32: bf16 has 1 / 0.9 only to 0.2 %.
    scaled = (x.astype(jnp.float32) * (2**32 / (2**32 - _threshold(rate)))).astype(x.dtype)
    return jnp.where(keep(row_states(seed, rows), columns, rate), scaled, jnp.zeros((), x.dtype))


def _forward(x: Float[Array, "*rows C"], seed: Seed, rate: float) -> tuple[Array, Seed]:
    return _dropped(x, seed, rate), seed


def _backward(rate: float, seed: Seed, gradient: Float[Array, "*rows C"]) -> tuple[Array, None]:
    return _dropped(gradient, seed, rate), None


_dropped.defvjp(_forward, _backward)
