"""Runs as their folders hold them: config, record and loss curves."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from mhsh.config.recorded import from_record
from mhsh.config.resolve import whole_run
from mhsh.config.schema import Config
from mhsh.config.shapes import layer_parameters
from mhsh.errors import UserError
from mhsh.storage import outcome
from mhsh.storage.bucket import check_bucket, is_remote
from mhsh.storage.files import absolute
from mhsh.storage.imported import imported_checkpoint
from mhsh.storage.questions import exists, is_dir, paths_in
from mhsh.storage.rows import Metrics, number
from mhsh.storage.run_folder import CONFIG_FILE, HOLDER_FILE, METRICS_FILE, RUN_FILE, RunFolder, recorded_lineage, vocab_file
from mhsh.storage.run_record import FINISHED, STOPPED
from mhsh.text import number_duplicates, sanitize

AXES = ("step", "tokens", "flops", "seconds")
SPLITS = ("train", "validation")
RECORDS = ("status", "data", "parameters", "remat_policy", "code", "numerics")  # of run.json, without which no run is compared
_COUNTED = ("post_ln", "admin", "pre_ln")  # schemes whose layers `layer_parameters` counts, but for the last norm of a stack
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)")  # every second part of a text that is split by it
LEVELS = 4  # of folders that are searched for runs: runs/STUDY/SWEEP/runs/CELL
_FLAGS = ("skipped", "spike")  # true in the rows whose update was not applied, or whose loss spikes; absent from all others


@dataclasses.dataclass(frozen=True)
class Curve:
    """The logged numbers of one split on every x-axis. nan is a null in the file."""

    x: Mapping[str, np.ndarray]  # axis of AXES: cumulative steps, training tokens, training FLOPs, device seconds; all ascending
    loss: np.ndarray  # nats per predicted token
    metrics: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)  # every other number that these rows hold

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def steps(self) -> np.ndarray:
        """The step after which each row was logged."""
        return self.x["step"]


@dataclasses.dataclass(frozen=True)
class Ancestor:
    """A run that another started from, up to the step that was taken."""

    step: int
    tokens: float  # that it has seen; nan: an imported checkpoint, of which that is not known
    fingerprint: str | None  # of its data
    trained_by: Mapping[str, Any]  # the `code`, the `numerics` and a user's `entries` of its run.json
    config: Config
    imported: str | None = None  # the checkpoint that it was imported from; None: it was not


@dataclasses.dataclass(frozen=True)
class RecordedRun:
    """One run of a report."""

    name: str  # sanitized and unique in the report
    path: epath.Path
    config: Config
    record: Mapping[str, Any]  # run.json; empty if the run has logged nothing yet
    lineage: tuple[Ancestor, ...]  # the runs that it started from, nearest first
    curves: Mapping[str, Curve]  # by split; a split without rows is an empty curve
    batches: Mapping[str, np.ndarray]  # `step` and `checksum` of the training rows, which name their batch
    validation_batches: tuple[str, ...]  # the checksums of validation's batches, each once
    loss_parts: np.ndarray  # the last validation loss of consecutive parts of its batches; empty: not known
    vocabulary: str | None  # SHA-256 of the run's vocabulary; None: it is not known
    problems: tuple[str, ...]  # one line each, naming the file
    imported: str | None = None  # the checkpoint that the run was imported from; None: it was not
    is_training: bool = False  # a process holds the folder, or was killed while it did

    def recorded(self, *keys: str) -> Any:
        """The value in run.json under nested keys; None if it is missing."""
        value: Any = self.record
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def recorded_number(self, *keys: str) -> float | None:
        """The value that `recorded` gives, as a number; None unless that is finite."""
        value = number(self.recorded(*keys))
        return value if math.isfinite(value) else None

    @property
    def has_logged(self) -> bool:
        """Whether any loss was logged, finite or not."""
        return any(map(len, self.curves.values()))

    def total(self, axis: str) -> float | None:
        """The largest value of a cumulative axis; None if there is none."""
        values = np.concatenate([curve.x[axis] for curve in self.curves.values()])
        values = values[np.isfinite(values)]
        return float(values.max()) if len(values) else None

    @property
    def status(self) -> Any:
        """That of run.json; of a finished run whose config has become longer since, and which has
        not gone on, STOPPED.
        """
        status, saved = self.recorded("status"), self.recorded("checkpoint")
        is_longer = isinstance(saved, int) and saved < self.config.train.num_steps
        return STOPPED if status == FINISHED and is_longer else status

    @property
    def end(self) -> float | None:
        """The step after which it ended: of a finished run the last of its config, of
        others the last that was logged.
        """
        if self.status == FINISHED:
            return float(self.config.train.num_steps)
        return max((float(curve.steps[-1]) for curve in self.curves.values() if len(curve)), default=None)

    def ends_in(self, split: str) -> bool:
        """Whether the last row of this split was logged where the run ended."""
        steps = self.curves[split].steps
        return len(steps) > 0 and float(steps[-1]) == self.end

    @property
    def is_cut(self) -> bool:
        """Whether it has ended, and what was logged there is lost."""
        split = "validation" if len(self.curves["validation"]) else "train"
        return self.has_logged and not self.ends_in(split)

    @property
    def final_validation(self) -> float | None:
        """The validation loss where the run ended; nan: not finite; None: it has none there."""
        return float(self.curves["validation"].loss[-1]) if self.ends_in("validation") else None

    @functools.cached_property
    def final_train(self) -> float | None:
        """The final training loss by `smoothed_final_loss`; nan: not finite."""
        return outcome.smoothed_final_loss(self.curves["train"].loss)

    @functools.cached_property
    def outcome(self) -> str:
        """LEFT, ON_PLATEAU, DIVERGED, NOT_KNOWN or NO_METRICS, by PLATEAU_RULE."""
        gave_up = self.recorded("outcome") == outcome.DIVERGED or not np.isfinite(self.curves["validation"].loss[-1:]).all()
        entropy = self.recorded_number("data", "unigram_entropy")
        return outcome.plateau_outcome(self.config.model.objective, self.final_train, self.final_validation, entropy, gave_up)


@dataclasses.dataclass(frozen=True)
class LoadedRuns:
    """The opened runs, and a line for every folder that could not be opened."""

    runs: tuple[RecordedRun, ...]
    refused: tuple[str, ...]


def load_runs(folders: Sequence[str | os.PathLike[str]]) -> LoadedRuns:
    """Opens the runs that `find_runs` finds. A bad folder gets a line in `refused`."""
    paths, refused = find_runs(folders)
    runs = []
    for name, path in zip(distinct_names(paths), paths, strict=True):
        try:
            runs.append(_load(name, path))
        except UserError as error:
            refused.append(str(error))
    return LoadedRuns(tuple(runs), tuple(map(sanitize, refused)))


def find_runs(folders: Sequence[str | os.PathLike[str]]) -> tuple[list[epath.Path], list[str]]:
    """Every run once, in the order of `folders`: each is a run, or holds runs up to LEVELS levels
    below, which come in the order of their names. And a line for each that is neither, or that has
    folders further below.
    """
    paths: dict[str, epath.Path] = {}
    refused: list[str] = []
    for folder in map(absolute, folders):
        try:
            found, unsearched = _runs_in(folder)
            # The name is not resolved: a link has the name that its user gave it.
            for path in found:
                paths.setdefault(real_path(path), path)
            refused += [unsearched] * bool(unsearched)
        except UserError as error:
            refused.append(str(error))
        except OSError as error:
            refused.append(f"cannot read {error.filename}: {error.strerror}; give folders that can be read")
    return list(paths.values()), refused


def real_path(path: str | os.PathLike[str]) -> str:
    """The path without links, which names a run once; a bucket has no links."""
    return str(path) if is_remote(path) else os.path.realpath(path)


def _runs_in(folder: epath.Path) -> tuple[list[epath.Path], str]:
    """The runs, and a line where there are folders in which none was looked for."""
    check_bucket(folder)
    if not is_dir(folder):
        raise UserError(f"{folder} {'is a file' if exists(folder) else 'does not exist'}; give the folder that --workdir named")
    if exists(folder / CONFIG_FILE) or _is_run(folder):
        return [folder], ""
    runs, others = [], [folder]
    for _ in range(LEVELS):
        below = [path for other in others for path in paths_in(other) if is_dir(path)]
        are_runs = [_is_run(path) for path in below]
        runs += itertools.compress(below, are_runs)
        # One with a config alone has not begun, and holds no other.
        others = [path for path, is_run in zip(below, are_runs, strict=True) if not is_run and not exists(path / CONFIG_FILE)]
    if not runs:
        raise UserError(
            f"{folder} holds no run: no config.json is in it, and none beside a run.json, metrics.jsonl or checkpoint in the "
            f"folders up to {LEVELS} levels below; give the folder that --workdir named, or one that holds such folders"
        )
    deeper = next((path for other in others for path in paths_in(other) if is_dir(path)), None)
    line = f"{folder} has folders more than {LEVELS} levels below, as {deeper}, which were not searched; name those that hold runs"
    return sorted(runs, key=_natural_order), line if deeper is not None else ""


def _is_run(path: epath.Path) -> bool:
    """Whether a run has begun here, also where its config is gone."""
    return RunFolder(path).has_begun() or exists(path / RUN_FILE) or exists(path / METRICS_FILE)


def _natural_order(path: epath.Path) -> list[str | float]:
    """A key for sorting in which 6 comes before 24, and 5e-4 and 0.0005 before 0.001."""
    return [float(part) if place % 2 else part for place, part in enumerate(_NUMBER.split(str(path)))]


def _load(name: str, path: epath.Path) -> RecordedRun:
    """The run in a folder. Raises UserError where its config is missing or damaged, or it has
    logged something and its record is missing, damaged or incomplete.
    """
    folder = RunFolder(path)
    config = whole_run(folder.initial_config())
    metrics = sound_metrics(folder)
    curves = {split: curve_of(metrics, split) for split in SPLITS}
    if metrics.count and not folder.has_run_record():
        raise UserError(f"{path} has rows in {METRICS_FILE} and no run.json; put it back from a copy, or leave the run out")
    record = folder.run_record()
    validated = np.unique(metrics.texts("validation", "batch"))
    lacking = [name for name in RECORDS if record and not record.get(name)]
    lacking += ["the checksum of validation's batches"] if b"" in validated else []
    if lacking:
        raise UserError(f"{path} did not record {', '.join(lacking)}: this version of mhsh did not train it; leave it out")
    try:
        lineage = tuple(map(_ancestor, recorded_lineage(record)))
    except UserError as error:
        raise UserError(f"{path}, of the runs that it started from: {error}") from error
    parts = _loss_parts(metrics)
    _check_against_itself(path, config, record, curves["validation"].loss[-1:], parts)
    trains = exists(path / HOLDER_FILE)
    problems = [metrics.problem] if metrics.problem and (metrics.count or not trains) else []  # one that compiles has no rows
    if metrics.count and not any(map(len, curves.values())):
        problems.append(f"{path / METRICS_FILE} holds no loss of the training or the validation split")
    for step, lost in record.get("lost_rows", {}).items():
        problems.append(f"{path}: {lost} rows of metrics.jsonl up to step {step} are lost; the curve has a gap there")
    vocabulary = record.get("vocabulary")  # of a copy without that file
    try:
        vocabulary = folder.vocabulary_hash(config) or vocabulary
    except OSError as error:
        problems.append(f"cannot read {path / vocab_file(config)}: {error.strerror}")
    return RecordedRun(
        name,
        path,
        config,
        record,
        lineage,
        curves,
        _batches(metrics),
        tuple(checksum.decode() for checksum in validated),
        parts,
        vocabulary,
        tuple(map(sanitize, problems)),
        imported_checkpoint(path, record),
        trains,
    )


def _check_against_itself(path: epath.Path, config: Config, record: Mapping[str, Any], last: np.ndarray, parts: np.ndarray) -> None:
    """Raises UserError where a run's files contradict each other.

    Args:
      last: its last validation loss, if it has one.
      parts: of that loss.
    """
    model, counts = config.model, record.get("parameters")
    stacks = [counts.get(name) for name in ("encoder", "decoder")] if isinstance(counts, Mapping) else []
    known = [int(count) for count in map(number, stacks) if math.isfinite(count)]
    if model.residual in _COUNTED and not model.qk_norm and len(known) == 2:
        recorded, expected = sum(known), layer_parameters(model)
        final_norms = 2 * model.embed_dim * (1 + bool(model.num_decoder_layers))
        if not expected <= recorded <= expected + final_norms:
            raise UserError(
                f"{path}: its layers have {recorded:,} parameters by run.json, and {expected:,} by config.json, so one of these "
                "files is another run's; put it back, or leave the run out"
            )
    loss = float(last[0]) if len(last) else math.nan  # of which nothing is more
    # A mean by predictions: the last batch may hold a single row, and short documents make few.
    if len(parts) and max(parts.min() - loss, loss - parts.max()) > 1e-6 * abs(loss):
        raise UserError(
            f"{path}: the last validation loss is {loss:.6g}, and its parts are {parts.min():.6g} to {parts.max():.6g}, so "
            f"{METRICS_FILE} was changed; put it back from a copy, or leave the run out"
        )


def _ancestor(fields: Mapping[str, Any]) -> Ancestor:
    return Ancestor(
        step=fields["step"],
        tokens=math.nan if fields.get("tokens") is None else float(fields["tokens"]),
        fingerprint=fields.get("fingerprint"),
        trained_by={name: fields.get(name) for name in ("code", "numerics")}
        | ({"entries": fields["entries"]} if fields.get("entries") else {}),
        config=whole_run(from_record(fields.get("config") or {}, str(fields.get("folder")))),
        imported=fields.get("imported"),
    )


def sound_metrics(folder: RunFolder) -> Metrics:
    """The rows before the first that is damaged or would draw a wrong curve, and what is wrong."""
    metrics = folder.read_metrics()
    for wrong in (_first_odd_number, _first_step_back):
        found = wrong(metrics)
        if found is not None:
            line, reason = found
            where = f"{folder.path / METRICS_FILE} line {line + 1}"
            metrics = metrics.truncate(line, f"{where}: {reason}; only the {line} rows before it are read")
    return metrics


def _first_odd_number(metrics: Metrics) -> tuple[int, str] | None:
    """The first line with a loss or a place on an axis that is not a number, and what is wrong."""
    return min(
        ((metrics.non_numbers[name], f"{name} is not a number") for name in ("loss", *AXES) if name in metrics.non_numbers),
        default=None,
    )


def _first_step_back(metrics: Metrics) -> tuple[int, str] | None:
    """The first line that does not come after the one before it, and what is wrong with it."""
    steps_back: list[tuple[int, str]] = []
    for split, name in itertools.product(SPLITS, AXES):
        values = metrics.numbers(split, name)
        lines, values = metrics.lines(split)[np.isfinite(values)], values[np.isfinite(values)]
        steps = np.diff(values)
        for place in np.flatnonzero((steps < 0) | ((steps == 0) & (name == "step")))[:1]:
            before, after = (int(value) if value.is_integer() else value for value in values[place : place + 2].tolist())
            back = f"{name if name != 'step' else 'steps'} go back from {before} to {after}"
            steps_back.append((int(lines[place + 1]), back if before != after else f"step {after} is there twice"))
    return min(steps_back, default=None)


def curve_of(metrics: Metrics, split: str) -> Curve:
    """The curve of the rows of one split that have a loss."""
    known, having = {"loss", *AXES}, ("loss",)
    others = {name: metrics.numbers(split, name, having) for name in metrics.keys(split) if name not in known}
    others |= {name: np.where(metrics.flags(split, name, having), 1.0, math.nan) for name in _FLAGS}
    return Curve(
        {axis: metrics.numbers(split, axis, having) for axis in AXES},
        metrics.numbers(split, "loss", having),
        {name: values for name, values in others.items() if np.isfinite(values).any()},
    )


def _batches(metrics: Metrics) -> Mapping[str, np.ndarray]:
    steps, checksums = metrics.numbers("train", "step"), metrics.texts("train", "batch")
    return {"step": steps[checksums != b""], "checksum": checksums[checksums != b""]}


def _loss_parts(metrics: Metrics) -> np.ndarray:
    parts = np.array([number(part) for part in (metrics.lists("validation", "loss_parts", ("loss",)) or [None])[-1] or []])
    return parts if np.isfinite(parts).all() else np.empty(0)


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
            return number_duplicates(map(sanitize, names))
        for index in clashing:
            depths[index] += 1
