"""Checksums are the same on every mesh; they and the list of files show every damage."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from mhsh.run_folder import Counters
from mhsh.training.checkpoints.verify import FILE_MANIFEST, as_hex, checksum, checksums, find_damage, write_file_manifest
from tests.training.states import mesh_of


@pytest.mark.parametrize("spec", [PartitionSpec(None, "fsdp"), PartitionSpec("data", "tensor")])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32])
def test_sharding_does_not_matter(spec, dtype):
    array = (jax.random.normal(jax.random.key(0), (8, 16, 3)) * 1000).at[2, 3].set(jnp.nan).astype(dtype)
    sharded = jax.device_put(array, NamedSharding(mesh_of(2, 2, 2), spec))
    assert as_hex(checksums({"a": sharded})["a"]) == as_hex(checksums({"a": array})["a"])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_against_plain_integers(dtype):
    """The first sum, in Python's own integers."""
    array = np.random.default_rng(0).normal(size=(3, 5, 7)).astype(dtype)
    words = array.view(np.uint32).reshape(-1).tolist()
    plain = sum(word * (2 * 0x9E3779B1 * place + 0x9E3779B1) for place, word in enumerate(words)) % 2**32
    with jax.enable_x64(True):
        assert int(checksum(jnp.asarray(array))[0]) == plain


@settings(max_examples=200)
@given(place=st.integers(0, 119), bit=st.integers(0, 31))
def test_every_flipped_bit_is_found(place, bit):
    words = np.arange(120, dtype=np.uint32) * np.uint32(2654435761)
    flipped = words.copy()
    flipped[place] ^= np.uint32(1 << bit)
    one, other = (checksum(jnp.asarray(array.reshape(4, 30))) for array in (words, flipped))
    assert int(one[0]) != int(other[0])


def test_swapped_elements_and_zeros_are_found():
    array = jax.random.normal(jax.random.key(1), (6, 6))
    sums = {as_hex(checksum(other)) for other in (array, array[::-1], array.T, array.at[2].set(0.0), jnp.zeros((6, 6)))}
    assert len(sums) == 5


CONTENT = bytes(range(256)) * 40
FLIPPED = CONTENT[:9722] + bytes([CONTENT[9722] ^ 32]) + CONTENT[9723:]
UNREADABLE = "files.json, is missing or unreadable"
DAMAGES: dict[str, tuple[str, bytes | None, str]] = {  # file, its content (None: deleted), what is said
    "a bit flipped": ("params/d/values", FLIPPED, "params/d/values is not what was saved"),
    "truncated": ("params/d/values", CONTENT[:-1], "10239 bytes instead of 10240"),
    "longer": ("params/empty", b"x", "params/empty has 1 bytes instead of 0"),
    "deleted": ("params/empty", None, "params/empty is missing"),
    "counters changed": ("counters.json", b"{}", "counters.json has 2 bytes instead of"),
    "no list": (FILE_MANIFEST, None, UNREADABLE),
    "half a list": (FILE_MANIFEST, b'{"params/d', UNREADABLE),
    "no entries": (FILE_MANIFEST, b'{"a": 3}', UNREADABLE),
    "no object": (FILE_MANIFEST, b"[3]", UNREADABLE),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_to_a_listed_file_is_named(tmp_path, name):
    folder, (changed, content, said) = epath.Path(tmp_path), DAMAGES[name]
    (tmp_path / "params" / "d").mkdir(parents=True)
    (tmp_path / "params" / "d" / "values").write_bytes(CONTENT)
    (tmp_path / "params" / "empty").write_bytes(b"")
    write_file_manifest(folder, Counters(tokens=3))
    (tmp_path / "params" / "more").write_text("not listed")
    assert find_damage(folder) is None
    if content is None:
        (tmp_path / changed).unlink()
    else:
        (tmp_path / changed).write_bytes(content)
    assert said in (find_damage(folder) or "")
