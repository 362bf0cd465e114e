"""Shards are compared with the SHA-256 of their index before a run reads them, and once only."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from mhsh.data import local_shards
from mhsh.data.local_shards import verify_once
from mhsh.data.shards import UNCOMPRESSED, Shard, read_index, shards_of, write_index, write_shard
from mhsh.errors import UserError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two shards; and a cache of this test alone."""
    monkeypatch.setenv("MHSH_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "rows"
    out.mkdir()
    shards = [
        write_shard(out, number, [{"a": np.arange(number, number + 90).reshape(9, 10)}], UNCOMPRESSED, "job", {})
        for number in range(2)
    ]
    write_index(out, shards, {})
    return out


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the shards that were read, in order."""
    names: list[str] = []
    check = local_shards.check_sha256

    def noting(folder: Path, shard: Shard) -> None:
        names.append(shard.name)
        check(folder, shard)

    monkeypatch.setattr(local_shards, "check_sha256", noting)
    return names


def flip(path: Path) -> None:
    """Another byte in the middle, in the same file and at the same time."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_ino, path.stat().st_size, path.stat().st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)


def verify(folder: Path) -> None:
    verify_once(folder, shards_of(read_index(folder)))


def test_a_shard_is_read_once_until_it_changes(folder, read):
    verify(folder)
    verify(folder)
    assert sorted(read) == ["00000.arrayrecord", "00001.arrayrecord"]
    os.utime(folder / "00001.arrayrecord")
    verify(folder)
    assert sorted(read) == ["00000.arrayrecord", "00001.arrayrecord", "00001.arrayrecord"]


@pytest.mark.parametrize("known", [False, True])
def test_a_flipped_byte_is_named_every_time(folder, known):
    if known:
        verify(folder)
    flip(folder / "00001.arrayrecord")
    for _ in range(2):
        with pytest.raises(UserError, match=f"^{folder / '00001.arrayrecord'} is damaged: its SHA-256 is not that of the index; "):
            verify(folder)
    flip(folder / "00001.arrayrecord")
    verify(folder)


def test_without_a_cache_all_is_read_every_time(folder, read, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MHSH_CACHE", str(tmp_path / "file"))
    verify(folder)
    verify(folder)
    assert len(read) == 4
    assert "(Not a directory): every start reads all of" in capsys.readouterr().out
