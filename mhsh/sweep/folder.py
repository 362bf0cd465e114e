"""The folder of a sweep: what a sweep writes, and how it is read.

    plan.json               the axes, what is chosen, and every cell: settings, config, cost
    runs/CELL/              the cell's run folder
    logs/CELL.out, .err     what its processes printed; .err is locked while one is running
    ends/CELL.json          how its last process ended

Several hosts may share the folder, each with cells of its own. They write the same plan; no other
file is written by two hosts. Nothing here imports jax.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from mhsh.config.fields import format_differences
from mhsh.config.recorded import WRITER, check_version, current_path, from_record, to_record
from mhsh.config.resolve import decay_start
from mhsh.config.schema import Config
from mhsh.errors import UserError
from mhsh.storage.bucket import is_remote
from mhsh.storage.files import MissingFile, read_object, write_atomically
from mhsh.storage.outcome import DIVERGED
from mhsh.storage.questions import entries, exists, is_dir
from mhsh.storage.run_folder import RunFolder
from mhsh.sweep.axes import Axis, Cell, Value

# The states of a cell.
FINISHED = "finished"  # all steps are done
GAVE_UP = "diverged"  # training ended itself: too many updates in a row were not finite
FAILED = "failed"  # the process ended otherwise
RUNNING = "running"
STOPPED = "stopped"  # it has begun and can go on
WAITING = "not run"

_FOLDERS = ("runs", "logs", "ends")

# A process that ended so was asked to, and can go on: by SIGTERM or Ctrl-C, with its state saved or
# before it had any.
RESUMABLE = (os.EX_TEMPFAIL, 128 + signal.SIGINT, 128 + signal.SIGTERM)


class Choosing(Struct, frozen=True):
    """That each setting has its own best value of a field, by some of the seeds."""

    over: str  # as --over named it
    seeds: int | None  # how many choose; None: half of them


class _PlanAxis(Struct):
    path: str
    values: list[Value]


class _PlanCell(Struct):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_+-][A-Za-z0-9._+-]*$")]  # of a folder
    settings: dict[str, Value]
    config: dict[str, Any]
    cost: dict[str, int]


class _PlanFile(Struct):
    """What plan.json holds; it may come from anybody."""

    axes: list[_PlanAxis]
    cells: list[_PlanCell]
    choosing: Choosing | None = None


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a sweep is, and how it is judged."""

    axes: tuple[Axis, ...]
    cells: tuple[Cell, ...]
    choosing: Choosing | None = None


@dataclasses.dataclass(frozen=True)
class CellState:
    """What has become of a cell so far; `reason` in one line where it failed, else empty."""

    kind: str
    reason: str = ""


class SweepFolder:
    """The folder of one sweep, on this machine's file system or one that hosts share."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises UserError where `path` lies in a bucket."""
        if is_remote(path):
            raise UserError(
                f"cannot sweep into {path}: running cells are found by file locks, which buckets lack; "
                "give a local folder, or one on a volume that all hosts share"
            )
        self.path = Path(path)

    def open_for(self, plan: Plan) -> None:
        """Makes the folder for `plan`, or opens it where it holds a part of that plan; writes the
        plan.

        Raises:
          UserError: the folder holds another sweep, or something that is no sweep, or cannot be
            written.
        """
        # In this order: another host may be opening it too, and writes its plan before all else.
        if exists(self.path) and _holds_anything(self.path) and not exists(self.path / "plan.json"):
            raise UserError(f"{self.path} exists and holds no sweep; choose another --workdir")
        if exists(self.path / "plan.json"):
            self._check_holds_part_of(plan)
        try:
            for name in _FOLDERS:
                (self.path / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the sweep's folder {self.path}: {error.strerror}; choose another --workdir") from error
        write_atomically(self.path / "plan.json", json.dumps(_plan_fields(plan), indent=1) + "\n")

    def read_plan(self) -> Plan:
        """The plan. Raises UserError where it is missing or damaged."""
        path = str(self.path / "plan.json")
        try:
            fields = read_object(path)
            version = check_version(fields, path)
            chosen = msgspec.convert(fields, _PlanFile).choosing  # absent from plans of before
            axes = tuple(Axis(current_path(axis["path"], version), tuple(axis["values"])) for axis in fields["axes"])
            cells = tuple(_read_cell(cell, path, version) for cell in fields["cells"])
            choosing = replace(chosen, over=current_path(chosen.over, version)) if chosen else None
        except MissingFile:
            raise UserError(f"{self.path} holds no sweep: plan.json is missing; give the folder that --workdir named") from None
        except msgspec.ValidationError as error:
            raise UserError(f"{path} is damaged: {error}; put it back from a copy") from error
        return Plan(axes, cells, choosing)

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

    def begin(self, name: str) -> tuple[IO[bytes], IO[bytes]] | None:
        """The cell's output and error files, locked for the process that inherits them; None where
        another one holds the lock.
        """
        errors = open(self._log_path(name, "err"), "ab")  # noqa: SIM115 - open for as long as the process lives
        try:
            fcntl.flock(errors, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            errors.close()
            return None
        self._end_path(name).unlink(missing_ok=True)
        return open(self._log_path(name, "out"), "ab"), errors

    def finish(self, name: str, exit_status: int, reason: str, seconds: float) -> None:
        """Notes how the cell's process ended."""
        end = {"exit_status": exit_status, "reason": reason, "seconds": round(seconds, 1)}
        write_atomically(self._end_path(name), json.dumps(end, indent=1) + "\n")

    def last_error_line(self, name: str, since: int) -> str:
        """The last line that the cell's processes wrote to standard error after byte `since`; empty
        where there is none.
        """
        with open(self._log_path(name, "err"), "rb") as file:
            file.seek(since)
            lines = file.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def state(self, name: str) -> CellState:
        """What has become of the cell; a record that cannot be read makes it a failed one."""
        if self._is_locked(name):
            return CellState(RUNNING)
        folder = self.run_folder(name)
        try:
            record = folder.recorded()
            if record.get("status") == "finished":
                return CellState(FINISHED)
            if record.get("outcome") == DIVERGED:
                return CellState(GAVE_UP)
            end = read_object(self._end_path(name))
        except MissingFile:  # no process has ended, or one was started since
            end = None
        except UserError as error:
            return CellState(FAILED, str(error))
        if end is not None and end.get("exit_status") not in RESUMABLE:
            return CellState(FAILED, f"exit status {end.get('exit_status')}: {end.get('reason') or 'no message'}")
        return CellState(STOPPED if folder.has_begun() else WAITING)

    def _end_path(self, name: str) -> Path:
        return self.path / "ends" / f"{name}.json"

    def _log_path(self, name: str, kind: str) -> Path:
        return self.path / "logs" / f"{name}.{kind}"

    def _is_locked(self, name: str) -> bool:
        try:
            with open(self._log_path(name, "err"), "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def _check_holds_part_of(self, plan: Plan) -> None:
        wanted, held = {cell.name: cell.config for cell in plan.cells}, self.read_plan()
        if held.choosing and held.choosing != plan.choosing:
            raise UserError(
                f"{self.path} was planned with {_flags(held.choosing)}, and what chooses is not changed afterwards; give that, "
                "or choose another --workdir"
            )
        for cell in held.cells:
            if cell.name not in wanted:
                raise UserError(
                    f"{self.path} holds another sweep, whose cell {cell.name} is not in this one; a sweep can grow, not shrink: "
                    "choose another --workdir, or name all of its axes and values"
                )
            if wanted[cell.name] != cell.config:
                raise UserError(
                    f"{self.path} holds a sweep of another config (cell {cell.name}: "
                    f"{format_differences(cell.config, wanted[cell.name])}); choose another --workdir, or that config"
                )


def _holds_anything(folder: Path) -> bool:
    """Whether there is more than the empty folders and the half-written plan of a new sweep."""
    if not is_dir(folder):
        return True
    made = [path for path in entries(folder) if not path.name.startswith(".plan.json.")]
    return any(path.name not in _FOLDERS or not is_dir(path) or any(entries(path)) for path in made)


def _read_cell(cell: Mapping[str, Any], path: str, version: int) -> Cell:
    settings = {current_path(name, version): value for name, value in cell["settings"].items()}
    return Cell(cell["name"], settings, from_record(cell["config"], path), cell["cost"])


def _flags(choosing: Choosing) -> str:
    seeds = "" if choosing.seeds is None else f" --choosing-seeds={choosing.seeds}"
    return f"--over={choosing.over}{seeds}"


def _plan_fields(plan: Plan) -> dict[str, Any]:
    return {
        **WRITER,
        "choosing": msgspec.to_builtins(plan.choosing),
        "axes": [{"path": axis.path, "values": list(axis.values)} for axis in plan.axes],
        "cells": [
            {"name": cell.name, "settings": dict(cell.settings), "config": to_record(cell.config), "cost": dict(cell.cost)}
            for cell in plan.cells
        ],
    }
