"""Texts in a column of tables: Parquet files, and what `save_to_disk` of Hugging Face writes.

pyarrow is imported when a file is opened: it takes a third of a second.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from etils import epath

from mhsh.data.text_files import split_field
from mhsh.errors import UserError
from mhsh.storage.files import expand_user, open_binary, read_object
from mhsh.storage.questions import exists

# Rows and bytes that are in memory at a time. A row group may be as large as its file.
_ROWS_PER_READ = 32  # of a megabyte each, 1,000 such rows in 47 kB take 0.2 GB; 256 took 1.1 GB, and no less time
_BUFFER_BYTES = 1 << 20


def read_parquet(path: epath.Path, column: str) -> Iterator[str]:
    """The texts of a column of a file, row by row."""
    from pyarrow import parquet

    with _wrap_errors(path, "Parquet"), open_binary(path) as file:
        # By default all of a row group's column would be read before its first row.
        table = parquet.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER_BYTES, page_checksum_verification=True)
        names = _find_column(str(path), table.schema_arrow, column, "parquet:GLOB:COLUMN")
        for group in range(table.num_row_groups):
            at = f"{path}, row group {group}"
            # Threads would read ahead; the reading is quicker than what is done with the text.
            batches = table.iter_batches(_ROWS_PER_READ, [group], [".".join(names)], use_threads=False)
            with _wrap_errors(at, "Parquet"):
                yield from _texts(batches, names, at, column)


def read_arrow(argument: str) -> Iterator[str]:
    """The texts of DIR[:COLUMN], a folder of `save_to_disk` with the rows of one split."""
    folder, column = split_field("arrow", argument, "COLUMN")
    path = expand_user(folder)
    if exists(path / "dataset_dict.json"):
        splits = read_object(path / "dataset_dict.json").get("splits") or ["train"]
        raise UserError(f"{folder} holds the splits {', '.join(map(str, splits))}; name one of them: arrow:{folder}/{splits[0]}")
    if not exists(path / "state.json"):
        raise UserError(f"{folder} has no state.json: it is not a folder of save_to_disk; name one, or use parquet:, jsonl:, text:")
    state = read_object(path / "state.json")
    if state.get("_indices_files"):
        raise UserError(f"{folder} is a selection of rows; write it again after dataset.flatten_indices()")
    try:
        names = [str(file["filename"]) for file in state["_data_files"]]
    except (KeyError, TypeError) as error:
        raise UserError(f"{path / 'state.json'} names no files; write the data set again with save_to_disk") from error
    return (text for name in names for text in _arrow_file(path / name, column))


def _arrow_file(path: epath.Path, column: str) -> Iterator[str]:
    from pyarrow import ipc

    with _wrap_errors(path, "Arrow"), open_binary(path) as file, ipc.open_stream(file) as batches:
        names = _find_column(str(path), batches.schema, column, "arrow:DIR:COLUMN")
        yield from _texts(batches, names, str(path), column)


def _texts(batches: Any, names: list[str], at: str, column: str) -> Iterator[str]:
    """The text of every row, "" for null. Bytes without an annotation are UTF-8 too."""
    row = 0
    for batch in batches:
        values = batch.column(names[0])
        for name in names[1:]:  # flattening gives the fields of a null struct as null
            values = dict(zip([field.name for field in values.type], values.flatten(), strict=True))[name]
        try:
            for value in values.to_pylist():
                yield value.decode() if isinstance(value, bytes) else value or ""
                row += 1
        except UnicodeDecodeError as error:
            raise UserError(
                f"{at}, row {row} or after: the column {column!r} is not UTF-8: {error.reason}; write the file again"
            ) from error


def _find_column(at: str, schema: Any, column: str, form: str) -> list[str]:
    """The names from the table to the column: one, or more for a field in a struct. Raises
    UserError where the file has no such column, or it is not of text or bytes.
    """
    from pyarrow import types

    names = [column] if column in schema.names else column.split(".")
    fields, kind = list(schema), schema
    for depth, name in enumerate(names):
        found = [field for field in fields if field.name == name]
        if len(found) != 1:
            columns = [".".join([*names[:depth], field.name]) for field in fields]
            raise UserError(f"{at} has the columns {', '.join(columns)}, but not one {column!r}; write {form}")
        kind = found[0].type
        fields = list(kind) if types.is_struct(kind) else []
    if fields:
        raise UserError(f"{at}: the column {column!r} has the fields {', '.join(f.name for f in fields)}; name one: {column}.FIELD")
    if types.is_dictionary(kind):
        kind = kind.value_type
    texts = (types.is_string, types.is_large_string, types.is_string_view)
    if not any(test(kind) for test in (*texts, types.is_binary, types.is_large_binary, types.is_binary_view)):
        raise UserError(f"{at}: the column {column!r} is of type {kind}, which is not text; name a column of text")
    return names


@contextlib.contextmanager
def _wrap_errors(at: object, form: str) -> Iterator[None]:
    """Turns an error inside the `with` into a UserError of one line that says where."""
    import pyarrow

    try:
        yield
    except (OSError, pyarrow.ArrowException) as error:
        if isinstance(error, OSError) and error.strerror:
            raise UserError(f"cannot read {at}: {error.strerror}") from error
        raise UserError(f"{at} is damaged or not {form} ({' '.join(str(error).split())}); fetch it again") from error
