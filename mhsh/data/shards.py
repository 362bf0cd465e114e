"""Tables on disk: ArrayRecord shards with an index, written once and read in any order.

A folder holds shards `00000.arrayrecord`, `00001.arrayrecord`, ... and `index.json`. A record is
one example: the little-endian bytes of its arrays, one after the other, in the order of the index's
`fields`. The index has the shapes, which are those of all examples. So nothing in a shard is
executable, and an example needs no parsing. While a folder is being written, a note `00000.json`
beside each finished shard names the job that wrote it. The notes go when the index is written.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import struct
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec
import numpy as np
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter
from etils import epath
from jaxtyping import Int64
from msgspec import Meta

from mhsh.data.tables import Examples, ExampleTable, num_examples
from mhsh.errors import UserError
from mhsh.storage.bucket import is_remote
from mhsh.storage.files import MissingFile, clear_half_files, open_binary, read_object, replace_atomically, write_atomically
from mhsh.storage.questions import exists

INDEX_FILE = "index.json"
LARGEST = 1 << 26  # bytes of a record
_FORMAT = 2
# A file is a sequence of blocks. Each begins with a header, and the chunks are in what follows,
# across blocks. A chunk has a header, too: hash, bytes, hash, kind with records, bytes unpacked.
# Source: https://github.com/google/riegeli/blob/master/doc/riegeli_records_file_format.md
_BLOCK, _BLOCK_HEADER = 1 << 16, 24
_CHUNK_HEADER = struct.Struct("<5Q")
# One record a chunk, so that an example is read without its neighbours. One thread a writer, as
# there are many workers already.
_WRITER_OPTIONS = "group_size:1,max_parallelism:1"
_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
# Bytes read at once: little more than an example, as the next bytes belong to another one.
_READ_BYTES = 1 << 11

# The compression of records. zstd, at its quickest, is for examples whose arrays repeat each other.
ZSTD, UNCOMPRESSED = "zstd:1", "uncompressed"

REMEDY = "put it back from a copy (in mhsh's cache: delete it), or prepare into another folder"


_Count = Annotated[int, Meta(ge=0, le=1 << 40)]
_Length = Annotated[int, Meta(ge=0, le=1 << 24)]
_Kind = Annotated[str, Meta(pattern="^(<[iuf][248]|[|][iub]1)$")]  # numpy's dtype of an array


class ExampleGroup(msgspec.Struct, frozen=True):
    """Examples of equal shapes."""

    count: _Count = msgspec.field(name="rows")
    shapes: dict[str, Annotated[tuple[_Length, ...], Meta(max_length=4)]]  # of one example


class Shard(msgspec.Struct, frozen=True):
    """The entry of one shard in the index."""

    name: Annotated[str, Meta(pattern=r"^[0-9]{5,}\.arrayrecord$")]
    size: _Count = msgspec.field(name="bytes")
    sha256: str
    groups: tuple[ExampleGroup, ...]  # one, or none where the shard has no example
    fields: dict[str, _Kind] = {}  # of each array, in the order of their bytes

    @property
    def count(self) -> int:
        """The number of examples."""
        return sum(group.count for group in self.groups)


class _Overlap(msgspec.Struct):
    count: int
    of: int


class _Read(msgspec.Struct):
    unknown_character_fraction: float = 0.0


class _Counts(msgspec.Struct):
    overlap: _Overlap = msgspec.field(default_factory=lambda: _Overlap(0, 0))
    train: _Read | float | None = None


class _Meta(msgspec.Struct):
    source_fingerprint: str = ""
    unigram_entropy: float = 0.0
    counts: _Counts = msgspec.field(default_factory=_Counts)


class _ShardsIndex(msgspec.Struct):
    """The types in an index.json that its readers count on: it may come from anybody."""

    fields: Annotated[dict[str, _Kind], Meta(min_length=1)]
    shards: Annotated[list[Shard], Meta(min_length=1)]
    meta: _Meta

    def check(self) -> None:
        """Raises ValueError where the arrays are none that `write_index` wrote."""
        shapes = [group.shapes for shard in self.shards for group in shard.groups]
        if not shapes or any(one != shapes[0] for one in shapes) or shapes[0].keys() != self.fields.keys():
            raise ValueError("its shards have no arrays, or not the same")
        if _record_type(self.fields, shapes[0]).itemsize > LARGEST:
            raise ValueError(f"an example has more than {LARGEST >> 20} MiB")


def write_shard(folder: Path, number: int, examples: Examples, compression: str, job: str, note: Mapping[str, Any]) -> Shard:
    """Writes shard `number` of `folder`, and a note with `job`, which identifies all that decides
    the bytes, and `note`, kept until the index is written. After a kill it is whole or written
    again. Equal examples give equal bytes; several processes may write the same shard.
    """
    path, count = folder / shard_name(number), num_examples(examples)
    fields = {name: str(values.dtype.newbyteorder("<").str) for name, values in examples.items()}
    shapes = {name: values.shape[1:] for name, values in examples.items()}
    records = np.empty(count, _record_type(fields, shapes))
    for name, values in examples.items():
        records[name] = values
    with replace_atomically(path) as temporary:
        _write_records(temporary, records, compression)
        sha256, size = _sha256_of(temporary), temporary.stat().st_size
    shard = Shard(path.name, size, sha256, (ExampleGroup(count, shapes),) if count else (), fields)
    write_json(_note_path(folder, number), {"job": job, "shard": msgspec.to_builtins(shard), "note": dict(note)})
    return shard


def finished_shard(folder: Path, number: int, job: str) -> tuple[Shard, dict[str, Any]] | None:
    """Shard `number` and its note, or None where this job has still to write it."""
    path = _note_path(folder, number)
    try:
        content = read_object(path)
    except MissingFile:
        return None
    except UserError as error:
        raise UserError(f"{error}; or delete it and run the same command again") from error
    if content["job"] != job:
        return None
    shard = msgspec.convert(content["shard"], Shard)
    path = folder / shard.name
    return (shard, content["note"]) if exists(path) and _sha256_of(path) == shard.sha256 else None


def write_index(folder: Path, shards: Sequence[Shard], meta: Mapping[str, Any]) -> str:
    """Writes index.json with all shards and `meta` (plain JSON), and removes the notes. Returns the
    fingerprint: SHA-256, in hex, over all of the index, which has the hash of every shard.
    """
    content = {
        "format": _FORMAT,
        "fields": shards[0].fields,
        "rows": sum(shard.count for shard in shards),
        "shards": [{name: value for name, value in msgspec.to_builtins(shard).items() if name != "fields"} for shard in shards],
        "meta": dict(meta),
    }
    arrays = [(shard.fields, group.shapes) for shard in shards for group in shard.groups]
    if any(one != arrays[0] for one in arrays):
        raise ValueError(f"the shards of {folder} differ in their arrays")
    fingerprint = digest_of(content)
    write_json(folder / INDEX_FILE, {"fingerprint": fingerprint} | content)
    clear_notes(folder)
    return fingerprint


def clear_notes(folder: Path) -> None:
    """Removes the notes of the shards, and files that were left half written."""
    for path in folder.glob("[0-9]*.json"):
        path.unlink()
    clear_half_files(folder)


def shard_name(number: int) -> str:
    """The file name of shard `number`, counted from 0."""
    return f"{number:05d}.arrayrecord"


def write_json(path: epath.PathLike, content: Mapping[str, Any]) -> None:
    """Replaces the file by `content` as JSON, and flushes it to the disk."""
    write_atomically(path, json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1) + "\n")


class StoredTable(ExampleTable):
    """The table in a folder, whose shards are taken to be those of the index (see local_shards.py).

    A file is opened when its first example is read and then stays open, at about 50 bytes an
    example, which the library keeps of where they lie. Raises UserError: see `read_index`.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        index = read_index(self.folder)
        self.fingerprint: str = index["fingerprint"]
        self.meta: dict[str, Any] = index["meta"]
        self.shards = shards_of(index)
        shapes = next(group.shapes for shard in self.shards for group in shard.groups)
        self._record_type = _record_type(index["fields"], shapes)
        counts = np.array([shard.count for shard in self.shards], np.int64)
        self._shard_ends = np.cumsum(counts)
        self._shard_starts = self._shard_ends - counts
        self._readers: list[ArrayRecordReader | None] = [None] * len(self.shards)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sum(shard.count for shard in self.shards)

    def take(self, numbers: Int64[np.ndarray, " n"]) -> Examples:
        shards = self._shard_ends.searchsorted(numbers, "right")
        inside = numbers - self._shard_starts[shards]
        records: list[bytes] = []
        reads = {shard: self._reader(shard).read for shard in set(shards.tolist())}
        for shard, record in zip(shards.tolist(), inside.tolist(), strict=True):
            try:
                # A range, as reading a list takes time in proportion to the examples of the file.
                (content,) = reads[shard](record, record + 1)
                if len(content) != self._record_type.itemsize:
                    raise ValueError(f"example {record} has {len(content)} bytes instead of {self._record_type.itemsize}")
            except (RuntimeError, ValueError, OSError) as error:
                raise UserError(f"{self.folder / self.shards[shard].name} is damaged ({error}); {REMEDY}") from error
            records.append(content)
        table = np.ndarray(len(records), self._record_type, b"".join(records))
        return {name: np.array(table[name]) for name in self._record_type.names or ()}

    def _reader(self, shard: int) -> ArrayRecordReader:
        with self._lock:
            reader = self._readers[shard]
            if reader is None:
                path = str(self.folder / self.shards[shard].name)
                reader = self._readers[shard] = ArrayRecordReader(path, _READER_OPTIONS, file_reader_buffer_size=_READ_BYTES)
        return reader


def _note_path(folder: Path, number: int) -> Path:
    return (folder / shard_name(number)).with_suffix(".json")


def _write_records(path: Path, records: np.ndarray, compression: str) -> None:
    try:
        writer = ArrayRecordWriter(str(path), f"{_WRITER_OPTIONS},{compression}")
        for record in records:
            writer.write(record.tobytes())
        writer.close()
    except RuntimeError as error:
        # The library has one exception for everything; the system's message is in its text.
        for number in (errno.ENOSPC, errno.EDQUOT):
            if os.strerror(number) in str(error):
                raise OSError(number, os.strerror(number), str(path)) from error
        raise UserError(f"cannot write {path.parent}: {error}") from error


def _record_type(fields: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]) -> np.dtype:
    """The arrays of one example, one after the other without gaps."""
    return np.dtype([(name, kind, shapes[name]) for name, kind in fields.items()])


def read_index(folder: epath.Path | Path) -> dict[str, Any]:
    """The index that `write_index` wrote. Raises UserError where it is missing or damaged."""
    path = folder / INDEX_FILE
    try:
        index = read_object(path)
        content = {key: value for key, value in index.items() if key != "fingerprint"}
        if index["fingerprint"] != digest_of(content):
            raise ValueError("it does not match its own fingerprint")
        if index["format"] != _FORMAT:
            raise UserError(f"{path} has format {index['format']}, this mhsh reads {_FORMAT}; prepare the rows again")
        msgspec.convert(index, _ShardsIndex).check()
    except MissingFile:
        raise UserError(f"{path} is missing: {folder} holds no finished rows; finish them with mhsh prepare") from None
    except (ValueError, KeyError, OverflowError, msgspec.ValidationError) as error:
        raise UserError(f"{path} is damaged ({error}); {REMEDY}") from error
    return index


def shards_of(index: Mapping[str, Any]) -> list[Shard]:
    """The shards that an index names, in order."""
    return [msgspec.convert({**entry, "fields": index["fields"]}, Shard) for entry in index["shards"]]


def digest_of(content: Mapping[str, Any]) -> str:
    """SHA-256, in hex, over plain JSON, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def check_shard(path: Path | epath.Path, shard: Shard, origin: epath.Path | None = None) -> None:
    """Reads a shard, here or in a bucket. Raises UserError, with the `origin` of a copy, where its
    SHA-256 differs from the index, or a few bytes of it unpack to many.
    """
    if _sha256_of(path) != shard.sha256:
        raise UserError(f"{origin or path} is damaged: its SHA-256 is not that of the index; {REMEDY}")
    check_unpacked(path)


def _sha256_of(path: Path | epath.Path) -> str:
    with open_binary(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_unpacked(path: epath.PathLike) -> None:
    """Raises UserError where a chunk of an ArrayRecord file says that it unpacks to more than a
    record may have, and to more than the file: the library unpacks a chunk whatever its size. A
    file in a bucket is not looked at: it is copied first.
    """
    if is_remote(path):
        return
    with open_binary(path) as file:
        at, size = 0, file.seek(0, 2)
        while at < size and len(header := _read(file, at, _CHUNK_HEADER.size)) == _CHUNK_HEADER.size:
            _, length, _, _, unpacked = _CHUNK_HEADER.unpack(header)
            if unpacked > max(LARGEST, size):
                raise UserError(
                    f"{path} has a record of {unpacked >> 20} MiB, more than the {LARGEST >> 20} of any; prepare it again"
                )
            at += _CHUNK_HEADER.size + length


def _read(file: IO[bytes], at: int, count: int) -> bytes:
    """Bytes of the chunks, `at` counted without the headers of blocks."""
    block, offset = divmod(at, _BLOCK - _BLOCK_HEADER)
    file.seek(block * _BLOCK + _BLOCK_HEADER + offset)
    content = file.read(min(count, _BLOCK - _BLOCK_HEADER - offset))
    return content if len(content) == count or not content else content + _read(file, at + len(content), count - len(content))
