"""Saving and restoring the training state through Orbax. A checkpoint whose files or arrays have
changed is damaged (see verify.py).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from mhsh.cluster.agreement import broadcast_decision
from mhsh.config.recorded import WRITER, check_version
from mhsh.errors import FullDisk, Unavailable, UserError
from mhsh.storage.bucket import BucketRefusal, is_remote
from mhsh.storage.files import absolute, check_checkpoints_path, make_durable, make_folder, make_name_durable
from mhsh.storage.outage import TRANSIENT
from mhsh.storage.questions import exists, is_dir, is_file, names_in, paths_in
from mhsh.storage.run_folder import Counters, committed_steps
from mhsh.training.checkpoints.verify import (
    OF_THIS_PROCESS,
    Manifest,
    checksums,
    compare_manifests,
    find_damage,
    flatten,
    hex_digits,
    manifest,
    unreadable_here,
    write_file_manifest,
)
from mhsh.training.state import TrainState

ITEMS = ("params", "opt_state", "manifest")
_READ_ONLY = ocp.CheckpointManagerOptions(read_only=True, create=False, save_interval_steps=0)
# What TensorStore says of a bucket that answers 429 or 5xx, or not at all, after its own tries, and
# of a disk that fails.
_PASSES = re.compile(
    "UNAVAILABLE|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED: Error (?:reading|writing)|HTTP response code: (?:429|5..)"
    "|Input/output error|Stale file handle"
)
_FULL = re.compile("No space left on device|Disk quota exceeded")
# What jax and TensorStore say where this process has too little memory, or may not open a file.
_OWN = re.compile("RESOURCE_EXHAUSTED|Out of memory|Cannot allocate memory|Too many open files|Permission denied")

# Orbax logs, with tracebacks, what it then raises, and warns of how it is used here.
logging.getLogger("absl").addFilter(lambda record: "/orbax/" not in record.pathname)


def _skip_late_callbacks(report: Callable[[sys.UnraisableHookArgs], Any], unraisable: sys.UnraisableHookArgs) -> None:
    """Reports an exception that nobody can catch, unless TensorStore calls back a save that has
    failed: Orbax has closed its event loop.
    """
    if str(unraisable.exc_value) != "Event loop is closed":
        report(unraisable)


sys.unraisablehook = functools.partial(_skip_late_callbacks, sys.unraisablehook)


class DamagedCheckpoint(UserError):
    """A checkpoint is incomplete, cannot be read, or its arrays have changed."""


class StoredCheckpoints:
    """The checkpoints of one run, to be read. Nothing in the folder changes, as the run may be
    training. params, opt_state and manifest are separate items, so that params can be restored
    alone.
    """

    def __init__(self, folder: epath.PathLike, options: ocp.CheckpointManagerOptions = _READ_ONLY) -> None:
        """Raises UserError where `folder` is none, Orbax misreads its path, or it is missing and to
        be read.
        """
        self._folder = absolute(folder)
        check_checkpoints_path(folder, saves=not options.read_only)
        if not is_remote(self._folder) and os.path.lexists(self._folder) and not is_dir(self._folder):
            raise UserError(f"{self._folder} is a file or a broken link, and no folder of checkpoints; put the folder back")
        if options.read_only and not is_dir(self._folder):
            raise self.no_checkpoint_error()
        self._manager = ocp.CheckpointManager(self._folder, item_names=ITEMS, options=options)

    def steps(self) -> list[int]:
        """The committed steps, newest first."""
        steps = committed_steps(self._folder)[::-1]
        # Orbax lists them by questions of its own, and takes a failing one for an absence.
        if not set(steps) <= set(self._manager.all_steps()):
            self._manager.reload()
        unseen = sorted(set(steps) - set(self._manager.all_steps()))
        if unseen:
            raise Unavailable(f"{self._folder / str(unseen[-1])} cannot be read; run the same command again")
        return steps

    def damaged_checkpoints(self) -> list[str]:
        """The checkpoints that were set aside: STEP, or STEP.NUMBER from the second time on."""
        return names_in(self._aside)

    def existing_step(self, step: int | None) -> int:
        """`step`, or the newest if it is None. Raises UserError if it is not saved."""
        steps = self.steps()
        if not steps:
            raise self.no_checkpoint_error()
        if step is not None and step not in steps:
            raise UserError(f"{self._folder} holds no checkpoint of step {step}; there are {', '.join(map(str, sorted(steps)))}")
        return steps[0] if step is None else step

    def no_checkpoint_error(self) -> UserError:
        """The error where there is no checkpoint to restore: it names those that were set aside."""
        damaged = self.damaged_checkpoints()
        if damaged:
            return UserError(
                f"{self._folder} holds no checkpoint: those of step {', '.join(damaged)} were damaged and are in {self._aside}; "
                "put a good copy back, or train again in another --workdir"
            )
        return UserError(f"{self._folder} holds no checkpoint; train the run first")

    def restore(self, step: int, abstract: TrainState) -> TrainState:
        """The state of `step`, with the shardings of `abstract`, on any mesh. Raises
        DamagedCheckpoint where it cannot be read, or its arrays have changed. Raises UserError
        where it is of another model: its arrays are not those of `abstract`.
        """
        self._check_files(step)
        params = self._restore_item(step, "params", abstract.params)
        opt_state, saved_step = self._restore_item(step, "opt_state", (abstract.opt_state, abstract.step))
        return TrainState(params, opt_state, saved_step)

    def restore_params(self, step: int, abstract: Any) -> Any:
        """The parameters of `step` alone; raises as `restore` does, and names the other steps."""
        try:
            self._check_files(step)
            return self._restore_item(step, "params", abstract)
        except DamagedCheckpoint as error:
            steps = sorted(self.steps())
            if step not in steps:  # since it was chosen
                raise UserError(
                    f"the checkpoint {self._folder / str(step)} has just been removed, as its run trains on and keeps the newest "
                    f"train.keep_checkpoints; there are {', '.join(map(str, steps)) or 'none'}: run the same command again"
                ) from error
            others = ", ".join(str(other) for other in steps if other != step)
            raise DamagedCheckpoint(
                f"{error}; put it back from a copy, or take another step (there is {others or 'none'})"
            ) from error

    def close(self) -> None:
        """Frees what reading took."""
        self._manager.close()

    @property
    def _aside(self) -> epath.Path:
        return self._folder.parent / "damaged_checkpoints"

    def _check_files(self, step: int) -> None:
        where = self._folder / str(step)
        damage = find_damage(where) if jax.process_index() == 0 else None
        if broadcast_decision(damage is not None):
            raise DamagedCheckpoint(f"the checkpoint {where} is damaged: {damage or 'process 0 says how'}")

    def _restore_item(self, step: int, item: str, abstract: Any) -> Any:
        where = self._folder / str(step)
        wanted = flatten(abstract)
        try:
            manifests = self._manager.restore(step, args=ocp.args.Composite(manifest=ocp.args.JsonRestore()))["manifest"]
            check_version(manifests, str(where))
            saved: Manifest = {
                path: {key: entry[key] for key in ("shape", "dtype", "checksum")} for path, entry in manifests[item].items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            _raise_undamaged(error, where)
            raise DamagedCheckpoint(f"the checkpoint {where} has no readable manifest ({_first_line(error)})") from error
        compare_manifests(saved, manifest(wanted), where)
        try:
            restored = self._manager.restore(step, args=ocp.args.Composite(**{item: ocp.args.StandardRestore(wanted)}))[item]
        except Exception as error:  # Orbax raises a bare Exception where a read fails
            _raise_undamaged(error, where)
            raise DamagedCheckpoint(f"the checkpoint {where} cannot be read ({_first_line(_causes(error)[-1])})") from error
        for path, sums in jax.device_get(checksums(restored)).items():
            if hex_digits(sums) != saved[path]["checksum"]:
                raise DamagedCheckpoint(f"the checkpoint {where} is damaged: {path} is not what was saved")
        return jax.tree.unflatten(jax.tree.structure(abstract), [restored[name] for name in wanted])


class Checkpoints(StoredCheckpoints):
    """The checkpoints of the run that this process trains."""

    def __init__(self, folder: epath.PathLike, *, keep: int, keep_step: int | None = None) -> None:
        """Keeps the newest `keep` steps, and `keep_step` forever."""
        self._keep, self._keep_step = keep, keep_step
        self._saving: int | None = None  # the step that is being written
        self._counters: Counters | None = None  # of that step
        self._failed: BaseException | None = None  # of the background save
        self._barrier = ocp.multihost.get_barrier_sync_fn()
        options = ocp.CheckpointManagerOptions(
            enable_async_checkpointing=True,
            cleanup_tmp_directories=True,
            async_options=ocp.AsyncOptions(barrier_sync_fn=self._meet, post_finalization_callback=self._complete),
        )
        super().__init__(folder, options)

    @property
    def is_saving(self) -> bool:
        """Whether a background save has not ended yet."""
        return self._manager.is_saving_in_progress()

    def save(self, step: int, state: TrainState, counters: Counters | None = None) -> None:
        """Copies the state and returns; it is written in the background. `counters` go with it,
        where they are known. Raises UserError where this save or the one before has failed; earlier
        checkpoints are intact.
        """
        items = {"params": flatten(state.params), "opt_state": flatten((state.opt_state, state.step))}
        manifests = {name: manifest(leaves, jax.device_get(checksums(leaves))) for name, leaves in items.items()}
        saved = {name: ocp.args.StandardSave(leaves) for name, leaves in items.items()}
        self._wait()
        self._saving, self._counters = step, counters
        with self._name_failures():
            self._manager.save(step, args=ocp.args.Composite(manifest=ocp.args.JsonSave({**WRITER, **manifests}), **saved))

    def raise_failed_save(self) -> None:
        """Raises UserError if a background save has failed."""
        if self._failed is not None:
            with self._name_failures():
                raise self._failed

    def set_aside(self, step: int) -> epath.Path:
        """Moves a damaged checkpoint away: its step can be saved again. Returns its new path."""
        aside = self._aside / str(step)
        number = 1
        while exists(aside):
            number += 1
            aside = aside.with_name(f"{step}.{number}")
        if jax.process_index() == 0:
            make_folder(aside.parent)
            (self._folder / str(step)).rename(aside)
        ocp.multihost.sync_global_processes("mhsh: a damaged checkpoint is set aside")
        self._manager.reload()
        return aside

    def close(self) -> None:
        """Waits for the background save, until it would outlive a power cut. Raises UserError if it
        fails.
        """
        self._wait()
        self._manager.close()

    def _wait(self) -> None:
        """Waits for the background save, and deletes what is no longer kept.

        Orbax would delete as soon as it has renamed the new checkpoint. But its name, and the
        record that Orbax wrote just before, must be on the disk first. All else was flushed before
        the checkpoint was committed.

        All processes must delete the same steps, as Orbax lets them meet at each. So they take
        those that Orbax has in memory: one that asks late would not see what process 0 has deleted.
        """
        with self._name_failures():
            self._manager.wait_until_finished()
        if self._saving is None:
            return
        if jax.process_index() == 0:
            committed = self._folder / str(self._saving)
            for path in filter(is_file, paths_in(committed)):
                make_durable(path)
            make_name_durable(committed)
        for step in sorted(self._manager.all_steps(), reverse=True)[self._keep :]:
            if step != self._keep_step:
                self._manager.delete(step)

    @contextlib.contextmanager
    def _name_failures(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # any error of the threads of a save: Orbax has no class for it
            _raise_passing(error, f"the checkpoint of step {self._saving} in {self._folder} could not be saved")
            is_full = _FULL.search(str(error)) is not None
            reason = "the disk is full" if is_full else _first_line(error)
            raise (FullDisk if is_full else UserError)(
                f"the checkpoint of step {self._saving} in {self._folder} could not be saved ({reason}); those before it are "
                "whole: make room or repair the folder, and run the same command again"
            ) from error

    def _meet(self, *, key: str, timeout_ms: int) -> None:
        """Orbax's barrier for the threads of a save. A thread whose save has failed does not wait
        there: the others wait elsewhere for its part, and Orbax would let both wait 20 minutes.
        """
        self._failed = sys.exc_info()[1]
        if self._failed is not None:
            raise self._failed
        self._barrier(key=key, timeout_ms=timeout_ms)

    def _complete(self) -> None:
        """Called by Orbax when all files are written, before it commits the checkpoint."""
        if jax.process_index() == 0:
            begun = [path for path in paths_in(self._folder) if path.name.startswith(f"{self._saving}.orbax-checkpoint-tmp")]
            [unfinished] = begun or [self._folder / str(self._saving)]
            write_file_manifest(unfinished, self._counters)


def _raise_passing(error: Exception, what: str) -> None:
    """Raises the error of storage that does not answer, or not to this login, as a line."""
    for cause in _causes(error):
        if isinstance(cause, BucketRefusal):
            raise cause
        fails = isinstance(cause, Unavailable) or (isinstance(cause, OSError) and cause.errno in TRANSIENT)
        if fails or (_PASSES.search(str(cause)) and not _FULL.search(str(cause))):
            raise Unavailable(f"{what} ({_first_line(cause)}); run the same command again") from error


def _raise_undamaged(error: Exception, where: epath.Path) -> None:
    """Raises an error that says nothing of the checkpoint: of storage, as `_raise_passing`, or of
    this process, which has too little memory or may not open the files.
    """
    _raise_passing(error, f"the checkpoint {where} could not be read")
    for cause in _causes(error):
        is_own = isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno in OF_THIS_PROCESS)
        if is_own or _OWN.search(str(cause)):
            raise unreadable_here(where, _first_line(cause)) from error


def _causes(error: BaseException) -> list[BaseException]:
    """The error, then what it was made of: Orbax hides what TensorStore or jax have raised."""
    return [error, *(_causes(error.__cause__) if error.__cause__ is not None else [])]


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0][:200] or type(error).__name__
