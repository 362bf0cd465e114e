"""A run that begins at a step of another, train.start_from = RUN@STEP: its config describes the
whole run, and the steps up to STEP, which are those of RUN, are copied and not trained again. They
are what the new run would have made, up to the rounding of another program.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from etils import epath

from mhsh.config.entries import REGISTRIES, check_recorded
from mhsh.config.fields import differences, free_fields
from mhsh.config.schema import Config
from mhsh.errors import UserError
from mhsh.storage.bucket import is_remote
from mhsh.storage.files import make_folder, new_folder
from mhsh.storage.outcome import DIVERGED
from mhsh.storage.questions import exists, files_below
from mhsh.storage.run_folder import COMMIT_MARK, METRICS_FILE, RunFolder
from mhsh.training.checkpoints.checkpoint import StoredCheckpoints
from mhsh.training.optimizer import learning_rate

# What may differ: the learning rates of later steps follow from these.
_SCHEDULE = (
    "train.num_steps",
    "optimizer.schedule",  # with a reason of its own
    "optimizer.decay_steps",
    "optimizer.end_learning_rate",
)
_COPYING = "branching"  # the status in run.json until the checkpoint is there


def branch(folder: RunFolder, config: Config, start: str, step: int) -> None:
    """Makes the new run in `folder` what the run in `start` was after `step`: vocabulary, metrics,
    run.json, and at last the checkpoint, so that what a killed copy leaves is copied anew. Does
    nothing where the run has gone on. Raises UserError where the other has no checkpoint of the
    step or diverged before it, its steps up to it are not those of `config`, or one of the two
    folders is in a bucket and the other is not.
    """
    if folder.newest_checkpoint() is not None:
        return
    own = folder.run_record()
    # No checkpoint was ever there where the other had diverged before the step.
    if own and own.get("status") != _COPYING and own.get("checkpoint", 0) is not None:
        return
    trunk = RunFolder(start)
    checkpoints = StoredCheckpoints(trunk.checkpoints_path)
    saved_steps = sorted(checkpoints.steps())
    checkpoints.close()
    used = trunk.counters(step) if step in saved_steps else None
    record = trunk.run_record()
    begun = {"checkpoint": None, "changed": {}, "branched_from": {"folder": str(trunk.path), "step": step}}
    if used is None and record.get("outcome") == DIVERGED:
        folder.write_run(record | begun)
        (trunk.path / METRICS_FILE).copy(folder.path / METRICS_FILE, overwrite=True)
        raise UserError(f"{folder.path} diverged: its first steps are those of {trunk.path}, which diverged before step {step}")
    if used is None:
        has = f"it has {', '.join(map(str, saved_steps))}" if saved_steps else "it has none"
        raise UserError(f"train.start_from = {config.train.start_from!r}: the run has no checkpoint of step {step}; {has}")
    other_file = check_recorded(config, record, trunk.path, REGISTRIES)
    if other_file:
        again = f"put that file back, or start from {start} without a step"
        raise UserError(f"train.start_from = {config.train.start_from!r}: {other_file}; {again}")
    _check_same_steps(trunk, config, step)
    if trunk.is_remote != folder.is_remote:
        raise UserError(
            f"train.start_from = {config.train.start_from!r} and {folder.path}: one is in a bucket and one on a disk; copy the run "
            "to where the branch shall be"
        )
    # Not the time of the other's later steps.
    folder.write_run(record | begun | {"status": _COPYING, "wall_seconds": {"training": used.seconds}})
    for path in (trunk.path / METRICS_FILE, trunk.vocabulary(trunk.read_config())):
        if path is not None and exists(path):
            path.copy(folder.path / path.name, overwrite=True)
    folder.cut_metrics(step, used.rows, accept_gap=True)  # what is missing is said when the run goes on
    _copy_checkpoint(trunk.checkpoints_path / str(step), folder.checkpoints_path / str(step))


def _check_same_steps(trunk: RunFolder, config: Config, step: int) -> None:
    """Raises UserError unless a run of `config` would make the steps of `trunk` up to `step`."""
    theirs = trunk.read_config()
    free = free_fields(config.model.objective)
    for path, (there, here) in differences(theirs, config).items():
        if path not in free and path not in _SCHEDULE and path != "train.start_from":
            raise UserError(
                f"train.start_from = {config.train.start_from!r}: {path} is {there!r} there and {here!r} here; a branch can only "
                "have another schedule after the step"
            )
    named = [each.optimizer.schedule for each in (theirs, config)]
    if named[0] != named[1]:  # equal rates of two formulas may be rounded otherwise
        raise UserError(
            f"train.start_from = {config.train.start_from!r}: optimizer.schedule is {named[0]!r} there and {named[1]!r} here; "
            "train the first run with wsd, whose rate is constant until the last decay_steps"
        )
    steps = jnp.arange(step)
    ours, before = (np.broadcast_to(learning_rate(each.optimizer, each.train)(steps), (step,)) for each in (config, theirs))
    unequal = np.flatnonzero(ours != before)
    if len(unequal):
        first = int(unequal[0])
        raise UserError(
            f"train.start_from = {config.train.start_from!r}: the learning rate of step {first + 1} is {before[first]:g} there and "
            f"{ours[first]:g} here; branch at step {first} or before, or give a schedule that begins as that one"
        )


def _copy_checkpoint(source: epath.Path, target: epath.Path) -> None:
    files = list(files_below(source))
    if is_remote(target):
        # The mark that makes a checkpoint of them comes last.
        for path in sorted(files, key=lambda path: path.name == COMMIT_MARK):
            path.copy(target / path.relative_to(source), overwrite=True)
        return
    with new_folder(str(target)) as folder:
        for path in files:
            copy = epath.Path(folder) / path.relative_to(source)
            make_folder(copy.parent)
            path.copy(copy)
