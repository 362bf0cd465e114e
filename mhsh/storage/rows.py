"""The rows of a run, metrics.jsonl: appended, cut where a run goes on from a checkpoint, and read,
one after the other or into columns.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from etils import epath
from jaxtyping import Bool, Float, Int, Shaped

from mhsh.errors import UserError
from mhsh.storage.bucket import GuardedObject, bucket_objects, is_remote
from mhsh.storage.files import open_binary, replace_atomically
from mhsh.text import to_json

Columns: TypeAlias = Mapping[str, np.ndarray]

_DECODER = msgspec.json.Decoder()  # three times as fast as json
_DAMAGED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # the last: thousands of nested brackets
_BLOCK = 1 << 16  # bytes read at once
_LONGEST_LINE = 1 << 24  # bytes; what is longer is not a row
_LONGEST_TEXT = 64  # characters; longer strings are no checksums


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


def read_chunks(path: epath.Path) -> Iterator[tuple[bytes, list[Any]]]:
    """Reads the file in pieces of whole lines, with the row in each line; None: the line is
    damaged, or has no end. Raises OSError where it cannot be read.
    """
    opened: contextlib.AbstractContextManager[IO[bytes]]
    if is_remote(path):
        # In one request: a run that is trained replaces the object meanwhile, and what it was is
        # then gone.
        with bucket_objects(path) as objects:
            opened = io.BytesIO(objects.cat_file(str(path)))
    else:
        opened = open_binary(path)
    with opened as file:
        begun = b""
        while block := file.read(_BLOCK):
            whole, newline, begun = (begun + block).rpartition(b"\n")
            if newline:
                yield whole + newline, [_row(line) for line in whole.split(b"\n")]
            if len(begun) > _LONGEST_LINE:
                break
        if begun:
            yield begun, [None]


def _lines_up_to(path: epath.Path, step: int) -> Iterator[bytes]:
    """The lines of the rows up to `step`."""
    for chunk, rows in read_chunks(path):
        lines = chunk.split(b"\n")
        yield b"".join(line + b"\n" for line, row in zip(lines, rows, strict=False) if row is not None and row["step"] <= step)


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = _DECODER.decode(line)
    except _DAMAGED:
        return None
    is_row = type(row) is dict and type(row.get("step")) is int and type(row.get("split")) is str
    return row if is_row else None


class _Block(NamedTuple):
    """Consecutive rows that have one split and the same keys. The kind of a column is its dtype:
    float64, bool, bytes or, for lists, object. Where its values are of several kinds, it has those
    that are numbers.
    """

    split: str
    lines: Int[np.ndarray, " n"]  # from 0
    columns: Columns


class Metrics:
    """The rows of a metrics.jsonl up to its first damaged line, and what is wrong with the file, or
    None.
    """

    def __init__(self, blocks: Sequence[_Block], non_numbers: Mapping[str, int], count: int, problem: str | None) -> None:
        """`non_numbers`: by key, the first line that has something else than a number or null."""
        self._blocks, self.non_numbers, self.count, self.problem = blocks, non_numbers, count, problem

    def truncate(self, line: int, problem: str) -> Metrics:
        """The rows before `line`, counted from 0; `problem` says why the rest is left out."""
        blocks = []
        for block in self._blocks:
            kept = block.lines < line
            blocks.append(_Block(block.split, block.lines[kept], {key: values[kept] for key, values in block.columns.items()}))
        return Metrics([block for block in blocks if len(block.lines)], self.non_numbers, line, problem)

    def keys(self, split: str) -> list[str]:
        """The keys of the rows of a split, in the order in which they appear."""
        return [*dict.fromkeys(key for block in self._blocks if block.split == split for key in block.columns)]

    def lines(self, split: str, having: Sequence[str] = ()) -> Int[np.ndarray, " n"]:
        """The lines, from 0, of the rows of a split (train or validation) that have these keys."""
        return np.sort(_concatenate([block.lines for block in self._select(split, having)], np.int64))

    def numbers(self, split: str, key: str, having: Sequence[str] = ()) -> Float[np.ndarray, " n"]:
        """A column of the rows that `lines` names. nan: null, absent, no number, or none that a
        float holds.
        """
        return self._column(split, key, having, np.dtype(np.float64), math.nan)

    def flags(self, split: str, key: str, having: Sequence[str] = ()) -> Bool[np.ndarray, " n"]:
        """A column of flags, as `numbers` is one of numbers. False: absent, or no truth value."""
        return self._column(split, key, having, np.dtype(bool), False)

    def texts(self, split: str, key: str, having: Sequence[str] = ()) -> Shaped[np.ndarray, " n"]:
        """A column of texts, as `numbers` is one of numbers. Empty: absent, no text, or one that is
        long or not ASCII.
        """
        return self._column(split, key, having, np.dtype(np.bytes_), b"")

    def lists(self, split: str, key: str, having: Sequence[str] = ()) -> list[list[Any] | None]:
        """A column of lists, as `numbers` is one of numbers. None: absent, or no list."""
        return self._column(split, key, having, np.dtype(object), None).tolist()

    def series(self, split: str, x: str, y: str) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """x and y of the rows of `split` that have both; null becomes nan."""
        return self.numbers(split, x, (x, y)), self.numbers(split, y, (x, y))

    def _select(self, split: str, having: Sequence[str]) -> list[_Block]:
        return [block for block in self._blocks if block.split == split and all(key in block.columns for key in having)]

    def _column(self, split: str, key: str, having: Sequence[str], kind: np.dtype[Any], absent: object) -> np.ndarray:
        blocks = self._select(split, having)
        parts: list[np.ndarray] = []
        for block in blocks:
            values = block.columns.get(key)
            if values is None or values.dtype.kind != kind.kind:
                values = np.full(len(block.lines), absent, kind)
            parts.append(values)
        values, lines = _concatenate(parts, kind), _concatenate([block.lines for block in blocks], np.int64)
        return values if (np.diff(lines) > 0).all() else values[np.argsort(lines, kind="stable")]


def read_metrics(path: epath.Path) -> Metrics:
    """All rows up to the first damaged line. `problem` names that line, or a missing file."""
    blocks: list[_Block] = []
    non_numbers: dict[str, int] = {}
    count = 0
    try:
        for chunk, rows in read_chunks(path):
            sound = rows.index(None) if None in rows else len(rows)
            groups: dict[tuple[str, ...], tuple[list[int], list[Any]]] = {}  # lines, and the values of all rows
            for line, row in enumerate(rows[:sound], count):
                lines, values = groups.setdefault((row["split"], *row), ([], []))
                lines.append(line)
                values += row.values()
            blocks += [_block(split, keys, *lines_and_values, non_numbers) for (split, *keys), lines_and_values in groups.items()]
            count += sound
            if sound < len(rows):
                damage = "is cut short" if sound == len(rows) - 1 and not chunk.endswith(b"\n") else "is damaged"
                return Metrics(
                    blocks, non_numbers, count, f"{path} line {count + 1} {damage}; only the {count} rows before it are read"
                )
    except FileNotFoundError:
        return Metrics([], {}, 0, f"{path} does not exist; the run has logged nothing")
    except OSError as error:
        return Metrics(blocks, non_numbers, count, f"cannot read {path}: {error.strerror}")
    return Metrics(blocks, non_numbers, count, None if count else f"{path} is empty; the run has logged nothing")


def _block(split: str, keys: Sequence[str], lines: Sequence[int], row_values: Sequence[Any], non_numbers: dict[str, int]) -> _Block:
    """A block of rows with the same keys, given one row after the other. Writes to `non_numbers`
    where a value is not a number.
    """
    columns = {}
    for place, key in enumerate(keys):
        values = row_values[place :: len(keys)]
        columns[key] = _column(values)
        if columns[key].dtype.kind != "f" or not _are_numbers(values):
            first = next(line for line, value in zip(lines, values, strict=True) if not _are_numbers([value]))
            non_numbers[key] = min(first, non_numbers.get(key, first))
    return _Block(split, np.array(lines, np.int64), columns)


def _column(values: Sequence[Any]) -> np.ndarray:
    kinds = set(map(type, values))
    if kinds == {bool}:
        return np.array(values, bool)
    if kinds == {str}:
        plain = [len(value) <= _LONGEST_TEXT and value.isascii() and value.isprintable() for value in values]
        return np.array([value if is_plain else "" for value, is_plain in zip(values, plain, strict=True)], np.bytes_)
    if kinds == {list}:
        return np.fromiter(values, object, len(values))
    try:
        numbers = np.array(values if _are_numbers(values) else [*map(number, values)], np.float64)
    except OverflowError:  # of an integer
        numbers = np.array([*map(number, values)], np.float64)
    numbers[~np.isfinite(numbers)] = math.nan
    return numbers


def number(value: Any) -> float:
    """A number of a file as a float; nan: null, beyond 1e308, or no number."""
    try:
        return float(value) if type(value) in (int, float) else math.nan
    except OverflowError:
        return math.nan


def _are_numbers(values: Iterable[Any]) -> bool:
    """Whether all are numbers or null."""
    return {int, float, type(None)}.issuperset(map(type, values))


def _concatenate(parts: Sequence[np.ndarray], kind: np.typing.DTypeLike) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0, kind)
