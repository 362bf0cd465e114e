"""How much the files of ArrayRecord unpack to: the library unpacks a chunk, whatever its size."""

from __future__ import annotations

import struct
from typing import IO

from etils import epath

from mhsh.errors import UserError
from mhsh.storage.bucket import is_remote
from mhsh.storage.files import opened

LARGEST = 1 << 26  # bytes of a record
# A file is a sequence of blocks. Each begins with a header, and the chunks are in what follows,
# across blocks. A chunk has a header, too: hash, bytes, hash, kind with records, bytes unpacked.
# Source: https://github.com/google/riegeli/blob/master/doc/riegeli_records_file_format.md
_BLOCK, _BLOCK_HEADER = 1 << 16, 24
_CHUNK_HEADER = struct.Struct("<5Q")


def check_unpacked(path: epath.PathLike) -> None:
    """Raises UserError where a chunk of a file says that it unpacks to more than a record may have,
    and to more than the file. A file in a bucket is not looked at: it is copied first.
    """
    if is_remote(path):
        return
    with opened(path) as file:
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
