"""Rows of arrays in ArrayRecord shards with an index: written once, each shard whole or not at all,
and read lazily in any order.

A folder of rows holds shards `00000.arrayrecord`, `00001.arrayrecord`, ... and `index.json`. A
record is one row: the little-endian bytes of its arrays one after the other, in the order of the
index's `fields`; their shapes stand in the index, once for every run of rows that share them. So
nothing in a shard is executable, and a row costs no parsing. While a folder is being written, a
note `00000.json` beside each finished shard says of what job it is; the index takes the notes in,
and they go.
"""

from __future__ import annotations

import bisect
import dataclasses
import errno
import hashlib
import itertools
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter
from jaxtyping import Integer

from mhsh.errors import UserError
from mhsh.files import MissingFile, clear_half_files, read_object, replacing, write_atomically

INDEX_FILE = "index.json"
_FORMAT = 1
# One record a chunk, so that a row is read without its neighbours. One thread a writer, as workers
# are many already.
_WRITER_OPTIONS = "group_size:1,max_parallelism:1"
_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
# What is read at once: little more than a row, as the bytes behind it are those of a row that
# nobody has asked for.
_READ_BYTES = 1 << 11

# How records are packed; docs/preparation.md has what either costs. zstd, at its quickest, is for
# rows whose arrays repeat each other.
ZSTD, PLAIN = "zstd:1", "uncompressed"

Row = dict[str, np.ndarray]
Rows = Mapping[str, np.ndarray]  # arrays of equal length R on their first axis, a row of each making a row


@dataclasses.dataclass(frozen=True)
class RowGroup:
    """Consecutive rows whose arrays have the same shapes."""

    rows: int
    shapes: dict[str, tuple[int, ...]]  # of one row


@dataclasses.dataclass(frozen=True)
class Shard:
    """What is known of one whole shard."""

    name: str
    size: int  # bytes
    sha256: str
    fields: dict[str, str]  # numpy's dtype of each array, in the order of their bytes
    groups: tuple[RowGroup, ...]

    @property
    def rows(self) -> int:
        """The rows in it."""
        return sum(group.rows for group in self.groups)


def write_shard(folder: Path, number: int, groups: Sequence[Rows], packing: str, job: str, note: Mapping[str, Any]) -> Shard:
    """Writes shard `number` of `folder`; afterwards it is there whole, with its note, or (after a
    kill) is to be written again.

    Equal rows give equal bytes. Several processes may write different shards, and even the same, at
    the same time.

    Args:
      groups: the rows; the groups have the same arrays and dtypes, and may differ in shapes. Groups
        without rows are left out.
      packing: ZSTD or PLAIN.
      job: what `finished_shard` must be asked with to accept it: the identity of all that its bytes
        hang on.
      note: numbers about it, kept until the index is written.
    """
    path = folder / shard_name(number)
    fields = {name: _stored_as(values) for name, values in groups[0].items()}
    kept = [rows for rows in groups if _num_rows(rows)]
    with replacing(path) as temporary:
        _write_records(temporary, kept, fields, packing)
        with open(temporary, "rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        shard = Shard(
            name=path.name,
            size=temporary.stat().st_size,
            sha256=sha256,
            fields=fields,
            groups=tuple(RowGroup(_num_rows(rows), {name: values.shape[1:] for name, values in rows.items()}) for rows in kept),
        )
    write_json(_note_path(folder, number), {"job": job, "shard": dataclasses.asdict(shard), "note": dict(note)})
    return shard


def finished_shard(folder: Path, number: int, job: str) -> tuple[Shard, dict[str, Any]] | None:
    """Shard `number` and its note where it is there whole and of this very job; None where it is to
    be written (again).
    """
    path = _note_path(folder, number)
    try:
        content = read_object(path)
    except MissingFile:
        return None
    except UserError as error:
        raise UserError(f"{error}; or delete it and run the same command again") from error
    shard = _parse_shard(content["shard"])
    if content["job"] != job or not _is_whole(folder / shard.name, shard):
        return None
    return shard, content["note"]


def write_index(folder: Path, shards: Sequence[Shard], meta: Mapping[str, Any]) -> str:
    """Closes a folder of rows: index.json with all its shards and `meta` (plain JSON values), then
    removes notes and half files.

    Returns the fingerprint: SHA-256, in hex, over all that the index says, the hash of every shard
    among it.
    """
    content = {
        "format": _FORMAT,
        "fields": shards[0].fields,
        "rows": sum(shard.rows for shard in shards),
        "shards": [
            {
                "name": shard.name,
                "bytes": shard.size,
                "sha256": shard.sha256,
                "groups": [dataclasses.asdict(group) for group in shard.groups],
            }
            for shard in shards
        ],
        "meta": dict(meta),
    }
    if any(shard.fields != shards[0].fields for shard in shards):
        raise ValueError(f"the shards of {folder} differ in their arrays")
    fingerprint = _fingerprint(content)
    write_json(folder / INDEX_FILE, {"fingerprint": fingerprint} | content)
    clear_notes(folder)
    return fingerprint


def clear_notes(folder: Path) -> None:
    """Removes what only an unfinished folder needs: the shards' notes, and files left half
    written.
    """
    for path in folder.glob("[0-9]*.json"):
        path.unlink()
    clear_half_files(folder)


def shard_name(number: int) -> str:
    """The file name of shard `number`, counted from 0."""
    return f"{number:05d}.arrayrecord"


def open_rows(folder: str | os.PathLike[str]) -> StoredRows:
    """The rows of a folder. Sizes and counts of all shards are compared with the index; their bytes
    as they are read.

    Raises:
      UserError: no index, a damaged one, or a shard that is missing, of another size, or of another
        number of rows; it names it.
    """
    return StoredRows(Path(folder))


class StoredRows:
    """Random access to the rows of a folder: `len(rows)`, `rows[index]`, `rows.take(numbers)`.

    Threads may share it, and it may go to other processes. A file is opened when its first row is
    read, and stays open, at about 50 bytes a row, which the library keeps of where the rows lie.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        index = _read_index(folder)
        self.fingerprint: str = index["fingerprint"]
        self.meta: dict[str, Any] = index["meta"]
        self.shards = [_parse_shard(entry | {"fields": index["fields"]}, size="bytes") for entry in index["shards"]]
        for shard in self.shards:
            _check_cheaply(folder / shard.name, shard)
        groups = [group for shard in self.shards for group in shard.groups]
        self._ends = list(itertools.accumulate(group.rows for group in groups))
        self._layouts = [_layout(shard.fields, group.shapes) for shard in self.shards for group in shard.groups]
        self._shard_ends = np.cumsum([shard.rows for shard in self.shards])
        self._shard_starts = self._shard_ends - [shard.rows for shard in self.shards]
        self._readers = _Readers([folder / shard.name for shard in self.shards])
        self.groups: list[tuple[dict[str, tuple[int, ...]], range]] = [
            (group.shapes, range(end - group.rows, end)) for group, end in zip(groups, self._ends, strict=True)
        ]  # the shapes of a row, and the indices of the rows that have them

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> Row:
        """The arrays of row `index`, 0 <= index < len, read-only. Raises UserError, with the
        shard's name, where it is damaged.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        (record,) = self._records(np.array([index]))
        layout = self._layouts[bisect.bisect_right(self._ends, index)]
        return {name: np.frombuffer(record, dtype, count, offset).reshape(shape) for name, dtype, count, offset, shape in layout}

    def take(self, numbers: Integer[np.ndarray, " n"]) -> dict[str, np.ndarray]:
        """The rows of these numbers, which have the same shapes, put together. Raises as
        `rows[index]` does.
        """
        layout = self._layouts[0]
        if any(other != layout for other in self._layouts):
            raise ValueError(f"the rows of {self.folder} differ in their shapes, and cannot be put together")
        size = sum(count * dtype.itemsize for _, dtype, count, _, _ in layout)
        table = np.frombuffer(b"".join(self._records(numbers)), np.uint8).reshape(len(numbers), size)
        return {
            name: np.ascontiguousarray(table[:, offset : offset + count * dtype.itemsize]).view(dtype).reshape(len(numbers), *shape)
            for name, dtype, count, offset, shape in layout
        }

    def _records(self, numbers: Integer[np.ndarray, " n"]) -> list[bytes]:
        shards = np.searchsorted(self._shard_ends, numbers, "right")
        places = numbers - self._shard_starts[shards]
        found: list[bytes] = []
        reads = {shard: self._readers[shard].read for shard in set(shards.tolist())}
        for shard, place in zip(shards.tolist(), places.tolist(), strict=True):
            try:
                # A range, as reading a list of places takes time in proportion to the file's rows.
                (record,) = reads[shard](place, place + 1)
            except (RuntimeError, ValueError, OSError) as error:
                raise UserError(f"{self.folder / self.shards[shard].name} is damaged ({error}); {_REMEDY}") from error
            found.append(record)
        return found

    def verify(self) -> None:
        """Reads every byte of every shard. Raises UserError, naming the first shard whose SHA-256
        is not the index's.
        """
        for shard in self.shards:
            if not _is_whole(self.folder / shard.name, shard):
                raise UserError(f"{self.folder / shard.name} is damaged: its SHA-256 is not that of the index; {_REMEDY}")


class _Readers:
    """The readers of some files by their number, each opened when it is first asked for; in another
    process, opened anew.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._readers: list[ArrayRecordReader | None] = [None] * len(paths)
        self._lock = threading.Lock()

    def __getitem__(self, number: int) -> ArrayRecordReader:
        reader = self._readers[number]
        if reader is None:
            with self._lock:
                reader = self._readers[number]
                if reader is None:
                    reader = self._readers[number] = _reader(self._paths[number])
        return reader

    def __reduce__(self) -> tuple[type[_Readers], tuple[Sequence[Path]]]:
        return _Readers, (self._paths,)


def _reader(path: Path) -> ArrayRecordReader:
    return ArrayRecordReader(str(path), _READER_OPTIONS, file_reader_buffer_size=_READ_BYTES)


_REMEDY = "put it back from a copy, or prepare into another folder"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replaces the file by `content` as JSON, and flushes it to the disk."""
    write_atomically(path, json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1) + "\n")


def _num_rows(rows: Rows) -> int:
    return len(next(iter(rows.values())))


def _note_path(folder: Path, number: int) -> Path:
    return (folder / shard_name(number)).with_suffix(".json")


def _write_records(path: Path, groups: Sequence[Rows], fields: Mapping[str, str], packing: str) -> None:
    try:
        writer = ArrayRecordWriter(str(path), f"{_WRITER_OPTIONS},{packing}")
        for record in _records(groups, fields):
            writer.write(record)
        writer.close()
    except RuntimeError as error:
        # The library has one exception for everything; the system's words are in its text.
        for number in (errno.ENOSPC, errno.EDQUOT):
            if os.strerror(number) in str(error):
                raise OSError(number, os.strerror(number), str(path)) from error
        raise UserError(f"cannot write {path.parent}: {error}") from error


def _stored_as(values: np.ndarray) -> str:
    return str(values.dtype.newbyteorder("<").str)


def _records(groups: Sequence[Rows], fields: Mapping[str, str]) -> Iterator[bytes]:
    for rows in groups:
        if list(rows) != list(fields) or any(_stored_as(rows[name]) != dtype for name, dtype in fields.items()):
            raise ValueError("the groups of a shard differ in their arrays")
        num_rows = _num_rows(rows)
        columns = [
            np.ascontiguousarray(rows[name], dtype).reshape(num_rows, -1).view(np.uint8).reshape(num_rows, -1)
            for name, dtype in fields.items()
        ]
        for record in np.concatenate(columns, axis=1):
            yield record.tobytes()


def _layout(
    fields: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]
) -> list[tuple[str, np.dtype, int, int, tuple[int, ...]]]:
    """Name, dtype, count of numbers, offset in bytes and shape of each array of a record."""
    layout, offset = [], 0
    for name, kind in fields.items():
        dtype, count = np.dtype(kind), int(np.prod(shapes[name], dtype=np.int64))
        layout.append((name, dtype, count, offset, shapes[name]))
        offset += count * dtype.itemsize
    return layout


def _parse_shard(entry: Mapping[str, Any], size: str = "size") -> Shard:
    groups = [RowGroup(group["rows"], {name: tuple(shape) for name, shape in group["shapes"].items()}) for group in entry["groups"]]
    return Shard(entry["name"], entry[size], entry["sha256"], dict(entry["fields"]), tuple(groups))


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / INDEX_FILE
    try:
        index = read_object(path)
        content = {key: value for key, value in index.items() if key != "fingerprint"}
        if index["fingerprint"] != _fingerprint(content):
            raise ValueError("it does not match its own fingerprint")
    except MissingFile:
        raise UserError(f"{path} is missing: {folder} holds no finished rows; run the mhsh prepare that was to write it") from None
    except (ValueError, KeyError) as error:
        raise UserError(f"{path} is damaged ({error}); {_REMEDY}") from error
    if index["format"] != _FORMAT:
        raise UserError(f"{path} is of format {index['format']}, this mhsh reads {_FORMAT}; prepare the rows again")
    return index


def _fingerprint(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _check_cheaply(path: Path, shard: Shard) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}), but the index names it; {_REMEDY}") from error
    if size != shard.size:
        raise UserError(f"{path} is damaged: {size} bytes, where the index says {shard.size}; {_REMEDY}")
    try:
        reader = _reader(path)
        rows = reader.num_records()
        reader.close()
    except RuntimeError as error:
        raise UserError(f"{path} is damaged ({error}); {_REMEDY}") from error
    if rows != shard.rows:
        raise UserError(f"{path} is damaged: {rows} rows can be found, where the index says {shard.rows}; {_REMEDY}")


def _is_whole(path: Path, shard: Shard) -> bool:
    try:
        with open(path, "rb") as file:
            return os.fstat(file.fileno()).st_size == shard.size and hashlib.file_digest(file, "sha256").hexdigest() == shard.sha256
    except FileNotFoundError:
        return False
