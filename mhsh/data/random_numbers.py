"""Random numbers and permutations without state, for whole arrays at once.

The numbers of an example depend on its key alone, not on the batch or the process that it is in.
A generator of numpy or grain would take some microseconds an example; here all examples of a batch
are computed together.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Int64, Integer, UInt64

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio
# More than Luby and Rackoff's four, as the halves are short.
_ROUNDS = 6


def keys(seed: int, *numbers: Integer[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """A key for every tuple (seed, first number, second number, ...); numbers from 0."""
    found = _mixed(np.full(len(numbers[0]), seed, np.uint64))
    for values in numbers:
        found = _mixed(found ^ (values.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return found


def random_bits(seeds: UInt64[np.ndarray, " B"], count: int) -> UInt64[np.ndarray, "B count"]:
    """`count` numbers of 64 random bits for every seed: the SplitMix64 generator.

    Source: Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014,
    figure 16 (with the constants of Stafford's variant 13).
    """
    steps = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    return _mixed(seeds[:, None] + steps)


def shuffled(indices: Int64[np.ndarray, " n"], size: int, seed: int) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """The numbers (0 to size - 1) at these indices of an endless stream of shuffled epochs, and
    their epochs.

    Every `size` indices, from 0, are one epoch. It holds each number once, in an order of its own.

    The order is a Feistel cipher. The numbers lie in a grid of a x b cells, a and b near the square
    root of `size`. In each round one coordinate is added, modulo its size, to a hash of the other
    one and a key. A result outside of the numbers is enciphered again. Source: Black and Rogaway,
    Ciphers with arbitrary finite domains, CT-RSA 2002, methods 2 and 3.
    """
    epochs, numbers = np.divmod(indices, size)
    num_left = math.isqrt(max(0, size - 1)) + 1
    num_right = -(-size // num_left)
    round_keys = random_bits(keys(seed, epochs), _ROUNDS)
    outside = np.arange(len(numbers))
    while len(outside):
        left, right = np.divmod(numbers[outside], num_right)
        for number in range(_ROUNDS):
            key = round_keys[outside, number]
            if number % 2:
                right = _added(right, left, key, num_right)
            else:
                left = _added(left, right, key, num_left)
        numbers[outside] = left * num_right + right
        outside = outside[numbers[outside] >= size]
    return numbers, epochs


def _added(
    half: Int64[np.ndarray, " n"], other: Int64[np.ndarray, " n"], key: UInt64[np.ndarray, " n"], modulus: int
) -> Int64[np.ndarray, " n"]:
    drawn = _mixed(key + other.astype(np.uint64) * _GOLDEN) % np.uint64(modulus)
    return (half + drawn.astype(np.int64)) % modulus


def _mixed(values: UInt64[np.ndarray, "*shape"]) -> UInt64[np.ndarray, "*shape"]:
    """A bijection in which every bit of the result depends on every bit of the value."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
