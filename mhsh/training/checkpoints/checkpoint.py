"""Saving and restoring the training state through Orbax, with a manifest that is compared before
any array is read. A checkpoint whose files or checksums have changed is damaged.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from mhsh.config.schema import TrainConfig
from mhsh.errors import UserError
from mhsh.files import absolute, make_durable
from mhsh.run_folder import Counters, RunFolder
from mhsh.training.checkpoints.checksum import as_hex, checksums
from mhsh.training.checkpoints.manifest import Manifest, compare_manifests, find_damage, flatten, manifest, write_file_manifest
from mhsh.training.checkpoints.replicas import read_once, split_replicas
from mhsh.training.cluster import broadcast_from_process_0
from mhsh.training.state import TrainState

ITEMS = ("params", "opt_state", "manifest")
_FULL = re.compile("No space left on device|Disk quota exceeded")


# An error of a background save is raised by `raise_failed_save`, `save` and `close`. Orbax would
# also log its traceback.
logging.getLogger("absl").addFilter(lambda record: not (record.exc_info and "async_checkpointer" in record.pathname))


class DamagedCheckpoint(UserError):
    """A checkpoint is incomplete, cannot be read, or its arrays have changed."""


class Checkpoints:
    """The checkpoints of one run. params, opt_state and manifest are separate items, so that params
    can be restored alone.
    """

    def __init__(self, folder: epath.PathLike, *, keep: int, keep_every: int) -> None:
        """Keeps the newest `keep` steps, and forever every multiple of `keep_every` (0: none)."""
        self._folder = absolute(folder)
        self._keep, self._keep_every = keep, keep_every
        self._saving: int | None = None  # the step that is being written
        self._counters: Counters | None = None  # of that step
        options = ocp.CheckpointManagerOptions(
            enable_async_checkpointing=True,
            cleanup_tmp_directories=True,
            async_options=ocp.AsyncOptions(post_finalization_callback=self._list_files),
        )
        self._manager = ocp.CheckpointManager(self._folder, item_names=ITEMS, options=options)

    @classmethod
    def of_run(cls, folder: RunFolder, train: TrainConfig) -> Checkpoints:
        """The checkpoints of a run, kept as its config says."""
        return cls(folder.checkpoints_path, keep=train.keep_checkpoints, keep_every=train.keep_every)

    def steps(self) -> list[int]:
        """The committed steps, newest first."""
        return sorted(self._manager.all_steps(), reverse=True)

    def existing_step(self, step: int | None) -> int:
        """`step`, or the newest if it is None. Raises UserError if it is not saved."""
        steps = self.steps()
        if not steps:
            raise UserError(f"{self._folder} holds no checkpoint; train the run first")
        if step is not None and step not in steps:
            raise UserError(f"{self._folder} holds no checkpoint of step {step}; there are {', '.join(map(str, sorted(steps)))}")
        return steps[0] if step is None else step

    def save(self, step: int, state: TrainState, counters: Counters | None = None) -> None:
        """Copies the state and returns; it is written in the background. `counters` go with it,
        where they are known.

        Raises:
          UserError: this save or the one before has failed; earlier checkpoints are intact.
        """
        items = {"params": flatten(state.params), "opt_state": flatten((state.opt_state, state.step))}
        manifests = {name: manifest(leaves, jax.device_get(checksums(leaves))) for name, leaves in items.items()}
        saved = {name: ocp.args.StandardSave(leaves) for name, leaves in items.items()}
        self._finish_save()
        self._saving, self._counters = step, counters
        with self._naming_failures():
            self._manager.save(step, args=ocp.args.Composite(manifest=ocp.args.JsonSave(manifests), **saved))

    def raise_failed_save(self) -> None:
        """Raises UserError if a background save has failed."""
        with self._naming_failures():
            self._manager.check_for_errors()

    def restore(self, step: int, abstract: TrainState) -> TrainState:
        """The state of `step`, with the shardings of `abstract`, on any mesh.

        Raises:
          DamagedCheckpoint: it cannot be read, or its arrays have changed.
          UserError: it is of another model: its arrays are not those of `abstract`.
        """
        self._check_files(step)
        params = self._restore_item(step, "params", abstract.params)
        opt_state, saved_step = self._restore_item(step, "opt_state", (abstract.opt_state, abstract.step))
        return TrainState(params, opt_state, saved_step)

    def restore_params(self, step: int, abstract: Any) -> Any:
        """The parameters of `step` alone; raises as `restore` does."""
        self._check_files(step)
        return self._restore_item(step, "params", abstract)

    def set_aside(self, step: int) -> epath.Path:
        """Moves a damaged checkpoint away: its step can be saved again. Returns its new path."""
        aside = self._folder.parent / "damaged_checkpoints" / str(step)
        number = 1
        while aside.exists():
            number += 1
            aside = aside.with_name(f"{step}.{number}")
        if jax.process_index() == 0:
            aside.parent.mkdir(exist_ok=True)
            (self._folder / str(step)).rename(aside)
        ocp.multihost.sync_global_processes("mhsh: a damaged checkpoint is set aside")
        self._manager.reload()
        return aside

    def close(self) -> None:
        """Waits for the background save, until it would outlive a power cut. Raises UserError if it
        fails.
        """
        self._finish_save()
        self._manager.close()

    def _finish_save(self) -> None:
        """Waits for the background save, and deletes what is no longer kept.

        Orbax would delete as soon as it has renamed the new checkpoint, before that name is on the
        disk.
        """
        with self._naming_failures():
            self._manager.wait_until_finished()
        if self._saving is None:
            return
        if jax.process_index() == 0:
            make_durable(self._folder / str(self._saving))
        for step in self.steps()[self._keep :]:
            if not self._keep_every or step % self._keep_every:
                self._manager.delete(step)

    @contextlib.contextmanager
    def _naming_failures(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # any error of the threads of a save: Orbax has no class for it
            reason = "the disk is full" if _FULL.search(str(error)) else _first_line(error)
            raise UserError(
                f"the checkpoint of step {self._saving} in {self._folder} could not be saved ({reason}); those before it are "
                "whole: make room or repair the folder, and run the same command again"
            ) from error

    def _list_files(self) -> None:
        """Called by Orbax when all files are written, before it commits the checkpoint."""
        if jax.process_index() == 0:
            [unfinished] = list(self._folder.glob(f"{self._saving}.orbax-checkpoint-tmp*")) or [self._folder / str(self._saving)]
            write_file_manifest(unfinished, self._counters)

    def _check_files(self, step: int) -> None:
        where = self._folder / str(step)
        found = broadcast_from_process_0(find_damage(where) if jax.process_index() == 0 else None)
        if found is not None:
            raise DamagedCheckpoint(f"the checkpoint {where} is damaged: {found}")

    def _restore_item(self, step: int, item: str, abstract: Any) -> Any:
        where = self._folder / str(step)
        wanted = flatten(abstract)
        try:
            saved: Manifest = self._manager.restore(step, args=ocp.args.Composite(manifest=ocp.args.JsonRestore()))["manifest"][
                item
            ]
            shapes = {path: {"shape": entry["shape"], "dtype": entry["dtype"]} for path, entry in saved.items()}
            sums_saved = {path: entry["checksum"] for path, entry in saved.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedCheckpoint(f"the checkpoint {where} has no readable manifest ({_first_line(error)})") from error
        compare_manifests(shapes, manifest(wanted), where)
        replicas = split_replicas(next(iter(wanted.values())).sharding)
        try:
            if replicas is not None:
                restored = read_once(where / item, wanted, replicas)
            else:
                restored = self._manager.restore(step, args=ocp.args.Composite(**{item: ocp.args.StandardRestore(wanted)}))[item]
        except Exception as error:  # Orbax raises a bare Exception where a read fails
            raise DamagedCheckpoint(f"the checkpoint {where} cannot be read ({_first_line(error)})") from error
        for path, sums in jax.device_get(checksums(restored)).items():
            if as_hex(sums) != sums_saved[path]:
                raise DamagedCheckpoint(f"the checkpoint {where} is damaged: {path} is not what was saved")
        return jax.tree.unflatten(jax.tree.structure(abstract), [restored[name] for name in wanted])


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200] or type(error).__name__
