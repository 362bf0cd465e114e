"""Seeds, held-out texts, random numbers and permutations, all without state.

Whatever is drawn depends on data.seed and on what it is drawn for, not on the batch, the process or
the order of the work. A generator of numpy or grain would take some microseconds an example; here
the numbers of a whole batch are computed together.
"""

from __future__ import annotations

import functools
import hashlib
import math

import numpy as np
from jaxtyping import Int64, Integer, UInt64

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio
# More than Luby and Rackoff's four, as the halves are short.
_ROUNDS = 6

# What a seed is for; see `derived_seed`.
DOCUMENT_SPLIT = 1
TRAIN_PAIRS = 2
VALIDATION_PAIRS = 3
EXAMPLE_ORDER = 4
MASKING = 5
VALIDATION_MASKING = 6
PAIR_SPLIT = 7
NUMBERS = 9
ARTICLE_SPLIT = 10
SYNTHETIC_DOCUMENTS = 11


def derived_seed(seed: int, purpose: int) -> int:
    """A 32-bit seed for one purpose, unrelated to those of other purposes and other seeds."""
    return int(np.random.SeedSequence((seed, purpose)).generate_state(1, np.uint32)[0])


@functools.cache
def hash_key(seed: int, purpose: int) -> bytes:
    """The key of a hash that decides what is held out."""
    return derived_seed(seed, purpose).to_bytes(4, "little")


def is_held_out(text: str, fraction: float, seed: int, purpose: int) -> bool:
    """Whether a text belongs to validation, by a hash of the text and of (seed, purpose).

    About `fraction` of all texts do. The side of a text does not depend on other texts, equal texts
    stay together, and a corpus can be split while it is read.
    """
    digest = hashlib.blake2b(text.encode("utf-8"), key=hash_key(seed, purpose), digest_size=8).digest()
    return int.from_bytes(digest, "little") < fraction * 2**64


def keys(seed: int, *numbers: Integer[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """A key for every tuple (seed, first number, second number, ...); numbers from 0."""
    mixed = _mix_bits(np.full(len(numbers[0]), seed, np.uint64))
    for values in numbers:
        mixed = _mix_bits(mixed ^ (values.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return mixed


def random_bits(seeds: UInt64[np.ndarray, " B"], count: int) -> UInt64[np.ndarray, "B count"]:
    """`count` numbers of 64 random bits for every seed: the SplitMix64 generator.

    Source: Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014,
    figure 16 (with the constants of Stafford's variant 13).
    """
    steps = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    return _mix_bits(seeds[:, None] + steps)


def shuffled_numbers(
    indices: Int64[np.ndarray, " n"], size: int, seed: int
) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
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
                right = _add_hash(right, left, key, num_right)
            else:
                left = _add_hash(left, right, key, num_left)
        numbers[outside] = left * num_right + right
        outside = outside[numbers[outside] >= size]
    return numbers, epochs


def _add_hash(
    half: Int64[np.ndarray, " n"], other: Int64[np.ndarray, " n"], key: UInt64[np.ndarray, " n"], modulus: int
) -> Int64[np.ndarray, " n"]:
    drawn = _mix_bits(key + other.astype(np.uint64) * _GOLDEN) % np.uint64(modulus)
    return (half + drawn.astype(np.int64)) % modulus


def _mix_bits(values: UInt64[np.ndarray, "*shape"]) -> UInt64[np.ndarray, "*shape"]:
    """A bijection in which every bit of the result depends on every bit of the value."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
