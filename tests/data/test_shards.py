"""Rows of any arrays go through shards unchanged, equal rows give equal bytes, and a damaged shard
is named: at opening, by the SHA-256 of the index (compared once a machine), or by the row it hits.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from etils import epath
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mhsh.data import local_shards
from mhsh.data.local_shards import open_table, verify
from mhsh.data.shards import (
    LARGEST,
    UNCOMPRESSED,
    ZSTD,
    StoredTable,
    _write_records,
    digest_of,
    finished_shard,
    read_index,
    shard_name,
    shards_of,
    write_index,
    write_shard,
)
from mhsh.errors import UserError
from tests.data.conftest import printed
from tests.data.preparing import tree

RNG = np.random.default_rng(3)


def rows_of(count: int, length: int = 16) -> dict[str, np.ndarray]:
    """Rows as a pre-training task would have them: tokens, positions and a number a row."""
    return {
        "inputs": RNG.integers(0, 30_000, (count, length)).astype(np.uint16),
        "inputs_position": np.tile(np.arange(length, dtype=np.int16), (count, 1)),
        "next_sentence": RNG.integers(0, 2, count).astype(np.int32),
    }


def written(folder: Path, shards: list[dict[str, np.ndarray]], compression: str = ZSTD, **meta: object) -> str:
    folder.mkdir()
    return write_index(folder, [write_shard(folder, k, rows, compression, "job", {}) for k, rows in enumerate(shards)], meta)


def example(table: StoredTable, number: int) -> dict[str, np.ndarray]:
    return {name: values[0] for name, values in table.take(np.array([number])).items()}


def flip(path: Path) -> None:
    """Another byte in the middle, in the same file and at the same time."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_ino, path.stat().st_size, path.stat().st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)


DTYPES = st.sampled_from([np.bool_, np.int8, np.uint16, np.int32, np.int64, np.float32, np.dtype(">i2"), np.dtype(">f8")])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), compression=st.sampled_from([ZSTD, UNCOMPRESSED]))
def test_any_arrays_come_back_as_they_were(tmp_path_factory, data, compression):
    counts = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(any))
    dtypes = data.draw(st.lists(DTYPES, min_size=1, max_size=3))
    shapes = [data.draw(hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3)) for _ in dtypes]
    groups = [{f"k{i}": data.draw(hnp.arrays(dtype, (count, *shapes[i]))) for i, dtype in enumerate(dtypes)} for count in counts]
    folder = tmp_path_factory.mktemp("rows") / "rows"
    written(folder, groups, compression)
    stored = StoredTable(folder)
    expected = [
        {name: values[i].astype(values.dtype.newbyteorder("<")) for name, values in rows.items()}
        for rows in groups
        for i in range(len(rows["k0"]))
    ]
    assert len(stored) == len(expected)
    for index, row in enumerate(expected):
        read = example(stored, index)
        assert [(read[name].tobytes(), read[name].shape) for name in row] == [
            (row[name].tobytes(), row[name].shape) for name in row
        ]


@pytest.mark.parametrize("compression", [ZSTD, UNCOMPRESSED])
def test_equal_rows_give_equal_bytes_and_another_row_another_fingerprint(tmp_path, compression):
    rows = rows_of(1000, 64)
    fingerprints = {written(tmp_path / name, [rows, rows], compression, split="train") for name in "ab"}
    assert len(fingerprints) == 1 and tree(tmp_path / "a") == tree(tmp_path / "b")
    assert sorted(tree(tmp_path / "a")) == ["00000.arrayrecord", "00001.arrayrecord", "index.json"]
    # Written at once with others, as alone: the writer's threads and their timing leave no trace.
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: write_shard(tmp_path, number, rows, compression, "job", {}), range(8)))
    assert {(tmp_path / shard_name(number)).read_bytes() for number in range(8)} == {tree(tmp_path / "a")["00000.arrayrecord"]}
    other = rows | {"inputs": rows["inputs"] ^ (np.arange(1000)[:, None] == 17)}
    assert written(tmp_path / "c", [rows, other], compression, split="train") not in fingerprints
    assert written(tmp_path / "d", [rows, rows], compression, split="validation") not in fingerprints


def test_a_finished_shard_is_kept_only_whole_and_of_the_same_job(tmp_path):
    shard = write_shard(tmp_path, 4, rows_of(20), ZSTD, "job 1", {"tokens": 7})
    assert finished_shard(tmp_path, 4, "job 1") == (shard, {"tokens": 7})
    assert finished_shard(tmp_path, 4, "job 2") is None
    assert finished_shard(tmp_path, 5, "job 1") is None
    path = tmp_path / shard_name(4)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert finished_shard(tmp_path, 4, "job 1") is None
    path.write_bytes(whole)
    flip(path)
    assert finished_shard(tmp_path, 4, "job 1") is None
    path.unlink()
    assert finished_shard(tmp_path, 4, "job 1") is None


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-99])


def replaced(path: Path) -> None:
    """Another shard of the same size but with other rows: riegeli files are padded to blocks of 64
    KiB.
    """
    written(path.parent.parent / "other", [rows_of(3)])
    path.write_bytes((path.parent.parent / "other" / shard_name(0)).read_bytes())


@pytest.mark.parametrize("damage", [truncated, replaced, Path.unlink])
def test_a_shard_that_is_not_the_index_s_is_named_at_opening(tmp_path, damage):
    written(tmp_path / "rows", [rows_of(40), rows_of(41)])
    path = tmp_path / "rows" / shard_name(1)
    damage(path)
    with pytest.raises(UserError, match=f"^{path} .*put it back from a copy"):
        open_table(epath.Path(tmp_path / "rows"))


@pytest.mark.parametrize("compression", [ZSTD, UNCOMPRESSED])
def test_a_flipped_byte_is_named_by_verify_and_by_the_row_it_hits(tmp_path, compression):
    # Random bytes do not shrink: half of the file is half of the rows.
    rows = {"inputs": RNG.integers(0, 1 << 16, (400, 4000)).astype(np.uint16)}
    written(tmp_path / "rows", [rows, rows], compression)
    path = tmp_path / "rows" / shard_name(1)
    flip(path)
    stored = StoredTable(tmp_path / "rows")
    with pytest.raises(UserError, match=f"^{path} is damaged: its SHA-256"):
        verify(tmp_path / "rows")
    damaged = []
    for index in range(len(stored)):
        try:
            np.testing.assert_array_equal(example(stored, index)["inputs"], rows["inputs"][index % 400])
        except UserError as error:
            assert str(error).startswith(f"{path} is damaged (")
            damaged.append(index)
    # A block header between chunks may take a neighbour along; no row is ever read wrong.
    assert damaged and all(400 < index < 800 for index in damaged) and len(damaged) <= 40
    with pytest.raises(UserError, match=rf"^{path} is damaged \("):
        stored.take(np.array([3, damaged[0]]))


def forged(*place: str | int, value: object) -> Callable[[Path], None]:
    """Another value in the index, whose fingerprint is made anew."""

    def change(path: Path) -> None:
        index = json.loads(path.read_text())
        inner = functools.reduce(lambda part, key: part[key], place[:-1], index)
        inner[place[-1]] = value
        del index["fingerprint"]
        path.write_text(json.dumps({"fingerprint": digest_of(index)} | index))

    return change


SHAPES = ("shards", 0, "groups", 0, "shapes")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (forged("fields", "inputs", value="O"), r"matching regex .* at `\$\.fields"),
        (forged("shards", 0, "name", value="../../shard"), r"matching regex .* at `\$\.shards\[0\]\.name`"),
        (forged("shards", value=[]), r"length >= 1 - at `\$\.shards`"),
        (forged("meta", value=None), r"Expected `object`, got `null` - at `\$\.meta`"),
        (forged(*SHAPES, "inputs", value=[1 << 13, 1 << 13]), "an example has more than 64 MiB"),
        (forged(*SHAPES, "other", value=[1]), "have no arrays, or not the same"),
        (lambda path: path.unlink(), "is missing: .* holds no finished rows"),
        (truncated, "is damaged"),
        (lambda path: path.write_bytes(path.read_bytes().replace(b'"rows": 9', b'"rows": 8')), "its own fingerprint"),
    ],
)
def test_a_damaged_index_is_named(tmp_path, change, complaint):
    written(tmp_path / "rows", [rows_of(9)], counts=dict.fromkeys("abcdefghijk", 1))
    change(tmp_path / "rows" / "index.json")
    with pytest.raises(UserError, match=f"^{tmp_path / 'rows' / 'index.json'} .*{complaint}"):
        StoredTable(tmp_path / "rows")


def test_an_example_of_another_size_than_the_index_says_is_damage(tmp_path):
    written(tmp_path / "rows", [rows_of(9)])
    forged(*SHAPES, "inputs", value=[8])(tmp_path / "rows" / "index.json")
    with pytest.raises(UserError, match=r"00000.arrayrecord is damaged \(example 0 has 68 bytes instead of 52\)"):
        StoredTable(tmp_path / "rows").take(np.array([0]))


def test_a_few_bytes_that_unpack_to_a_large_record_are_refused_unread(tmp_path):
    folder, name = tmp_path / "rows", shard_name(0)
    written(folder, [rows_of(9)])
    path = str(folder / name)
    written_by = ArrayRecordWriter(path, "group_size:1,zstd:1")
    for size in (100_000, LARGEST, LARGEST + (1 << 20)):
        written_by.write(bytes(size))
    written_by.close()
    forged("shards", 0, "sha256", value=hashlib.sha256((folder / name).read_bytes()).hexdigest())(folder / "index.json")
    assert (folder / name).stat().st_size < 1 << 20
    for opening in (open_table, verify):
        with pytest.raises(UserError, match=f"^{path} has a record of 65 MiB, more than the 64 of any"):
            opening(epath.Path(folder))


def test_shards_of_different_arrays_are_a_defect(tmp_path):
    first = write_shard(tmp_path, 0, {"a": np.zeros((2, 3), np.int32)}, ZSTD, "job", {})
    for other in (np.zeros((2, 3), np.int16), np.zeros((2, 4), np.int32)):
        with pytest.raises(ValueError, match="differ"):
            write_index(tmp_path, [first, write_shard(tmp_path, 1, {"a": other}, ZSTD, "job", {})], {})


def test_threads_read_the_same_rows(tmp_path):
    rows = rows_of(500)
    written(tmp_path / "rows", [{name: values[part] for name, values in rows.items()} for part in (slice(200), slice(200, 500))])
    stored = StoredTable(tmp_path / "rows")
    order = RNG.permutation(500).tolist()
    with ThreadPoolExecutor(8) as pool:
        for index, row in zip(order, pool.map(functools.partial(example, stored), order), strict=True):
            for name, values in rows.items():
                np.testing.assert_array_equal(row[name], values[index])


def test_a_write_that_fails_is_told_and_leaves_nothing(tmp_path):
    """In a process that may not write files of more than 100 KB."""
    code = f"""
import errno, resource, signal, os
import numpy as np
from pathlib import Path
from mhsh.data import shards
from mhsh.errors import UserError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
rows = {{"a": np.random.default_rng(0).integers(0, 255, (100, 10_000)).astype(np.uint8)}}
try:
    shards.write_shard(Path({str(tmp_path)!r}), 0, rows, shards.ZSTD, "job", {{}})
except UserError as error:
    assert os.strerror(errno.EFBIG) in str(error) and "cannot write" in str(error), error
    print("told")
"""
    assert printed(code) == "told\n" and not any(tmp_path.iterdir())


def test_a_full_device_keeps_its_error_number():
    """The library reports ENOSPC as text alone; /dev/full is a device that is always full."""
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as error:
        _write_records(Path("/dev/full"), np.zeros((9, 3), np.int32), ZSTD)
    assert error.value.errno == errno.ENOSPC and error.value.filename == "/dev/full"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two shards; and a cache of this test alone."""
    monkeypatch.setenv("MHSH_CACHE", str(tmp_path / "cache"))
    written(tmp_path / "rows", [rows_of(9), rows_of(9)])
    return tmp_path / "rows"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the shards that were read."""
    names: list[str] = []
    check = local_shards.check_shard
    monkeypatch.setattr(local_shards, "check_shard", lambda path, shard: (names.append(shard.name), check(path, shard)))
    return names


def verify_once(folder: Path) -> None:
    local_shards.verify_once(folder, shards_of(read_index(folder)))


def test_a_shard_is_read_once_until_it_changes_and_a_flipped_byte_is_named_every_time(folder, read):
    verify_once(folder)
    verify_once(folder)
    assert sorted(read) == ["00000.arrayrecord", "00001.arrayrecord"]
    os.utime(folder / "00001.arrayrecord")
    verify_once(folder)
    assert read[2:] == ["00001.arrayrecord"]
    flip(folder / "00001.arrayrecord")
    for _ in range(2):
        with pytest.raises(UserError, match=f"^{folder / '00001.arrayrecord'} is damaged: its SHA-256 is not that of the index; "):
            verify_once(folder)
    flip(folder / "00001.arrayrecord")
    verify_once(folder)


def test_without_a_cache_all_is_read_every_time(folder, read, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MHSH_CACHE", str(tmp_path / "file"))
    verify_once(folder)
    verify_once(folder)
    assert len(read) == 4
    assert "(Not a directory): every start reads all of" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["hold_lock", "write_json"])
def test_a_cache_that_cannot_be_written_or_has_no_locks_can_be_done_without(folder, read, monkeypatch, capsys, name):
    """As where a home is read-only, or full, or on a file system without locks."""

    def refuse(path, *arguments, **more):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(f"mhsh.data.local_shards.{name}", refuse)
    verify_once(folder)
    verify_once(folder)
    assert len(read) == 4
    assert "(Read-only file system): every start reads all of" in capsys.readouterr().out
