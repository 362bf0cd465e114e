"""Run folders, loaded for a report: names, configs, records and loss curves, and what is wrong with each."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from mhsh.config import Config
from mhsh.errors import UserError
from mhsh.report.wording import printable
from mhsh.run_folder import RunFolder, absolute, is_remote, vocab_file

AXES = ("step", "tokens", "flops", "seconds")
SPLITS = ("train", "validation")


@dataclasses.dataclass(frozen=True)
class Curve:
    """The loss of one split, a value a logged row, against every x-axis; nan stands for a null in the file."""

    x: Mapping[str, np.ndarray]  # axis of AXES: cumulative steps, training tokens, training FLOPs, device seconds
    loss: np.ndarray  # nats per predicted token

    def __len__(self) -> int:
        return len(self.loss)


@dataclasses.dataclass(frozen=True)
class Run:
    """One run folder as a report sees it."""

    name: str  # printable, and unlike that of every other run of the report
    path: epath.Path
    config: Config
    record: Mapping[str, Any]  # run.json; empty where it is missing or damaged
    curves: Mapping[str, Curve]  # by split; a split without rows is an empty curve
    vocabulary: str | None  # SHA-256 of the vocab.txt in the folder; None where there is none
    problems: tuple[str, ...]  # one line each, naming the file

    @property
    def drawable(self) -> bool:
        """Whether there is any logged loss, finite or not, to draw."""
        return any(len(curve) for curve in self.curves.values())

    def recorded(self, *keys: str) -> Any:
        """The value in run.json under nested keys; None where the record does not hold it."""
        value: Any = self.record
        for key in keys:
            if not isinstance(value, Mapping):
                return None
            value = value.get(key)
        return value

    def recorded_number(self, *keys: str) -> float | None:
        """Like `recorded`, but None for everything that is no finite number."""
        value = self.recorded(*keys)
        return _finite(value) if _is_number(value) else None


@dataclasses.dataclass(frozen=True)
class Loaded:
    """The runs that could be opened, and a line for every folder that could not."""

    runs: tuple[Run, ...]
    refused: tuple[str, ...]


def load_runs(folders: Sequence[str | os.PathLike[str]]) -> Loaded:
    """Opens every folder once, in the order given. Nothing is raised for a bad folder: it gets a line in `refused`."""
    paths: list[epath.Path] = []
    refused: list[str] = []
    seen: set[str] = set()
    for folder in folders:
        # absolute, not resolved: a link's own name is the one the user gave it.
        path = absolute(folder)
        place = str(path) if is_remote(path) else os.path.realpath(path)
        if place in seen:
            refused.append(f"{folder} is named twice (perhaps through a link); it is drawn once")
            continue
        seen.add(place)
        paths.append(path)
    opened: list[tuple[epath.Path, Config]] = []
    for path in paths:
        try:
            opened.append((path, _read_config(path)))
        except UserError as error:
            refused.append(str(error))
    names = _distinct_names([path for path, _ in opened])
    runs = tuple(_load(name, path, config) for name, (path, config) in zip(names, opened, strict=True))
    return Loaded(runs, tuple(printable(line) for line in refused))


def _read_config(path: epath.Path) -> Config:
    if not path.is_dir():
        raise UserError(f"{path} is no folder; give the folder that --workdir named")
    try:
        return RunFolder(path).read_config()
    except UserError as error:
        if str(path) in str(error):
            raise
        raise UserError(f"{path / 'config.json'}: {error}") from error


def _load(name: str, path: epath.Path, config: Config) -> Run:
    folder = RunFolder(path)
    problems: list[str] = []
    record: Mapping[str, Any] = {}
    if folder.has_run_record():
        try:
            record = folder.read_run()
        except UserError as error:
            problems.append(str(error))
    metrics = folder.read_metrics()
    sound, problem = _sound_rows(metrics.rows)
    if problem:
        problems.append(f"{path / 'metrics.jsonl'} {problem}")
    elif metrics.problem:
        problems.append(metrics.problem)
    curves = {split: _curve([row for row in sound if row["split"] == split]) for split in SPLITS}
    if sound and not any(len(curve) for curve in curves.values()):
        problems.append(f"{path / 'metrics.jsonl'} holds no loss of the training or the validation split")
    vocabulary = None
    vocab_path = path / vocab_file(config)
    if vocab_path.exists():
        try:
            vocabulary = hashlib.sha256(vocab_path.read_bytes()).hexdigest()
        except OSError as error:
            problems.append(f"cannot read {vocab_path}: {error.strerror}")
    return Run(name, path, config, record, curves, vocabulary, tuple(printable(line) for line in problems))


def _sound_rows(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], str | None]:
    """The rows before the first one that would draw a wrong curve, and why it would."""
    last = dict.fromkeys(SPLITS, -1)
    for index, row in enumerate(rows):
        for key in ("loss", *AXES):
            value = row.get(key)
            if value is not None and not _is_number(value):
                return list(rows[:index]), f"line {index + 1}: {key} is no number; only the {index} rows before it are read"
        split, step = row["split"], row["step"]
        if split in last:
            if step < last[split]:
                reason = f"steps go back from {last[split]} to {step}; only the {index} rows before it are read"
                return list(rows[:index]), f"line {index + 1}: {reason}"
            last[split] = step
    return list(rows), None


def _curve(rows: Sequence[Mapping[str, Any]]) -> Curve:
    rows = [row for row in rows if "loss" in row]
    x = {axis: np.array([_float(row.get(axis)) for row in rows], dtype=np.float64) for axis in AXES}
    return Curve(x, np.array([_float(row["loss"]) for row in rows], dtype=np.float64))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _float(value: int | float | None) -> float:
    """nan for null, and for everything else that no float holds (infinity, an integer beyond 1e308)."""
    number = _finite(value)
    return math.nan if number is None else number


def _finite(value: int | float | None) -> float | None:
    if value is None or (isinstance(value, int) and value.bit_length() > 1023):
        return None
    return float(value) if math.isfinite(value) else None


def _distinct_names(paths: Sequence[epath.Path]) -> list[str]:
    """The shortest ends of the paths that differ: a folder's own name, with as many parents as it takes."""
    depths = [1] * len(paths)

    def name(index: int) -> str:
        return "/".join(part.strip("/") for part in paths[index].parts[-depths[index] :]) or "/"

    while True:
        names = [name(index) for index in range(len(paths))]
        clashing = [i for i in range(len(paths)) if names.count(names[i]) > 1 and depths[i] < len(paths[i].parts)]
        if not clashing:
            break
        for index in clashing:
            depths[index] += 1
    shown: list[str] = []
    for text in map(printable, names):
        # Names that differ only in what cannot be shown still need to be told apart.
        number = next(n for n in range(1, len(paths) + 1) if (text if n == 1 else f"{text} ({n})") not in shown)
        shown.append(text if number == 1 else f"{text} ({number})")
    return shown
