"""The file of a run's rows, metrics.jsonl: appended, read, and cut where a run goes on from a
checkpoint.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
from etils import epath

from mhsh.errors import UserError
from mhsh.storage.bucket import GuardedObject, bucket_objects, is_remote
from mhsh.storage.files import open_binary, replace_atomically
from mhsh.text import to_json

_DECODER = msgspec.json.Decoder()  # three times as fast as json
_DAMAGED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # the last: thousands of nested brackets
_BLOCK = 1 << 16  # bytes read at once
_STEP, _SPLIT = operator.itemgetter("step"), operator.itemgetter("split")
_LONGEST_LINE = 1 << 24  # bytes; what is longer is not a row


class CutRows(NamedTuple):
    """The numbers of rows that `RunFolder.cut_metrics` kept and of those that are missing."""

    num_kept: int
    num_lost: int  # of those up to the step; 0 unless a gap is accepted
    dropped_seconds: float  # of training, after the step


class RowsFile:
    """The file metrics.jsonl of a run. In a bucket it is this process's from its first write on:
    what a process that has lost the run adds, cuts or replaces is refused.
    """

    def __init__(self, path: epath.Path) -> None:
        self._path = path
        self._object = GuardedObject(str(path))  # in a bucket

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Appends rows, which need `step` and `split`. Numbers that are not finite become null. In
        a bucket, rows of a call that has failed are given again, before those that are new. Raises
        UserError where another process has taken the run.
        """
        lines = "".join(to_json(row) + "\n" for row in rows)
        if is_remote(self._path):
            with self._object.acquire() as bucket_object:
                bucket_object.append(lines.encode())
        else:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(lines)

    def cut(self, step: int, expected: int, accept_gap: bool) -> CutRows:
        """Drops the rows after `step`, which a resumed run logs again, and damaged lines.

        Args:
          expected: how many rows there were up to `step` when its checkpoint was saved.
          accept_gap: whether to go on without rows that are lost.

        Raises UserError where rows up to `step` are lost, or the file cannot be read (it is
        unchanged), or another process has taken the run.
        """
        path, ownership = self._path, self._object.acquire() if is_remote(self._path) else contextlib.nullcontext()
        count = lines = last = damaged = 0
        kept_seconds = all_seconds = 0.0
        with ownership as bucket_object:
            try:
                for _, rows in read_chunks(path):
                    damaged = damaged or (lines + rows.index(None) + 1 if None in rows else 0)
                    lines += len(rows)
                    whole = [row for row in rows if row is not None]
                    kept = [row for row in whole if row["step"] <= step]
                    count, last = count + len(kept), kept[-1]["step"] if kept else last
                    kept_seconds, all_seconds = _last_seconds(kept, kept_seconds), _last_seconds(whole, all_seconds)
            except FileNotFoundError:
                pass  # it has no rows
            except OSError as error:
                raise UserError(f"cannot read {path}: {error.strerror}; restore it from a copy") from error
            if count != expected and not accept_gap:
                where = f" (line {damaged} is damaged)" if damaged else ""
                raise UserError(
                    f"{path} has {count} of {expected} rows up to step {step}, the last of step {last}{where}: "
                    "restore the file from a copy, or resume without the lost rows with --accept-gap, which reports show"
                )
            if count < lines and bucket_object is not None:
                bucket_object.write(b"".join(_lines_up_to(path, step)))
            elif count < lines:
                with replace_atomically(Path(path)) as temporary, open(temporary, "wb") as written:
                    written.writelines(_lines_up_to(path, step))
        return CutRows(count, expected - count, all_seconds - kept_seconds)


def _last_seconds(rows: Sequence[Mapping[str, Any]], before: float) -> float:
    return next((row["seconds"] for row in reversed(rows) if isinstance(row.get("seconds"), int | float)), before)


def rows_in(path: epath.Path) -> Iterator[dict[str, Any]]:
    """One row after the other, up to the first damaged line; none if the file does not exist."""
    with contextlib.suppress(FileNotFoundError):
        for _, rows in read_chunks(path):
            yield from itertools.takewhile(lambda row: row is not None, rows)
            if None in rows:
                return


def read_chunks(path: epath.Path) -> Iterator[tuple[bytes, list[Any]]]:
    """Reads the file in pieces of whole lines, with the row in each line; None: the line is
    damaged, or has no end. Raises OSError where it cannot be read.
    """
    with _stream(path) as file:
        begun = b""
        while block := file.read(_BLOCK):
            whole, newline, begun = (begun + block).rpartition(b"\n")
            if newline:
                yield whole + newline, _parse(whole + newline)
            if len(begun) > _LONGEST_LINE:
                break
        if begun:
            yield begun, [None]


def _lines_up_to(path: epath.Path, step: int) -> Iterator[bytes]:
    """The lines of the rows up to `step`."""
    for chunk, rows in read_chunks(path):
        lines = chunk.split(b"\n")
        yield b"".join(line + b"\n" for line, row in zip(lines, rows, strict=False) if row is not None and row["step"] <= step)


@contextlib.contextmanager
def _stream(path: epath.Path) -> Iterator[IO[bytes]]:
    """The file's lines. An object is read in one request: a run that is trained replaces it
    meanwhile, and what it was is then gone.
    """
    if not is_remote(path):
        with open_binary(path) as file:
            yield file
        return
    with bucket_objects(path) as objects:
        content = objects.cat_file(str(path))
    yield io.BytesIO(content)


def _parse(lines: bytes) -> list[dict[str, Any] | None]:
    rows: list[Any] = []
    with contextlib.suppress(*_DAMAGED):  # which line is, is seen below
        rows = _DECODER.decode_lines(lines)
    # A row in each line: every line begins and ends as an object does, and there are as many.
    if not len(rows) == lines.count(b"\n") == lines.count(b"}\n{") + 1 or not (lines.startswith(b"{") and lines.endswith(b"}\n")):
        return [_row(line) for line in lines.split(b"\n")[:-1]]
    with contextlib.suppress(KeyError, TypeError):
        if {*map(type, map(_STEP, rows))} == {int} and {*map(type, map(_SPLIT, rows))} == {str}:
            return rows
    return [row if _is_row(row) else None for row in rows]


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = _DECODER.decode(line)
    except _DAMAGED:
        return None
    return row if _is_row(row) else None


def _is_row(row: Any) -> bool:
    return type(row) is dict and type(row.get("step")) is int and type(row.get("split")) is str
