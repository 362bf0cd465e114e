"""Checksums: the same on every mesh, and different for every damage."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from mhsh.training.checkpoints.checksum import as_hex, checksum, checksums
from tests.training.states import mesh_of


@pytest.mark.parametrize(
    "spec", [PartitionSpec(), PartitionSpec("data"), PartitionSpec(None, "fsdp"), PartitionSpec("data", "tensor")]
)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32])
def test_sharding_does_not_matter(spec, dtype):
    array = (jax.random.normal(jax.random.key(0), (8, 16, 3)) * 1000).astype(dtype)
    sharded = jax.device_put(array, NamedSharding(mesh_of(2, 2, 2), spec))
    assert as_hex(checksums({"a": sharded})["a"]) == as_hex(checksums({"a": array})["a"])


def plain(array: np.ndarray) -> int:
    """The first sum, in Python's own integers."""
    words = array.view(np.uint32).reshape(-1).tolist()
    return sum(word * (2 * 0x9E3779B1 * place + 0x9E3779B1) for place, word in enumerate(words)) % 2**32


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_against_plain_integers(dtype):
    array = np.random.default_rng(0).normal(size=(3, 5, 7)).astype(dtype)
    with jax.enable_x64(True):
        assert int(checksum(jnp.asarray(array))[0]) == plain(array)


@settings(max_examples=200)
@given(place=st.integers(0, 119), bit=st.integers(0, 31))
def test_every_flipped_bit_is_found(place, bit):
    words = np.arange(120, dtype=np.uint32) * np.uint32(2654435761)
    flipped = words.copy()
    flipped[place] ^= np.uint32(1 << bit)
    one, other = (checksum(jnp.asarray(each.reshape(4, 30))) for each in (words, flipped))
    assert int(one[0]) != int(other[0])


def test_swapped_elements_and_zeros_are_found():
    array = jax.random.normal(jax.random.key(1), (6, 6))
    sums = {as_hex(checksum(each)) for each in (array, array[::-1], array.T, array.at[2].set(0.0), jnp.zeros((6, 6)))}
    assert len(sums) == 5


def test_a_nan_has_a_checksum_too():
    array = jnp.array([1.0, jnp.nan, jnp.inf])
    assert as_hex(checksum(array)) == as_hex(checksum(array + 0))
