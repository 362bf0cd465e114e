"""Run folders loaded for a report: names, configs, records, loss curves and problems."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from mhsh.config.resolve import from_dict
from mhsh.config.schema import Config
from mhsh.errors import UserError
from mhsh.files import absolute, check_bucket, is_remote
from mhsh.run_folder import RunFolder, recorded_lineage, vocab_file
from mhsh.text import sanitize
from mhsh.verdict.curves import AXES, Curve, LoggedCurves, finite, reading

OWN_STEP = "own step"  # beside AXES where these count what a run started from: the step of the run itself


@dataclasses.dataclass(frozen=True)
class Ancestor:
    """A run that another started from, up to the step that was taken. None: not recorded."""

    step: int
    tokens: int | float | None
    flops: int | float | None
    seconds: int | float | None
    fingerprint: str | None  # of its data
    trained_by: Mapping[str, Any]  # the `code` and the `numerics` of its run.json
    config: Config | None  # None also where this version cannot read it
    problem: str  # why it cannot; empty where it can


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a report."""

    name: str  # sanitized and unique in the report
    path: epath.Path
    config: Config
    record: Mapping[str, Any]  # run.json; empty if it is missing or damaged
    curves: Mapping[str, Curve]  # by split; a split without rows is an empty curve
    batches: Mapping[str, np.ndarray]  # `step` and `checksum` of the training rows that name their batch
    validated: tuple[str, ...]  # the checksums of validation's batches, each once; empty where a validation row has none
    vocabulary: str | None  # SHA-256 of the folder's vocab.txt; None if there is none
    problems: tuple[str, ...]  # one line each, naming the file

    @property
    def drawable(self) -> bool:
        """Whether any loss was logged, finite or not."""
        return any(len(curve) for curve in self.curves.values())

    @functools.cached_property
    def lineage(self) -> tuple[Ancestor, ...]:
        """The runs that it started from, nearest first (mhsh.run_folder.recorded_lineage)."""
        return tuple(map(_ancestor, recorded_lineage(self.record)))

    def recorded(self, *keys: str) -> Any:
        """The value in run.json under nested keys; None if it is missing."""
        value: Any = self.record
        for key in keys:
            if not isinstance(value, Mapping):
                return None
            value = value.get(key)
        return value

    def recorded_number(self, *keys: str) -> float | None:
        """Like `recorded`, but None unless it is a finite number."""
        value = self.recorded(*keys)
        return finite(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


@dataclasses.dataclass(frozen=True)
class Loaded:
    """The opened runs, and a line for every folder that could not be opened."""

    runs: tuple[Run, ...]
    refused: tuple[str, ...]


def load_runs(folders: Sequence[str | os.PathLike[str]]) -> Loaded:
    """Opens the runs that `find_runs` finds. A bad folder raises nothing: it gets a line in
    `refused`.
    """
    with loading(folders) as loaded:
        return loaded()


def with_pretraining(loaded: Loaded) -> Loaded:
    """The runs with all that they started from counted on every x-axis: steps, tokens, FLOPs and
    device seconds. Where a run before did not record one of these, that axis is nan.
    """
    return dataclasses.replace(loaded, runs=tuple(map(_after_its_parents, loaded.runs)))


def _after_its_parents(run: Run) -> Run:
    spent = {axis: math.fsum(_known(getattr(each, axis)) for each in run.lineage) for axis in AXES}
    curves = {
        split: dataclasses.replace(curve, x={**{axis: curve.x[axis] + spent[axis] for axis in AXES}, OWN_STEP: curve.x["step"]})
        for split, curve in run.curves.items()
    }
    lost = [axis for axis in AXES if math.isnan(spent[axis])]
    lines = [f"{run.path}: the runs that it started from did not record {', '.join(lost)}; these axes leave it out"] if lost else []
    return dataclasses.replace(run, curves=curves, problems=(*run.problems, *map(sanitize, lines)))


def _known(value: int | float | None) -> float:
    return math.nan if value is None else float(value)


@contextlib.contextmanager
def loading(folders: Sequence[str | os.PathLike[str]]) -> Iterator[Callable[[], Loaded]]:
    """Starts to load the runs, as load_runs does. Calling the result waits for them."""
    paths, refused = find_runs(folders)
    opened: list[tuple[epath.Path, Config]] = []
    for path in paths:
        try:
            opened.append((path, RunFolder(path).read_config()))
        except UserError as error:
            refused.append(str(error))
    names = distinct_names([path for path, _ in opened])
    with reading([RunFolder(path) for path, _ in opened]) as curves:

        def loaded() -> Loaded:
            runs = (_load(name, path, config, read) for name, (path, config), read in zip(names, opened, curves(), strict=True))
            return Loaded(tuple(runs), tuple(sanitize(line) for line in refused))

        yield loaded


def find_runs(folders: Sequence[str | os.PathLike[str]]) -> tuple[list[epath.Path], list[str]]:
    """Every run once, in the order of `folders`: each is a run, or holds runs one or two levels
    below, which come in the order of their names. And a line for each that is neither.
    """
    found: dict[str, epath.Path] = {}
    refused: list[str] = []
    for folder in map(absolute, folders):
        try:
            for path in _runs_in(folder):
                # The name is not resolved: a link has the name that its user gave it.
                found.setdefault(str(path) if is_remote(path) else os.path.realpath(path), path)
        except UserError as error:
            refused.append(str(error))
        except OSError as error:
            refused.append(f"cannot read {error.filename}: {error.strerror}; give folders that can be read")
    return list(found.values()), refused


def _runs_in(folder: epath.Path) -> list[epath.Path]:
    check_bucket(folder)
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; give the folder that --workdir named")
    if (folder / "config.json").exists():
        return [folder]
    runs, others = [], [folder]
    for _ in range(2):
        below = [path for other in others for path in other.iterdir() if path.is_dir()]
        begun = [RunFolder(path).has_begun() for path in below]
        runs += itertools.compress(below, begun)
        others = [path for path, has_begun in zip(below, begun, strict=True) if not has_begun]
    if not runs:
        raise UserError(
            f"{folder} holds no run: no config.json is in it, and none beside a run.json, metrics.jsonl or checkpoint in the "
            "folders one and two levels below; give the folder that --workdir named, or one that holds such folders"
        )
    return sorted(runs, key=_natural_order)


def _natural_order(path: epath.Path) -> list[str | int]:
    """A key for sorting in which 6 comes before 24."""
    return [int(part) if part.isdecimal() else part for part in re.split("([0-9]+)", str(path))]


def _load(name: str, path: epath.Path, config: Config, curves: LoggedCurves) -> Run:
    folder = RunFolder(path)
    problems: list[str] = []
    record: Mapping[str, Any] = {}
    if folder.has_run_record():
        try:
            record = folder.read_run()
            recorded_lineage(record)
        except UserError as error:
            problems.append(str(error))
            record = {name: value for name, value in record.items() if name != "started_from"}
    problems += curves.problems
    for step, rows in record.get("lost_rows", {}).items():
        problems.append(f"{path}: {rows} rows of metrics.jsonl up to step {step} are lost; the curve has a gap there")
    vocabulary = None
    try:
        vocabulary = folder.vocabulary_hash(config)
    except OSError as error:
        problems.append(f"cannot read {path / vocab_file(config)}: {error.strerror}")
    run = Run(name, path, config, record, curves.by_split, curves.batches, curves.validated, vocabulary, ())
    problems += [f"{path / 'run.json'}: a run that it started from: {each.problem}" for each in run.lineage if each.problem]
    return dataclasses.replace(run, problems=tuple(map(sanitize, problems)))


def _ancestor(fields: Mapping[str, Any]) -> Ancestor:
    config, problem = None, ""
    try:
        config = from_dict(fields["config"]) if fields.get("config") else None
    except UserError as error:
        problem = f"{error}; it counts as not recorded"
    return Ancestor(
        step=fields["step"],
        tokens=fields.get("tokens"),
        flops=fields.get("flops"),
        seconds=fields.get("seconds"),
        fingerprint=fields.get("fingerprint"),
        trained_by={name: fields.get(name) for name in ("code", "numerics")},
        config=config,
        problem=problem,
    )


def distinct_names(paths: Sequence[epath.Path]) -> list[str]:
    """The shortest distinct ends of the paths, printable: a folder's name, with as many parents as
    needed.
    """
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
    for text in map(sanitize, names):
        # Names that differ only in characters that cannot be shown get a number.
        number = next(n for n in range(1, len(paths) + 1) if (text if n == 1 else f"{text} ({n})") not in shown)
        shown.append(text if number == 1 else f"{text} ({number})")
    return shown
