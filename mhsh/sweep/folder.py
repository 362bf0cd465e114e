"""The folder of a sweep, on a disk or in a bucket: what a sweep writes, and how it is read.

    plan.json               the axes, what is chosen, every cell (settings, config, cost), and what
                            was added when
    runs/CELL/              the cell's run folder, which the worker that trains it holds
    ends/CELL.json          how the last try at it ended
    logs/                   what the workers of `mhsh sweep` printed

Any number of workers share it. A cell's files are written by the worker that holds its run folder,
and the plan by `mhsh sweep`. Nothing here imports jax.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import shlex
import signal
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from etils import epath
from msgspec import Meta, Struct
from msgspec.structs import replace

from mhsh.config.entries import entry_flags, named_entries
from mhsh.config.fields import format_differences
from mhsh.config.recorded import WRITER, check_version, current_fields, current_path, from_record, to_record
from mhsh.config.resolve import decay_start
from mhsh.config.schema import Config
from mhsh.errors import UserError
from mhsh.storage.bucket import BucketRefusal, GuardedObject, LostObject, is_remote
from mhsh.storage.disk_lock import hold_lock
from mhsh.storage.files import (
    MissingFile,
    check_checkpoints_path,
    expand_user,
    make_folder,
    parse_object,
    read_object,
    read_small_file,
    write_atomically,
)
from mhsh.storage.holder import describe_holder, is_held
from mhsh.storage.outcome import DIVERGED
from mhsh.storage.questions import exists, is_dir, paths_in
from mhsh.storage.run_folder import RunFolder
from mhsh.storage.run_record import FINISHED, RUNNING, STOPPED
from mhsh.sweep.axes import Axis, Cell, Value
from mhsh.text import format_list

PLAN_FILE = "plan.json"

# The states of a cell, besides those of its run: FINISHED, RUNNING, and STOPPED, which can go on.
GAVE_UP = DIVERGED  # training ended itself: too many updates in a row were not finite
FAILED = "failed"  # it ended otherwise
WAITING = "not run"
ENDED = (FINISHED, GAVE_UP, FAILED)  # nobody trains it

_FOLDERS = ("runs", "logs", "ends")

# A try that ended so was asked to, and can go on: by SIGTERM or Ctrl-C, with its state saved or
# before it had any.
RESUMABLE = (0, os.EX_TEMPFAIL, 128 + signal.SIGINT, 128 + signal.SIGTERM)


class Tuning(Struct, frozen=True):
    """The tuning of a field: some of the seeds choose the best value for each setting."""

    over: str  # as --over named it
    seeds: int | None  # how many choose; None: half of them


class _PlanCell(Struct):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_+-][A-Za-z0-9._+-]*$")]  # of a folder
    settings: dict[str, Value]
    config: dict[str, Any]
    cost: dict[str, int]


class Addition(Struct, frozen=True):
    """The values and cells that one command added to the plan."""

    at: str  # in UTC
    command: str
    values: dict[str, list[Value]]  # by the path of the axis
    cells: int


class _PlanFile(Struct):
    """The content of plan.json, which may come from anybody."""

    axes: list[Axis]
    cells: list[_PlanCell]
    choosing: Tuning | None = None
    margin: Annotated[float, Meta(ge=0)] | None = None
    pooled: bool = False
    fields: dict[str, dict[str, Any]] = {}
    history: list[Addition] = []


@dataclasses.dataclass(frozen=True)
class Plan:
    """The cells of a sweep, and how it is judged."""

    axes: tuple[Axis, ...]
    cells: tuple[Cell, ...]
    choosing: Tuning | None = None
    fields: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)  # of the config that the axes vary
    history: tuple[Addition, ...] = dataclasses.field(default=(), compare=False)
    writer: str = dataclasses.field(default=str(WRITER["mhsh"]), compare=False)  # the version of mhsh
    margin: float | None = None  # that differences are held against, in the unit of the measure
    pooled: bool = False  # whether its difference is meant to be pooled with those of other sweeps


@dataclasses.dataclass(frozen=True)
class CellState:
    """The state of a cell so far; `reason` says in one line why it failed, else it is empty."""

    kind: str
    reason: str = ""


class SweepFolder:
    """The folder of one sweep, on a disk or in a bucket."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises UserError where `path` is in a bucket that cannot be reached."""
        self.path = expand_user(path)
        self._plan: tuple[bytes, Plan] | None = None  # as it was read last

    def arguments(self) -> str:
        """The arguments that name the sweep in another command, with the files of users' entries
        that it needs.
        """
        files = entry_flags([entry for cell in self.read_plan().cells for entry in named_entries(cell.config)])
        return f"{shlex.quote(str(self.path))}{files}"

    def open_for(self, plan: Plan, command: str = "") -> None:
        """Makes the folder for `plan`, or opens it where it holds a part of that plan; writes the
        plan. What is new is noted as added by `command`. Raises UserError where the folder holds
        another sweep or something else, or cannot be written.
        """
        self.check_takes(plan)
        try:
            for name in _FOLDERS:
                make_folder(self.path / name)
        except OSError as error:
            raise UserError(f"cannot make the sweep's folder {self.path}: {error.strerror}; choose another --workdir") from error
        with self._guard_plan() as write:
            existing = self.read_plan() if self.has_plan() else None
            if existing is not None:
                self._check_holds_part_of(plan, existing)
            write(json.dumps(_plan_fields(plan, _extend_history(existing, plan, command)), indent=1) + "\n")

    def has_plan(self) -> bool:
        """Whether there is a plan."""
        return exists(self.path / PLAN_FILE)

    @contextlib.contextmanager
    def _guard_plan(self) -> Iterator[Any]:
        """A function that writes the plan, unless another process has meanwhile."""
        path = str(self.path / PLAN_FILE)
        if not is_remote(path):
            with hold_lock(Path(self.path), wait=True):
                yield lambda text: write_atomically(path, text)
            return
        guarded = GuardedObject(path)
        generation = guarded.generation()
        try:
            yield lambda text: guarded.write(text.encode(), generation)
        except LostObject:
            raise UserError(f"another process has just changed {path}; run the same command again") from None

    def read_plan(self) -> Plan:
        """The plan. Raises UserError where it is missing or damaged."""
        path = str(self.path / PLAN_FILE)
        try:
            content = read_small_file(path)
        except FileNotFoundError:
            raise UserError(f"{self.path} holds no sweep: plan.json is missing; give the folder that --workdir named") from None
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror or error}") from error
        if self._plan is None or self._plan[0] != content:
            self._plan = content, _read_plan(content, path)
        return self._plan[1]

    def run_folder(self, name: str) -> RunFolder:
        """The cell's run folder, which may not be there yet."""
        return RunFolder(self.path / "runs" / name)

    def run_config(self, cell: Cell, parent: Cell | None) -> Config:
        """The config that the cell's process trains. It begins where the decay of `parent` begins,
        unless it has begun otherwise, or that checkpoint of a finished parent was removed.
        """
        folder = self.run_folder(cell.name)
        if folder.has_begun():
            start_from = folder.read_config().train.start_from
        elif parent is not None and self._has_branch_point(parent):
            start_from = f"{self.run_folder(parent.name).path}@{decay_start(parent.config)}"
        else:
            return cell.config
        return replace(cell.config, train=replace(cell.config.train, start_from=start_from))

    def _has_branch_point(self, parent: Cell) -> bool:
        """Whether the checkpoint before the decay of a cell is there, or will be, or never was."""
        checkpoint = self.run_folder(parent.name).checkpoints_path / str(decay_start(parent.config))
        return exists(checkpoint) or self.state(parent.name).kind != FINISHED

    def begin(self, name: str) -> int:
        """Notes, inside a claim, that a try begins. Returns how many have begun in a row, this one
        among them, without an end or a newer checkpoint.
        """
        end, step = self._end(name), self.run_folder(name).newest_checkpoint()
        is_repeated = "begun" in end and end.get("checkpoint") == step
        tries = end["begun"] + 1 if is_repeated else 1
        self._write_end(name, {"begun": tries, "checkpoint": step})
        return tries

    def finish(self, name: str, exit_status: int, reason: str = "") -> None:
        """Notes, inside a claim, how the try ended."""
        self._write_end(name, {"exit_status": exit_status, "reason": reason})

    def forget_failures(self) -> None:
        """Marks the cells that have failed, so that they are tried again."""
        for cell in self.read_plan().cells:
            if self.outcome(cell.name).kind == FAILED:
                self.finish(cell.name, os.EX_TEMPFAIL, "to be tried again")

    def without_retried(self, ended: Mapping[str, CellState]) -> dict[str, CellState]:
        """The cells that had ended, without those that had failed and are tried again since."""
        return {name: state for name, state in ended.items() if state.kind != FAILED or self.outcome(name).kind == FAILED}

    def state(self, name: str) -> CellState:
        """The state of the cell; a record that cannot be read makes it a failed one."""
        found, run = self.outcome(name), self.run_folder(name).path
        return CellState(RUNNING, describe_holder(run)) if found.kind != FINISHED and is_held(run) else found

    def outcome(self, name: str) -> CellState:
        """The state of the cell, whoever trains it now. Raises BucketRefusal where the bucket is
        not for this login, which says nothing of the cell.
        """
        folder = self.run_folder(name)
        try:
            record = folder.run_record()
            if record.get("status") == FINISHED:
                return CellState(FINISHED)
            if record.get("outcome") == DIVERGED:
                return CellState(GAVE_UP)
            end = self._end(name)
        except BucketRefusal:
            raise
        except UserError as error:
            return CellState(FAILED, str(error))
        status = end.get("exit_status", 0)  # none while the try lasts
        if status not in RESUMABLE:
            return CellState(FAILED, f"exit status {status}: {end.get('reason') or 'no message'}")
        return CellState(STOPPED if record or folder.has_begun() else WAITING)

    def _end(self, name: str) -> dict[str, Any]:
        """How the last try ended; empty: there was none."""
        try:
            return read_object(self.path / "ends" / f"{name}.json")
        except MissingFile:
            return {}

    def _write_end(self, name: str, end: Mapping[str, Any]) -> None:
        write_atomically(self.path / "ends" / f"{name}.json", json.dumps(end, indent=1) + "\n")

    def check_takes(self, plan: Plan) -> None:
        """Raises UserError where the folder holds another sweep than a part of `plan`, or something
        else, or no run in it could be saved.
        """
        check_checkpoints_path(self.path, saves=True)
        # In this order: another host may be opening it too, and writes its plan before all else.
        if exists(self.path) and _is_occupied(self.path) and not self.has_plan():
            raise UserError(f"{self.path} exists and holds no sweep; choose another --workdir")
        if self.has_plan():
            self._check_holds_part_of(plan, self.read_plan())

    def _check_holds_part_of(self, plan: Plan, existing: Plan) -> None:
        configs = {cell.name: cell.config for cell in plan.cells}
        # A margin that is given after the runs is none that was fixed beforehand.
        if existing.choosing not in (None, plan.choosing) or (existing.margin, existing.pooled) != (plan.margin, plan.pooled):
            raise UserError(
                f"{self.path} was planned with {_flags(existing) or 'no --margin'}, and how a sweep is judged is not changed "
                "afterwards; give that, or choose another --workdir"
            )
        for cell in existing.cells:
            if cell.name not in configs:
                axes = format_list([axis.name for axis in existing.axes])
                raise UserError(
                    f"{self.path} holds another sweep, whose cell {cell.name} is not in this one: its axes stay {axes}, and only "
                    "values are added; choose another --workdir, or name these axes with all of their values"
                )
            if configs[cell.name] != cell.config:
                raise UserError(
                    f"{self.path} holds a sweep of another config (cell {cell.name}: "
                    f"{format_differences(cell.config, configs[cell.name])}); choose another --workdir, or that config"
                )


def check_margin(margin: float | None) -> None:
    """Raises UserError where a margin is not a distance."""
    if margin is not None and not 0 <= margin < math.inf:
        raise UserError(f"--margin={margin:g} is not a distance; give one in the unit of the measure, such as 0.02")


def _is_occupied(folder: epath.Path) -> bool:
    """Whether there is more than the empty folders and the half-written plan of a new sweep."""
    if not is_dir(folder):
        return True
    made = [path for path in paths_in(folder) if not path.name.startswith(".plan.json.")]
    return any(path.name not in _FOLDERS or not is_dir(path) or any(paths_in(path)) for path in made)


def _read_plan(content: bytes, path: str) -> Plan:
    fields = parse_object(content, path)
    version = check_version(fields, path)
    try:
        plan = msgspec.convert(fields, _PlanFile)
    except msgspec.ValidationError as error:
        raise UserError(f"{path} is damaged: {error}; put it back from a copy") from error
    axes = tuple(Axis(current_path(axis.path, version), axis.values) for axis in plan.axes)
    chosen = replace(plan.choosing, over=current_path(plan.choosing.over, version)) if plan.choosing else None
    base = current_fields(plan.fields, version)[0]
    cells = tuple(_read_cell(cell, path, version) for cell in plan.cells)
    return Plan(axes, cells, chosen, base, tuple(plan.history), str(fields.get("mhsh")), plan.margin, plan.pooled)


def _read_cell(cell: _PlanCell, path: str, version: int) -> Cell:
    settings = {current_path(name, version): value for name, value in cell.settings.items()}
    return Cell(cell.name, settings, from_record(cell.config, path), cell.cost)


def _extend_history(existing: Plan | None, plan: Plan, command: str) -> list[Addition]:
    """The history of the plan, with what it adds to the existing one."""
    before = {axis.path: axis.values for axis in existing.axes} if existing else {}
    added = {axis.path: [value for value in axis.values if value not in before.get(axis.path, ())] for axis in plan.axes}
    count = len(plan.cells) - len(existing.cells if existing else ())
    history = list(existing.history) if existing else []
    if not count:
        return history
    values = {path: values for path, values in added.items() if values}
    return [*history, Addition(time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()), command, values, count)]


def _flags(plan: Plan) -> str:
    flags = [f"--over={plan.choosing.over}"] if plan.choosing else []
    flags += [f"--choosing-seeds={plan.choosing.seeds}"] if plan.choosing and plan.choosing.seeds is not None else []
    flags += [f"--margin={plan.margin:g}"] if plan.margin is not None else []
    return " ".join([*flags, *["--pooled"] * plan.pooled])


def _plan_fields(plan: Plan, history: Collection[Addition]) -> dict[str, Any]:
    return {
        **WRITER,
        "choosing": msgspec.to_builtins(plan.choosing),
        "margin": plan.margin,
        "pooled": plan.pooled,
        "history": msgspec.to_builtins(list(history)),
        "fields": {section: dict(values) for section, values in plan.fields.items()},
        "axes": [{"path": axis.path, "values": list(axis.values)} for axis in plan.axes],
        "cells": [
            {"name": cell.name, "settings": dict(cell.settings), "config": to_record(cell.config), "cost": dict(cell.cost)}
            for cell in plan.cells
        ],
    }
