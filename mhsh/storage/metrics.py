"""The rows of a metrics.jsonl in memory: a column for each split and key."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from etils import epath
from jaxtyping import Bool, Float, Int, Shaped

from mhsh.storage.rows import read_chunks

Columns: TypeAlias = Mapping[str, np.ndarray]

_LONGEST_TEXT = 64  # characters; longer strings are no checksums
_MOST_KINDS = 256  # of rows, by their keys; a run has a handful


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
    kinds: set[tuple[str, ...]] = set()
    count = 0
    try:
        for chunk, rows in read_chunks(path):
            sound = rows.index(None) if None in rows else len(rows)
            groups: dict[tuple[str, ...], tuple[list[int], list[Any]]] = {}  # lines, and the values of all rows
            for line, row in enumerate(rows[:sound], count):
                lines, values = groups.setdefault((row["split"], *row), ([], []))
                lines.append(line)
                values += row.values()
            kinds |= groups.keys()
            if len(kinds) > _MOST_KINDS:
                problem = f"{path} has more kinds of rows after line {count} than any run; only the {count} rows before it are read"
                return Metrics(blocks, non_numbers, count, problem)
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
        plain = max(map(len, values)) <= _LONGEST_TEXT and _is_plain("".join(values))
        return np.array(
            values if plain else [value if len(value) <= _LONGEST_TEXT and _is_plain(value) else "" for value in values], np.bytes_
        )
    if kinds == {list}:
        return np.fromiter(values, object, len(values))
    try:
        plain_values = values if _are_numbers(values) else [value if _are_numbers([value]) else None for value in values]
        numbers = np.array(plain_values, np.float64)
    except OverflowError:  # of an integer
        numbers = np.array([number(value) for value in values], np.float64)
    numbers[~np.isfinite(numbers)] = math.nan
    return numbers


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


def number(value: Any) -> float:
    """A number of a file as a float; nan: null, beyond 1e308, or no number."""
    is_number = _are_numbers([value]) and value is not None and not (isinstance(value, int) and value.bit_length() > 1023)
    return float(value) if is_number else math.nan


def _are_numbers(values: Iterable[Any]) -> bool:
    """Whether all are numbers or null."""
    return {int, float, type(None)}.issuperset(map(type, values))


def _concatenate(parts: Sequence[np.ndarray], kind: np.typing.DTypeLike) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0, kind)
