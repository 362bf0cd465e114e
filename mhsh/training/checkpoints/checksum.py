"""Checksums of arrays, computed on their devices. They do not depend on the sharding."""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, UInt32

# Odd multipliers, as in multiplicative hashing (Knuth, TAOCP 3, section 6.4). Multiplying by an odd
# number is a bijection modulo 2^32, so one changed word always changes the first sum.
_SPREAD = (0x9E3779B1, 0x85EBCA77)
_WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}


def words(array: Array) -> Array:
    """The bits of each element, as an unsigned number of its size; of eight bytes (where
    jax_enable_x64 is set) as two, on a new last axis.
    """
    if array.dtype == jnp.bool_:
        return array.astype(jnp.uint8)
    return jax.lax.bitcast_convert_type(array, _WORDS[array.dtype.itemsize])


def checksum(array: Array, first_row: UInt32[Array, ""] | int = 0) -> UInt32[Array, 2]:
    """Two 32-bit sums over the bits of all elements, weighted by position in the global array, of
    which `array` are the rows from `first_row` on. The checksums of shards add up to the whole's.

    Integer sums modulo 2^32 do not depend on the order of addition, so every sharding gives the
    same. They detect any change of a single element, and miss other changes with a probability of
    about 2^-64. They do not protect against deliberate changes.
    """
    bits = words(array).astype(jnp.uint32)
    first = jnp.asarray(first_row, jnp.uint32) * jnp.uint32(math.prod(bits.shape[1:]) % 2**32)
    place = jnp.broadcast_to(first, bits.shape)
    stride = 1
    for axis in reversed(range(bits.ndim)):
        place = place + jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis) * jnp.uint32(stride % 2**32)
        stride *= bits.shape[axis]
    weights = [place * jnp.uint32(2 * spread % 2**32) + jnp.uint32(spread) for spread in _SPREAD]
    mixed = (bits, bits ^ (bits >> 15) * jnp.uint32(_SPREAD[1]))
    return jnp.stack([jnp.sum(word * weight, dtype=jnp.uint32) for word, weight in zip(mixed, weights, strict=True)])


@jax.jit
def checksums(arrays: Mapping[str, Array]) -> dict[str, UInt32[Array, 2]]:
    """The checksum of every array of a flat dictionary."""
    return {name: checksum(array) for name, array in arrays.items()}


def as_hex(sums: UInt32[Array, 2]) -> str:
    """Sixteen hexadecimal digits."""
    return "".join(f"{int(part):08x}" for part in sums)
