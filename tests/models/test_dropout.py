"""Dropout: the share that it drops, each element by itself, on any mesh; nothing where there is
nothing to do.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from mhsh.models.dropout import dropout, keep_mask, layer_seeds, row_states, seed_of, subkeys

KEY = jax.random.key(0)
SEED = seed_of(KEY)


def masks(rate: float, shape: tuple[int, ...], count: int) -> np.ndarray:
    """`count` masks of as many keys, 1 where an element is kept."""
    keys = jax.random.split(jax.random.key(7), count)
    return np.asarray(jax.jit(jax.vmap(lambda key: dropout(jnp.ones(shape), rate, seed_of(key))))(keys)) != 0


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.9])
def test_the_share_and_the_mean(rate):
    y = np.asarray(dropout(jnp.ones((1024, 511)), rate, SEED))
    deviation = math.sqrt(rate * (1 - rate) / y.size)
    assert abs((y == 0).mean() - rate) < 5 * deviation
    np.testing.assert_allclose(y[y != 0], 1 / (1 - rate), rtol=1e-6)
    assert abs(y.mean() - 1) < 5 * deviation / (1 - rate)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_the_shares_of_many_masks_scatter_as_those_of_coins(rate):
    """Too regular a hash would show as well as too clustered a one: in whole masks, in their rows,
    and in their columns.
    """
    kept = masks(rate, (256, 256), 256)
    scores = (kept - (1 - rate)) / math.sqrt(rate * (1 - rate))
    for axes in ((1, 2), (2,), (1,)):
        sums = scores.mean(axes) * math.sqrt(np.prod([kept.shape[axis] for axis in axes]))
        # The variance of n standard normals has the deviation sqrt(2 / n).
        assert abs(sums.var() - 1) < 5 * math.sqrt(2 / sums.size)
        assert abs(sums.mean()) < 5 / math.sqrt(sums.size)


@pytest.mark.parametrize("apart", [1, 3, 64])
def test_neighbours_rows_and_keys_know_nothing_of_each_other(apart):
    signs = masks(0.5, (200, 256), 136) * 2.0 - 1
    pairs = (
        (signs[:, :, apart:], signs[:, :, :-apart]),
        (signs[:, apart:], signs[:, :-apart]),
        (signs[apart:], signs[:-apart]),
        (signs[:, apart:, apart:], signs[:, :-apart, :-apart]),
    )
    for one, other in pairs:
        assert abs((one * other).mean()) < 5 / math.sqrt(one.size)


def test_every_bit_of_the_seed_and_of_the_place_changes_about_half_of_the_mask():
    rows, columns = jnp.arange(64, dtype=jnp.uint32)[:, None], jnp.arange(256, dtype=jnp.uint32)[None]

    def mask(seed: list[int], row_bit: int = 0, column_bit: int = 0) -> np.ndarray:
        states = row_states(jnp.asarray(seed, jnp.uint32), rows ^ jnp.uint32(row_bit))
        return np.asarray(keep_mask(states, columns ^ jnp.uint32(column_bit), 0.5))

    base = mask([12345, 67890])
    flipped = [mask([12345 ^ 1 << bit, 67890]) for bit in range(32)] + [mask([12345, 67890 ^ 1 << bit]) for bit in range(32)]
    # Places beyond the mask's own, as other places would be a permutation of the same.
    flipped += [mask([12345, 67890], row_bit=1 << bit) for bit in range(6, 32)]
    flipped += [mask([12345, 67890], column_bit=1 << bit) for bit in range(8, 32)]
    for other in flipped:
        assert abs((base != other).mean() - 0.5) < 5 * 0.5 / math.sqrt(base.size)


def test_a_part_of_the_array_drops_what_the_whole_drops_there():
    """So a device with a shard of the batch needs to know only where the shard lies."""
    whole = np.asarray(dropout(jnp.ones((6, 4, 10)), 0.4, SEED)).reshape(24, 10) != 0
    block = keep_mask(row_states(SEED, jnp.arange(7, 19, dtype=jnp.uint32)[:, None]), jnp.arange(3, 9, dtype=jnp.uint32)[None], 0.4)
    np.testing.assert_array_equal(block, whole[7:19, 3:9])


def test_every_mesh_drops_the_same():
    mesh = jax.make_mesh((2, 4), ("data", "tensor"))
    x = jnp.arange(1.0, 8 * 6 * 16 + 1).reshape(8, 6, 16)
    expected = dropout(x, 0.3, SEED)
    for spec in (PartitionSpec("data"), PartitionSpec("data", None, "tensor"), PartitionSpec(None, "data", "tensor")):
        sharding = NamedSharding(mesh, spec)
        dropped = jax.jit(lambda x: dropout(x, 0.3, SEED), in_shardings=sharding, out_shardings=sharding)
        np.testing.assert_array_equal(dropped(jax.device_put(x, sharding)), expected)


def test_nothing_to_do():
    x = jnp.ones((3, 4))
    assert dropout(x, 0.0, SEED) is x
    assert dropout(x, 0.5, None) is x
    assert subkeys(None, 3) == (None, None, None) and layer_seeds(None, (3,), 2) is None and seed_of(None) is None


def test_the_seeds_of_all_layers_are_those_of_each():
    seeds = layer_seeds(KEY, (2, 3), 2)
    for layer, layer_key in enumerate(jax.random.split(KEY, 6)):
        for sublayer, sublayer_key in enumerate(jax.random.split(layer_key, 2)):
            for mask, key in enumerate(jax.random.split(sublayer_key, 2)):
                np.testing.assert_array_equal(seeds[layer // 3, layer % 3, sublayer, mask], seed_of(key))
    np.testing.assert_array_equal(layer_seeds(KEY, (6,), 2), seeds.reshape(6, 2, 2, 2))


@pytest.mark.parametrize("shape", [(4, 15), (60,), (2, 3, 2, 5)])
def test_the_gradient_is_that_of_the_scaled_mask_and_nothing_is_kept_for_it(shape):
    x = jnp.linspace(-1, 1, 60).reshape(shape)
    assert dropout(x.astype(jnp.bfloat16), 0.25, SEED).dtype == "bfloat16"
    gradient = jax.grad(lambda x: (dropout(x, 0.25, SEED) * x).sum())(x)
    mask = np.asarray(dropout(jnp.ones_like(x), 0.25, SEED))
    np.testing.assert_allclose(gradient, 2 * mask * np.asarray(x), rtol=1e-6)
    _, backward = jax.vjp(lambda x: dropout(x, 0.25, SEED), x)
    assert sum(leaf.size for leaf in jax.tree.leaves(backward)) == 2  # the seed
