"""The rows of a metrics.jsonl: appended, read, and cut where a run goes on from a checkpoint."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
from etils import epath

from mhsh.errors import UserError
from mhsh.storage.bucket import bucket_objects, is_remote
from mhsh.storage.files import opened, replacing
from mhsh.storage.guarded import GuardedObject, Taken

_DECODER = msgspec.json.Decoder()  # three times as fast as json


@dataclasses.dataclass(frozen=True)
class Metrics:
    """The rows of a metrics.jsonl up to its first damaged line, and what is wrong with the file, or
    None.
    """

    rows: list[dict[str, Any]]
    problem: str | None

    def series(self, split: str, x: str, y: str) -> tuple[list[float], list[float]]:
        """x and y of the rows of `split` (train or validation) that have both; null becomes nan."""
        rows = [row for row in self.rows if row["split"] == split and x in row and y in row]
        return [_number(row[x]) for row in rows], [_number(row[y]) for row in rows]


class CutRows(NamedTuple):
    """The rows that `RunFolder.cut_metrics` kept and those that are missing."""

    kept: int
    lost: int  # of those up to the step; 0 unless a gap is accepted
    dropped_seconds: float  # of training, after the step


class RowsFile:
    """The file metrics.jsonl of a run. In a bucket it is this process's from its first write on:
    what a process that has lost the run adds, cuts or replaces is refused.
    """

    def __init__(self, path: epath.Path) -> None:
        self._path = path
        self._guarded: GuardedObject | None = None  # in a bucket

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Appends rows, which need `step` and `split`. Numbers that are not finite become null. In
        a bucket, rows of a call that has failed are given again, before those that are new.

        Raises:
          UserError: another process has taken the run.
        """
        finite = ({key: _finite_or_none(value) for key, value in row.items()} for row in rows)
        lines = "".join(json.dumps(row, allow_nan=False) + "\n" for row in finite)
        if is_remote(self._path):
            with self._own() as owned:
                owned.append(lines.encode())
        else:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(lines)

    def cut(self, step: int, expected: int, accept_gap: bool) -> CutRows:
        """Drops the rows after `step`, which a resumed run logs again, and damaged lines.

        Args:
          expected: how many rows there were up to `step` when its checkpoint was saved.
          accept_gap: whether to go on without rows that are lost.

        Raises:
          UserError: rows up to `step` are lost, or the file cannot be read (it is unchanged), or
            another process has taken the run.
        """
        if not is_remote(self._path):
            return self._cut(step, expected, accept_gap, self._keep)
        with self._own() as owned:
            return self._cut(step, expected, accept_gap, lambda kept: owned.write(b"".join(kept)))

    @contextlib.contextmanager
    def _own(self) -> Iterator[GuardedObject]:
        try:
            if self._guarded is None:
                taken = GuardedObject(str(self._path))
                taken.take()
                self._guarded = taken
            yield self._guarded
        except Taken:
            raise UserError(
                f"another process has taken this run, and writes {self._path}; this one has stopped and changed nothing of it: "
                "let that one train, or stop it and run the same command again"
            ) from None

    def _cut(self, step: int, expected: int, accept_gap: bool, keep: Callable[[Iterator[bytes]], object]) -> CutRows:
        path = self._path
        count = lines = last = damaged = 0
        kept_seconds = all_seconds = 0.0
        try:
            with _stream(path) as file:
                for lines, line in enumerate(file, 1):
                    row = _parse_row(line)
                    if row is None:
                        damaged = damaged or lines
                        continue
                    if isinstance(row.get("seconds"), int | float):
                        all_seconds = row["seconds"]
                    if row["step"] <= step:
                        count, last, kept_seconds = count + 1, row["step"], all_seconds
        except FileNotFoundError:
            pass  # it has no rows
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}; restore it from a copy") from error
        if count != expected and not accept_gap:
            where = f" (line {damaged} is damaged)" if damaged else ""
            raise UserError(
                f"{path} has {count} of {expected} rows up to step {step}, the last of step {last}{where}: "
                "restore the file from a copy, or go on without the lost rows by --accept-gap, which the report shows"
            )
        if count < lines:
            with _stream(path) as file:
                keep(line for line in file if (row := _parse_row(line)) is not None and row["step"] <= step)
        return CutRows(count, expected - count, all_seconds - kept_seconds)

    def _keep(self, lines: Iterator[bytes]) -> None:
        with replacing(Path(self._path)) as temporary, open(temporary, "wb") as written:
            written.writelines(lines)


def read_rows(path: epath.Path) -> Metrics:
    """All rows up to the first damaged line. `problem` names that line, or a missing file."""
    rows: list[dict[str, Any]] = []
    try:
        with _stream(path) as file:
            for line in file:
                row = _parse_row(line)
                if row is None:
                    damage = "is damaged" if line.endswith(b"\n") else "is cut short"
                    return Metrics(rows, f"{path} line {len(rows) + 1} {damage}; only the {len(rows)} rows before it are read")
                rows.append(row)
    except FileNotFoundError:
        return Metrics([], f"{path} does not exist; the run has logged nothing")
    except OSError as error:
        return Metrics(rows, f"cannot read {path}: {error.strerror}")
    return Metrics(rows, None if rows else f"{path} is empty; the run has logged nothing")


@contextlib.contextmanager
def _stream(path: epath.Path) -> Iterator[IO[bytes]]:
    """The file's lines. An object is read in one request: a run that is trained replaces it
    meanwhile, and what it was is then gone.
    """
    if not is_remote(path):
        with opened(path) as file:
            yield file
        return
    with bucket_objects(path) as objects:
        content = objects.cat_file(str(path))
    yield io.BytesIO(content)


def _parse_row(line: bytes) -> dict[str, Any] | None:
    """The row in a line of metrics.jsonl; None where the line is damaged or has no end."""
    try:
        row = _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # RecursionError: thousands of nested brackets
        return None
    is_row = isinstance(row, dict) and type(row.get("step")) is int and isinstance(row.get("split"), str)
    return row if is_row and line.endswith(b"\n") else None


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _finite_or_none(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite_or_none(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
