"""The loss curves of a run, read out of its metrics.jsonl: fast where every line is sound, line by line where one may not be."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from mhsh.run_folder import METRICS_FILE, RunFolder

AXES = ("step", "tokens", "flops", "seconds")
SPLITS = ("train", "validation")


@dataclasses.dataclass(frozen=True)
class Curve:
    """The loss of one split, a value a logged row, against every x-axis; nan stands for a null in the file."""

    x: Mapping[str, np.ndarray]  # axis of AXES: cumulative steps, training tokens, training FLOPs, device seconds; all ascending
    loss: np.ndarray  # nats per predicted token

    def __len__(self) -> int:
        return len(self.loss)


@dataclasses.dataclass(frozen=True)
class Curves:
    """What a report reads of a metrics.jsonl: the rows before the first that is damaged or would draw a wrong curve."""

    by_split: Mapping[str, Curve]  # for each of SPLITS; one without rows is empty
    batches: Mapping[str, np.ndarray]  # `step` of each training row that names its batch, and `checksum`, 16 hexadecimal digits
    problems: tuple[str, ...]  # one line each, naming the file


class _Row(msgspec.Struct, gc=False):
    """A row as training writes it. What this decodes, json decodes too and alike; of the rest json has the say."""

    step: int
    split: str
    tokens: float | None = None
    flops: float | None = None
    seconds: float | None = None
    loss: float | msgspec.UnsetType | None = msgspec.UNSET
    batch: str | None = None


_DECODER = msgspec.json.Decoder(_Row)


def read_curves(folder: RunFolder) -> Curves:
    """Reads the file. Nothing is raised for a bad one: `problems` says what is wrong.

    Decoding all lines at once, for the fields above alone, took a seventh of the time of json.loads line by line; json.loads of
    all lines joined to one array took half.
    """
    lines, problem = folder.read_metrics_lines()
    curves = read_sound(lines)
    if curves is None:
        return read_by_line(folder)
    return dataclasses.replace(curves, problems=_problems(folder, problem, rows=lines.count(b"\n"), curves=curves))


def read_sound(lines: bytes) -> Curves | None:
    """The curves in whole lines of JSON, or None if one of them is not what training writes, or would draw a wrong curve."""
    number = lines.count(b"\n")
    # One object a line: not two in one, and none over two.
    if lines and not (lines.isascii() and lines.startswith(b"{") and lines.count(b"}\n{") == number - 1):
        return None
    try:
        rows = _DECODER.decode_lines(lines)
        if len(rows) != number:
            return None
        values: dict[str, list[Any]] = {axis: [getattr(row, axis) for row in rows] for axis in AXES}
        losses = [row.loss for row in rows]
        columns = {axis: np.array(column, dtype=np.float64) for axis, column in values.items()}
    except (msgspec.MsgspecError, RecursionError, OverflowError):
        return None
    curves = _curves([row.split for row in rows], columns, losses, [row.batch for row in rows])
    return curves if all(_ascends(curve) for curve in curves.by_split.values()) else None


def read_by_line(folder: RunFolder) -> Curves:
    """The same by json, for files that may be damaged anywhere."""
    metrics = folder.read_metrics()
    rows, reason = _sound_rows(metrics.rows)
    columns = {axis: np.array([_float(row.get(axis)) for row in rows], dtype=np.float64) for axis in AXES}
    losses = [_float(row["loss"]) if "loss" in row else msgspec.UNSET for row in rows]
    batches = [row["batch"] if isinstance(row.get("batch"), str) else None for row in rows]
    curves = _curves([row["split"] for row in rows], columns, losses, batches)
    problem = f"{folder.path / METRICS_FILE} {reason}" if reason else metrics.problem
    return dataclasses.replace(curves, problems=_problems(folder, problem, len(rows), curves))


def _problems(folder: RunFolder, problem: str | None, rows: int, curves: Curves) -> tuple[str, ...]:
    problems = [problem] if problem else []
    if rows and not any(len(curve) for curve in curves.by_split.values()):
        problems.append(f"{folder.path / METRICS_FILE} holds no loss of the training or the validation split")
    return tuple(problems)


def _curves(
    splits: Sequence[str], columns: Mapping[str, np.ndarray], losses: Sequence[Any], batches: Sequence[str | None]
) -> Curves:
    """All arguments have an entry a row; a loss is UNSET where the row has none, None or nan where it is null."""
    split = np.array(splits, dtype=object)
    measured = np.array([loss is not msgspec.UNSET for loss in losses], dtype=bool)
    loss = np.array([None if loss is msgspec.UNSET else loss for loss in losses], dtype=np.float64)
    by_split = {}
    for name in SPLITS:
        kept = measured & (split == name)
        by_split[name] = Curve({axis: columns[axis][kept] for axis in AXES}, loss[kept])
    named = (split == "train") & np.array([batch is not None for batch in batches], dtype=bool)
    checksums = np.array(batches, dtype=object)[named]
    return Curves(by_split, {"step": columns["step"][named], "checksum": checksums}, ())


def _ascends(curve: Curve) -> bool:
    if not (np.diff(curve.x["step"]) > 0).all():
        return False
    return all((np.diff(x[np.isfinite(x)]) >= 0).all() for x in curve.x.values())


def _sound_rows(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], str | None]:
    """The rows before the first one that would draw a wrong curve, and why it would."""
    last: dict[tuple[str, str], int | float] = {}
    for index, row in enumerate(rows):
        for axis in ("loss", *AXES):
            value = row.get(axis)
            if value is None:
                continue
            if not _is_number(value):
                return _before(rows, index, f"{axis} is no number")
            before = last.get((row["split"], axis))
            if axis == "loss" or row["split"] not in SPLITS or math.isnan(value):
                continue
            if before is not None and value < before:
                return _before(rows, index, f"{axis if axis != 'step' else 'steps'} go back from {before} to {value}")
            if before == value and axis == "step":
                return _before(rows, index, f"step {value} is there twice")
            last[row["split"], axis] = value
    return list(rows), None


def _before(rows: Sequence[Mapping[str, Any]], index: int, reason: str) -> tuple[list[Mapping[str, Any]], str]:
    return list(rows[:index]), f"line {index + 1}: {reason}; only the {index} rows before it are read"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _float(value: int | float | None) -> float:
    """nan for null, and for everything else that no float holds (infinity, an integer beyond 1e308)."""
    number = finite(value)
    return math.nan if number is None else number


def finite(value: int | float | None) -> float | None:
    """The number as a float; None where it is None, or no float holds it."""
    if value is None or (isinstance(value, int) and value.bit_length() > 1023):
        return None
    return float(value) if math.isfinite(value) else None
