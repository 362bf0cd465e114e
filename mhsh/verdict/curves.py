"""The loss curves of a run, from its metrics.jsonl: read fast if every line is sound, else line by
line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import multiprocessing
import operator
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Annotated, Any

import msgspec
import numpy as np

from mhsh.run_folder import METRICS_FILE, RunFolder

AXES = ("step", "tokens", "flops", "seconds")
SPLITS = ("train", "validation")


@dataclasses.dataclass(frozen=True)
class Curve:
    """The logged numbers of one split on every x-axis. nan is a null in the file."""

    x: Mapping[str, np.ndarray]  # axis of AXES: cumulative steps, training tokens, training FLOPs, device seconds; all ascending
    loss: np.ndarray  # nats per predicted token
    metrics: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)  # every other number that these rows hold

    def __len__(self) -> int:
        return len(self.loss)


@dataclasses.dataclass(frozen=True)
class LoggedCurves:
    """The rows of a metrics.jsonl up to the first that is damaged or would draw a wrong curve."""

    by_split: Mapping[str, Curve]  # for each of SPLITS; one without rows is empty
    batches: Mapping[str, np.ndarray]  # `step` of each training row that names its batch, and `checksum`, its digits as bytes
    validated: tuple[str, ...]  # the checksums of validation's batches, each once; empty where a validation row has none
    problems: tuple[str, ...]  # one line each, naming the file


_LONGEST_CHECKSUM = 64  # characters; longer strings are no checksums
_SKIPPED = "skipped"  # true in the rows whose update was not applied, absent from all others
_MOST_METRICS = 40  # a file with more is not one that training wrote


class _Row(msgspec.Struct, gc=False):
    """A row as training writes it, without its metrics but the loss. json decodes such rows alike,
    and decides about all others.
    """

    step: int
    split: str
    tokens: float | None = None
    flops: float | None = None
    seconds: float | None = None
    loss: float | msgspec.UnsetType | None = msgspec.UNSET
    batch: Annotated[str, msgspec.Meta(max_length=_LONGEST_CHECKSUM)] | None = None


@dataclasses.dataclass(frozen=True)
class _Columns:
    """The rows by column."""

    split: np.ndarray
    x: Mapping[str, np.ndarray]  # axis of AXES
    loss: np.ndarray  # nan where there is none
    measured: np.ndarray  # whether the row has a loss, even null
    checksum: np.ndarray  # of the batch; empty where there is none
    named: np.ndarray  # whether the row names its batch
    metrics: Mapping[str, np.ndarray]  # nan where a row has none


@functools.cache
def _decoder(metrics: tuple[str, ...]) -> msgspec.json.Decoder[Any]:
    """Of rows with these metrics, as m0, m1 and so on: their names may be any text."""
    fields = [(f"m{place}", bool | None if name == _SKIPPED else float | None, None) for place, name in enumerate(metrics)]
    rename = {f"m{place}": name for place, name in enumerate(metrics)}
    return msgspec.json.Decoder(msgspec.defstruct("_MetricsRow", fields, bases=(_Row,), gc=False, rename=rename))


_MUCH_BYTES = 200_000_000  # of metrics: two seconds' reading; starting the processes takes half a second


@contextlib.contextmanager
def reading(folders: Sequence[RunFolder]) -> Iterator[Callable[[], list[LoggedCurves]]]:
    """Starts `read_curves` of every folder, in several processes if there is much to read. Calling
    the result waits for it.

    The main module must be importable, as in every program that starts processes.
    """
    local = [folder.path / METRICS_FILE for folder in folders if not folder.is_remote]
    workers = min(len(local), os.cpu_count() or 1)
    if workers < 2 or sum(path.stat().length for path in local if path.exists()) < _MUCH_BYTES:
        yield lambda: [read_curves(folder) for folder in folders]
        return
    # A fork would copy the locks of other threads.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        # An interrupt is for the caller. The processes inherit the blocked signal from the start.
        heard = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            read = pool.map(read_curves, folders)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, heard)
        try:
            yield lambda: list(read)
        finally:
            # After an exception, do not wait for folders that were not begun.
            pool.shutdown(wait=False, cancel_futures=True)


def read_curves(folder: RunFolder) -> LoggedCurves:
    """Reads the file. A bad one raises nothing: `problems` says what is wrong.

    Decoding the fields above alone, all lines at once, took a tenth of the time of json.loads line
    by line; json.loads of all lines joined to one array took half.
    """
    blocks = folder.metrics_blocks()
    curves = read_sound(blocks)
    if curves is None:
        return read_by_line(folder)
    return dataclasses.replace(curves, problems=_problems(folder, blocks.problem, True, curves))


def read_sound(blocks: Iterable[bytes]) -> LoggedCurves | None:
    """The curves in whole lines of JSON, or None if training does not write such lines, or one
    would draw a wrong curve.
    """
    decoded = []
    for lines in blocks:
        columns = _decode(lines)
        if columns is None:
            return None
        decoded.append(columns)
    if not decoded:
        return None
    columns = _joined(decoded)
    return _curves(columns) if all(_ascends(columns, columns.split == name) for name in SPLITS) else None


def _decode(lines: bytes) -> _Columns | None:
    """The columns of whole lines of JSON, or None if training does not write such lines."""
    # Beyond ASCII, a skipped field may not be UTF-8, which json would notice.
    if not lines.isascii():
        return None
    try:
        ends = {split: _first_and_last(lines, split) for split in SPLITS}
        metrics = _metric_names([row for rows in ends.values() for row in rows])
        rows = _decoder(metrics).decode_lines(lines)
    except (msgspec.MsgspecError, RecursionError):
        return None
    # The decoder accepts two rows on one line; json, line by line, would not.
    content = np.frombuffer(lines, dtype=np.uint8)
    ends = np.flatnonzero(content == ord("\n"))
    if not len(rows) == len(ends) > 0 or not (content[np.concatenate([[0], ends[:-1] + 1])] == ord("{")).all():
        return None
    # Field by field takes a tenth less time than operator.attrgetter.
    values: dict[str, list[Any]] = {
        "step": [row.step for row in rows],
        "tokens": [row.tokens for row in rows],
        "flops": [row.flops for row in rows],
        "seconds": [row.seconds for row in rows],
        "split": [row.split for row in rows],
        "loss": [row.loss for row in rows],
        "batch": [row.batch for row in rows],
    }
    logged = {name: list(map(operator.attrgetter(f"m{place}"), rows)) for place, name in enumerate(metrics)}
    try:
        return _columns(values, logged)
    except (OverflowError, UnicodeEncodeError):  # an integer that no float holds; a checksum in escaped characters
        return None


def _first_and_last(lines: bytes, split: str) -> list[Any]:
    """The first and the last row of a split, decoded as any JSON."""
    mark = f'"split": "{split}"'.encode()
    places = {lines.find(mark), lines.rfind(mark)} - {-1}
    return [msgspec.json.decode(lines[lines.rfind(b"\n", 0, place) + 1 :].split(b"\n", 1)[0]) for place in sorted(places)]


def _metric_names(rows: Iterable[Any]) -> tuple[str, ...]:
    """The metrics of a file: every number in the first or the last row of a split, and _SKIPPED."""
    known = {"step", "split", "loss", "batch", _SKIPPED, *AXES}
    names = dict.fromkeys(key for row in rows if isinstance(row, dict) for key in row if key not in known and _is_number(row[key]))
    return (*list(names)[:_MOST_METRICS], _SKIPPED)


def read_by_line(folder: RunFolder) -> LoggedCurves:
    """The same with json, for files that may be damaged anywhere."""
    metrics = folder.read_metrics()
    rows, reason = _sound_rows(metrics.rows)
    values: dict[str, list[Any]] = {axis: [_float(row.get(axis)) for row in rows] for axis in AXES}
    values["split"] = [row["split"] for row in rows]
    values["loss"] = [_float(row["loss"]) if "loss" in row else msgspec.UNSET for row in rows]
    values["batch"] = [row["batch"] if _is_checksum(row.get("batch")) else None for row in rows]
    by_split = {split: [row for row in rows if row["split"] == split] for split in SPLITS}
    names = _metric_names(row for of_split in by_split.values() for row in (*of_split[:1], *of_split[-1:]))
    logged = {name: [_float(row.get(name)) if _is_number(row.get(name)) else None for row in rows] for name in names}
    logged[_SKIPPED] = [row.get(_SKIPPED) is True or None for row in rows]
    curves = _curves(_columns(values, logged))
    problem = f"{folder.path / METRICS_FILE} {reason}" if reason else metrics.problem
    return dataclasses.replace(curves, problems=_problems(folder, problem, bool(rows), curves))


def _problems(folder: RunFolder, problem: str | None, has_rows: bool, curves: LoggedCurves) -> tuple[str, ...]:
    problems = [problem] if problem else []
    if has_rows and not any(len(curve) for curve in curves.by_split.values()):
        problems.append(f"{folder.path / METRICS_FILE} holds no loss of the training or the validation split")
    return tuple(problems)


def _columns(values: Mapping[str, Sequence[Any]], metrics: Mapping[str, Sequence[Any]]) -> _Columns:
    """From each field's values. A loss is UNSET if the row has none, and None or nan if null."""
    measured = np.array([loss is not msgspec.UNSET for loss in values["loss"]], dtype=bool)
    losses = values["loss"] if measured.all() else [None if loss is msgspec.UNSET else loss for loss in values["loss"]]
    return _Columns(
        split=np.array(values["split"], dtype=object),
        x={axis: np.array(values[axis], dtype=np.float64) for axis in AXES},
        loss=np.array(losses, dtype=np.float64),
        measured=measured,
        # As bytes of one length: objects are slow to send from one process to another.
        checksum=np.array([batch or "" for batch in values["batch"]], dtype=np.bytes_),
        named=np.array([batch is not None for batch in values["batch"]], dtype=bool),
        metrics={name: np.array(column, dtype=np.float64) for name, column in metrics.items()},
    )


def _joined(blocks: Sequence[_Columns]) -> _Columns:
    names = dict.fromkeys(name for block in blocks for name in block.metrics)
    none = [np.full(len(block.loss), np.nan) for block in blocks]
    return _Columns(
        split=np.concatenate([block.split for block in blocks]),
        x={axis: np.concatenate([block.x[axis] for block in blocks]) for axis in AXES},
        loss=np.concatenate([block.loss for block in blocks]),
        measured=np.concatenate([block.measured for block in blocks]),
        checksum=np.concatenate([block.checksum for block in blocks]),
        named=np.concatenate([block.named for block in blocks]),
        metrics={
            name: np.concatenate([block.metrics.get(name, missing) for block, missing in zip(blocks, none, strict=True)])
            for name in names
        },
    )


def _curves(columns: _Columns) -> LoggedCurves:
    by_split = {}
    for name in SPLITS:
        kept = columns.measured & (columns.split == name)
        metrics = {metric: values[kept] for metric, values in columns.metrics.items() if np.isfinite(values[kept]).any()}
        by_split[name] = Curve({axis: columns.x[axis][kept] for axis in AXES}, columns.loss[kept], metrics)
    named = columns.named & (columns.split == "train")
    validation = columns.split == "validation"
    validated = sorted(set(columns.checksum[validation].tolist()))
    return LoggedCurves(
        by_split,
        {"step": columns.x["step"][named], "checksum": columns.checksum[named]},
        tuple(each.decode() for each in validated) if columns.named[validation].all() else (),
        (),
    )


def _ascends(columns: _Columns, rows: np.ndarray) -> bool:
    if not (np.diff(columns.x["step"][rows]) > 0).all():
        return False
    return all((np.diff(x[rows & np.isfinite(x)]) >= 0).all() for x in columns.x.values())


def _sound_rows(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], str | None]:
    """The rows before the first that would draw a wrong curve, and what is wrong with it."""
    last: dict[tuple[str, str], int | float] = {}
    for index, row in enumerate(rows):
        for axis in ("loss", *AXES):
            value = row.get(axis)
            if value is None:
                continue
            if not _is_number(value):
                return _before(rows, index, f"{axis} is no number")
            place, before = _float(value), last.get((row["split"], axis))
            if axis == "loss" or row["split"] not in SPLITS or math.isnan(place):
                continue
            if before is not None and place < _float(before):
                return _before(rows, index, f"{axis if axis != 'step' else 'steps'} go back from {before} to {value}")
            if before is not None and place == _float(before) and axis == "step":
                return _before(rows, index, f"step {value} is there twice")
            last[row["split"], axis] = value
    return list(rows), None


def _before(rows: Sequence[Mapping[str, Any]], index: int, reason: str) -> tuple[list[Mapping[str, Any]], str]:
    return list(rows[:index]), f"line {index + 1}: {reason}; only the {index} rows before it are read"


def _is_checksum(value: Any) -> bool:
    return isinstance(value, str) and value.isascii() and len(value) <= _LONGEST_CHECKSUM


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _float(value: int | float | None) -> float:
    """The number; nan for null, infinity and integers beyond 1e308."""
    number = finite(value)
    return math.nan if number is None else number


def finite(value: int | float | None) -> float | None:
    """The number as a float; None if it is None or does not fit in one."""
    if value is None or (isinstance(value, int) and value.bit_length() > 1023):
        return None
    return float(value) if math.isfinite(value) else None
