"""Reads a column of text from Parquet files, local or in a bucket.

pyarrow is imported when a file is opened: it takes a third of a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from etils import epath

from mhsh.data.text_files import matching_files
from mhsh.errors import UserError
from mhsh.files import opened

_COLUMN = "text"
# Rows and bytes that are in memory at a time. A row group may be as large as its file.
_ROWS_PER_READ = 256
_BUFFER_BYTES = 1 << 20


def read_texts(source: str, name: str) -> Iterator[str]:
    """The texts of a column, file by file and row by row.

    Args:
      source: data.source, for errors.
      name: GLOB[:COLUMN], such as fineweb/**/*.parquet or gs://bucket/c4/*.parquet:content. The
        default of COLUMN is text.

    Raises:
      UserError: the glob matches no files or there is no text in them, or a file is damaged, or the
        column is missing, is not text or has a row without a value.
    """
    pattern, column = _parse(source, name)
    paths = matching_files(pattern, f"data.source = {source!r}")
    found = False
    for path in paths:
        for text in _file_texts(path, column):
            found = found or bool(text.strip())
            yield text
    if not found:
        raise UserError(f"data.source = {source!r}: the {len(paths)} files it matches hold no text; name files that do")


def _parse(source: str, name: str) -> tuple[str, str]:
    pattern, colon, column = name.rpartition(":")
    if not colon or "/" in column:  # the colon of gs:// or of a folder
        return name, _COLUMN
    if not pattern or not column:
        raise UserError(f"data.source = {source!r} lacks a glob or a column; write parquet:GLOB or parquet:GLOB:COLUMN")
    return pattern, column


def _file_texts(path: epath.Path, column: str) -> Iterator[str]:
    import pyarrow
    from pyarrow import parquet

    place = str(path)
    try:
        with opened(path) as file:
            # By default all of a row group's column would be read before its first row.
            table = parquet.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER_BYTES, page_checksum_verification=True)
            _check_column(place, table.schema_arrow, column)
            for group in range(table.num_row_groups):
                place, row = f"{path}, row group {group}", 0
                # Threads would read ahead; the reading is quicker than what is done with the text.
                for batch in table.iter_batches(_ROWS_PER_READ, [group], [column], use_threads=False):
                    values = batch.column(0)
                    if values.null_count:
                        row += values.is_null().index(True).as_py()
                        raise UserError(
                            f"{place}: row {row} has no value in the column {column!r}; leave such rows out of the file"
                        )
                    yield from values.to_pylist()
                    row += len(values)
    except UnicodeDecodeError as error:
        raise UserError(f"{place}: the column {column!r} is not UTF-8: {error.reason}; write the file again") from error
    except (OSError, pyarrow.ArrowException) as error:
        if isinstance(error, OSError) and error.strerror:
            raise UserError(f"cannot read {place}: {error.strerror}") from error
        raise UserError(f"{place} is damaged or no Parquet ({' '.join(str(error).split())}); fetch it again") from error


def _check_column(place: str, schema: Any, column: str) -> None:
    """Raises UserError where the file has no such column, or one that is not text."""
    from pyarrow import types

    if schema.names.count(column) != 1:
        raise UserError(f"{place} has the columns {', '.join(schema.names)}, but not one {column!r}; write parquet:GLOB:COLUMN")
    kind = schema.field(column).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
        raise UserError(f"{place}: the column {column!r} is of type {kind}, which is not text; name a column of text")
