"""Checksums are the same on every mesh; they and the list of files show every damage."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from mhsh.errors import Unavailable, UserError
from mhsh.storage import outage
from mhsh.storage.run_folder import Counters
from mhsh.training.checkpoints import verify
from mhsh.training.checkpoints.verify import FILE_MANIFEST, checksum, checksums, find_damage, hex_digits, write_file_manifest
from tests.training.states import mesh_of


@pytest.mark.parametrize(
    "spec", [PartitionSpec(), PartitionSpec("data"), PartitionSpec(None, "fsdp"), PartitionSpec("data", "tensor")]
)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32])
def test_sharding_does_not_matter(spec, dtype):
    array = (jax.random.normal(jax.random.key(0), (8, 16, 3)) * 1000).astype(dtype)
    sharded = jax.device_put(array, NamedSharding(mesh_of(2, 2, 2), spec))
    assert hex_digits(checksums({"a": sharded})["a"]) == hex_digits(checksums({"a": array})["a"])


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
    sums = {hex_digits(checksum(each)) for each in (array, array[::-1], array.T, array.at[2].set(0.0), jnp.zeros((6, 6)))}
    assert len(sums) == 5


def test_a_nan_has_a_checksum_too():
    array = jnp.array([1.0, jnp.nan, jnp.inf])
    assert hex_digits(checksum(array)) == hex_digits(checksum(array + 0))


CONTENT = bytes(range(256)) * 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "params" / "d").mkdir(parents=True)
    (tmp_path / "params" / "d" / "values").write_bytes(CONTENT)
    (tmp_path / "params" / "empty").write_bytes(b"")
    (tmp_path / "record").write_text("written last")
    write_file_manifest(epath.Path(tmp_path), Counters(tokens=3))
    return tmp_path


def test_an_untouched_folder_is_whole(folder):
    assert find_damage(epath.Path(folder)) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")
def test_the_owner_of_a_file_needs_no_name(folder):
    """That of a container may have none."""
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, 2**31 - 2, 2**31 - 2)
    assert find_damage(epath.Path(folder)) is None


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("reads", ["_listed_files", "_size_and_digest"])
def test_a_read_that_fails_is_no_damage(folder, monkeypatch, code, reads):
    """It is read again; a disk that goes on failing ends the run, and sets nothing aside."""
    read, failures = getattr(verify, reads), [1]

    def failing(path):
        if failures[0]:
            failures[0] -= 1
            raise OSError(code, os.strerror(code), str(path))
        return read(path)

    monkeypatch.setattr(verify, reads, failing)
    assert find_damage(epath.Path(folder)) is None and not failures[0]
    monkeypatch.setattr(outage._outage, "patience", 0.2)
    failures[0] = 99
    with pytest.raises(Unavailable, match="run the same command again"):
        find_damage(epath.Path(folder))
    outage.note_answer()


@pytest.mark.parametrize("code", [errno.EACCES, errno.EMFILE])
@pytest.mark.parametrize("reads", ["_listed_files", "_size_and_digest"])
def test_a_file_that_this_process_may_not_open_is_no_damage(folder, monkeypatch, code, reads):
    def failing(path):
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(verify, reads, failing)
    with pytest.raises(UserError, match=f"cannot be read here .*{os.strerror(code)}.*, which is no damage"):
        find_damage(epath.Path(folder))


def test_files_that_are_not_listed_do_no_harm(folder):
    (folder / "record").write_text("changed")
    (folder / "params" / "more").write_text("new")
    assert find_damage(epath.Path(folder)) is None


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(content))


def rename_in_list(folder: Path, name: str) -> None:
    listed = json.loads((folder / FILE_MANIFEST).read_text())
    listed[name] = listed.pop("params/empty")
    (folder / FILE_MANIFEST).write_text(json.dumps(listed))


def put_in_place(folder: Path, make: Callable[[Path], None]) -> None:
    (folder / "params/empty").unlink()
    make(folder / "params/empty")


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a bit flipped": (lambda folder: flip(folder / "params/d/values", 77_777), "params/d/values is not what was saved"),
    "truncated": (lambda folder: (folder / "params/d/values").write_bytes(CONTENT[:-1]), "10239 bytes instead of 10240"),
    "longer": (lambda folder: (folder / "params/empty").write_bytes(b"x"), "params/empty has 1 bytes instead of 0"),
    "deleted": (lambda folder: (folder / "params/empty").unlink(), "params/empty is missing"),
    "no list": (lambda folder: (folder / FILE_MANIFEST).unlink(), "files.json, is missing or unreadable"),
    "half a list": (lambda folder: (folder / FILE_MANIFEST).write_text('{"params/d'), "files.json, is missing or unreadable"),
    "counters changed": (lambda folder: (folder / "counters.json").write_text("{}"), "counters.json has 2 bytes instead of"),
    "no names": (lambda folder: (folder / FILE_MANIFEST).write_text('{"a": 3}'), "files.json, is missing or unreadable"),
    "leads out": (lambda folder: rename_in_list(folder, "../../dev/zero"), "files.json, is missing or unreadable"),
    "from the root": (lambda folder: rename_in_list(folder, "/dev/zero"), "files.json, is missing or unreadable"),
    "a pipe": (lambda folder: put_in_place(folder, os.mkfifo), "params/empty, which files.json lists, is not a file of it"),
    "a link out": (
        lambda folder: put_in_place(folder, lambda path: path.symlink_to("/dev/zero")),
        "params/empty, which files.json lists, is not a file of it",
    ),
    "a list that is a pipe": (
        lambda folder: ((folder / FILE_MANIFEST).unlink(), os.mkfifo(folder / FILE_MANIFEST)),
        "files.json, is missing or unreadable",
    ),
    "a list nested deep": (lambda folder: (folder / FILE_MANIFEST).write_text("[" * 100_000), "files.json, is missing or"),
    "another list": (lambda folder: (folder / FILE_MANIFEST).write_text("[3]"), "files.json, is missing or unreadable"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named(folder, name):
    do, expected = DAMAGES[name]
    do(folder)
    found = find_damage(epath.Path(folder))
    assert found is not None and expected in found
