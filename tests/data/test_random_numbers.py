"""Numbers that hang on their key alone, and permutations that are permutations."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mhsh.data.random_numbers import keys, random_bits, shuffled_numbers


def splitmix64(seed: int, count: int) -> list[int]:
    """The generator of Steele, Lea and Flood in plain integers."""
    found, mask = [], 2**64 - 1
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) & mask
        value = ((seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9) & mask
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
        found.append(value ^ (value >> 31))
    return found


def test_bits_are_those_of_splitmix64() -> None:
    # The first numbers of seed 1234567 as they stand in many implementations' tests.
    assert splitmix64(1234567, 3) == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    seeds = [0, 1, 1234567, 2**63, 2**64 - 1]
    found = random_bits(np.array(seeds, np.uint64), 5)
    assert found.tolist() == [splitmix64(seed, 5) for seed in seeds]


def test_keys_differ() -> None:
    seeds, rows, epochs = range(3), range(50), range(4)
    found = {
        int(key)
        for seed in seeds
        for key in keys(seed, *(np.array(each) for each in zip(*itertools.product(rows, epochs), strict=True)))
    }
    assert len(found) == len(seeds) * len(rows) * len(epochs)
    # The order of the numbers matters, and so does how many there are.
    one, two = np.array([1]), np.array([2])
    assert len({int(keys(0, *numbers)[0]) for numbers in ((one, two), (two, one), (one,), (two,))}) == 4


@pytest.mark.parametrize("shift", [0, 32])
def test_either_half_of_the_bits_is_uniform(shift: int) -> None:
    numbers = np.arange(4000)
    found = (random_bits(keys(3, numbers), 25) >> np.uint64(shift) & np.uint64(2**32 - 1)) / 2**32
    counts = np.histogram(found, 50, (0, 1))[0]
    expected = found.size / 50
    # A chi-square of 49 degrees of freedom: mean 49, standard deviation 10; five of them.
    assert ((counts - expected) ** 2 / expected).sum() < 99
    # Neither neighbours in a stream nor streams of neighbouring rows go together.
    for a, b in ((found[:, 1:], found[:, :-1]), (found[1:], found[:-1])):
        assert abs(np.corrcoef(a.reshape(-1), b.reshape(-1))[0, 1]) < 5 / np.sqrt(a.size)


@hypothesis_settings(deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**32 - 1), st.integers(0, 2**40))
def test_every_epoch_is_a_permutation(size: int, seed: int, epoch: int) -> None:
    numbers, epochs = shuffled_numbers(np.arange(epoch * size, (epoch + 1) * size), size, seed)
    assert sorted(numbers.tolist()) == list(range(size))
    assert (epochs == epoch).all()


@given(st.integers(1, 10**9), st.integers(0, 2**32 - 1), st.lists(st.integers(0, 10**12), min_size=1, max_size=9))
def test_positions_are_shuffled_one_by_one(size: int, seed: int, positions: list[int]) -> None:
    together = shuffled_numbers(np.array(positions), size, seed)
    alone = [shuffled_numbers(np.array([position]), size, seed) for position in positions]
    assert together[0].tolist() == [int(numbers[0]) for numbers, _ in alone]
    assert all(0 <= number < size for number in together[0])
    assert together[1].tolist() == [position // size for position in positions]


def test_every_order_is_alike_likely() -> None:
    repetitions = 200
    found = np.concatenate([shuffled_numbers(np.arange(4 * repetitions), 4, seed)[0].reshape(-1, 4) for seed in range(24)])
    orders = Counter(map(tuple, found.tolist()))
    assert len(orders) == 24
    # A chi-square of 23 degrees of freedom: mean 23, standard deviation 6.8; five of them.
    assert sum((count - repetitions) ** 2 / repetitions for count in orders.values()) < 57


@pytest.mark.parametrize("size", [100, 1009, 4096])
def test_places_do_not_tell_numbers(size: int) -> None:
    numbers = np.array([shuffled_numbers(np.arange(epoch * size, (epoch + 1) * size), size, 7)[0] for epoch in range(30)], float)
    assert abs(np.corrcoef(np.tile(np.arange(size), 30), numbers.reshape(-1))[0, 1]) < 5 / np.sqrt(numbers.size)
    steps = np.diff(numbers, axis=1)
    # Neighbours in an order are no nearer to each other than any two numbers: a third of the range
    # apart in the mean.
    assert abs(np.abs(steps).mean() / size - 1 / 3) < 0.02
    # Nor do the orders of two epochs go together.
    for a, b in itertools.pairwise(numbers):
        assert abs(np.corrcoef(a, b)[0, 1]) < 6 / np.sqrt(size)
