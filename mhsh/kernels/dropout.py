"""Dropout whose mask is a hash of a key and an element's place: nothing is drawn, stored or sent,
in plain code and in kernels.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, UInt32

Seed = UInt32[Array, "2"]
DropoutKey = Key[Array, ""] | None  # None: nothing is dropped


def dropout(x: Float[Array, "*rows C"], rate: float, key: DropoutKey) -> Float[Array, "*rows C"]:
    """`x` with each element kept with probability 1 - `rate` and then divided by it (Srivastava et
    al. 2014), or 0.

    Without a key nothing is dropped. The mask depends on the key and on the element's place in the
    whole array: it is the same on every mesh. The backward pass makes it again, so that no mask is
    kept between the two.
    """
    if key is None or rate == 0.0:
        return x
    return _dropped(x, seed_of(key), rate)


def subkeys(key: DropoutKey, count: int) -> tuple[DropoutKey, ...]:
    """`count` keys made of one, or as many times none."""
    return (None,) * count if key is None else tuple(jax.random.split(key, count))


def layer_keys(key: DropoutKey, lengths: tuple[int, ...]) -> Key[Array, " ..."] | None:
    """A key a layer, stacked on as many axes as there are lengths, the same however the layers are
    grouped; or none.
    """
    return None if key is None else jax.random.split(key, math.prod(lengths)).reshape(lengths)


def seed_of(key: Key[Array, ""]) -> Seed:
    """The 64 random bits by which masks are told apart."""
    return jax.random.bits(key, (2,), jnp.uint32)


def threshold(rate: float) -> int:
    """Words below it are dropped: the rate in units of 2^-32."""
    return min(round(rate * 2**32), 2**32 - 1)


def row_states(
    seed: Seed | tuple[Array, Array], rows: UInt32[Array, "*rows"]
) -> tuple[UInt32[Array, "*rows"], UInt32[Array, "*rows"]]:
    """64 bits for each row of an array, `rows` being the rows' numbers: what `keep` mixes with an
    element's column.
    """
    return _mixed(_mixed(rows + seed[0]) ^ seed[1]), _mixed(_mixed(rows ^ seed[1]) + seed[0])


def keep(states: tuple[Array, Array], columns: UInt32[Array, "*#axes"], rate: float) -> Array:
    """Whether elements survive, by the states of their rows and the numbers of their columns, which
    broadcast against each other.

    One multiply-and-shift hash with 32 bits of state, as good as hashes of two multiplications get
    (the constants are those of Chris Wellons's "lowbias32"), the row's second word added half-way,
    so that rows are no shifted copies of each other. Plain uint32 arithmetic: it runs inside any
    kernel, and XLA computes it in the loop that uses the mask.
    """
    first, second = states
    return _mixed(first + columns * jnp.uint32(0x9E3779B9), second) >= jnp.uint32(threshold(rate))


def _mixed(word: Array, added: Array | int = 0) -> Array:
    """The hash; `added` goes in half-way."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x7FEB352D)
    word = ((word ^ (word >> 15)) + added) * jnp.uint32(0x846CA68B)
    return word ^ (word >> 16)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _dropped(x: Float[Array, "*rows C"], seed: Seed, rate: float) -> Float[Array, "*rows C"]:
    *lead, num_columns = x.shape
    rows = jnp.zeros((*lead, 1), jnp.uint32)
    for axis in range(len(lead)):
        stride = math.prod(lead[axis + 1 :])
        rows = rows + jax.lax.broadcasted_iota(jnp.uint32, rows.shape, axis) * jnp.uint32(stride)
    columns = jax.lax.broadcasted_iota(jnp.uint32, (*(1 for _ in lead), num_columns), len(lead))
    # In fp32: bf16 has no 1 / 0.9 nearer than 0.2 %.
    scaled = (x.astype(jnp.float32) * (2**32 / (2**32 - threshold(rate)))).astype(x.dtype)
    return jnp.where(keep(row_states(seed, rows), columns, rate), scaled, jnp.zeros((), x.dtype))


def _forward(x: Float[Array, "*rows C"], seed: Seed, rate: float) -> tuple[Array, Seed]:
    return _dropped(x, seed, rate), seed


def _backward(rate: float, seed: Seed, gradient: Float[Array, "*rows C"]) -> tuple[Array, None]:
    return _dropped(gradient, seed, rate), None


_dropped.defvjp(_forward, _backward)
