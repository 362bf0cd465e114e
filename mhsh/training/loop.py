"""Training, from a config to a finished run folder."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import jax
from etils import epath

from mhsh.config.fields import format_differences
from mhsh.config.schema import Config
from mhsh.data.tables import format_overlap
from mhsh.errors import UserError
from mhsh.outcome import DIVERGED
from mhsh.run_folder import Counters, RunFolder
from mhsh.training.checkpoints.checkpoint import DamagedCheckpoint
from mhsh.training.checkpoints.init_from import check_same_vocabulary, init_from_run
from mhsh.training.cluster import StopAgreement
from mhsh.training.compile_cache import keep_compiled
from mhsh.training.metrics import Log
from mhsh.training.record import RunRecord, outcome_of
from mhsh.training.setup import Setup, prepare
from mhsh.training.signals import MaintenanceWatch, StopSignals
from mhsh.training.state import TrainState, create_state
from mhsh.training.tracking import wandb_run
from mhsh.training.tracking.nan_report import format_report, nan_report
from mhsh.training.tracking.profiling import Profiler
from mhsh.training.tracking.progress import ProgressDisplay
from mhsh.training.tracking.wall_time import WallTime, format_wall_time


def train(config: Config, workdir: epath.PathLike, verbose: bool = False, accept_gap: bool = False) -> int | None:
    """Trains `config` in the run folder `workdir`, local or in a bucket; resumes from the newest
    good checkpoint if there is one.

    Args:
      verbose: also prints which remat policy was chosen for these devices, and where the time went.
      accept_gap: goes on where rows of metrics.jsonl are lost, and records it.

    Returns None when the run has reached train.num_steps, or the number of the signal that stopped
    it. The state is saved in both cases.

    Raises:
      UserError: the data, the mesh or the folder does not fit the config, the tracker is not
        installed, another process trains there, or the run has diverged.
    """
    # Process 0 makes the folder; the others use it after all have agreed on the config.
    if jax.process_index():
        return _train(config, RunFolder(workdir), "", verbose, accept_gap)
    folder = RunFolder.open_for_training(workdir, config)
    if config.train.tracker == "wandb":
        wandb_run.check()
    with folder.held() as note:
        differing = format_differences(folder.read_config(), config)
        if differing:
            raise UserError(f"{folder.path} was taken by a run of another config ({differing}); choose another --workdir")
        return _train(config, folder, note, verbose, accept_gap)


def _train(config: Config, folder: RunFolder, note: str, verbose: bool, accept_gap: bool) -> int | None:
    if folder.newest_checkpoint() == config.train.num_steps:
        if jax.process_index() == 0:
            _check_finished(folder, config.train.num_steps, accept_gap)
        if config.train.tracker == "wandb" and jax.process_index() == 0:
            wandb_run.send_rest(folder, print)
        return None  # nothing is left to train
    wall = WallTime()
    setup = prepare(config, folder)
    display = ProgressDisplay(folder.path.name, config.train.num_steps, quiet=jax.process_index() != 0)
    said = format_overlap(setup.corpus.summary()["overlap"])
    for line in (note, keep_compiled(folder), said, str(setup.remat) if verbose and setup.remat else ""):
        if line:
            display.note(line)
    state, start, started_from = _restore_or_create(setup, display, wall)
    used = folder.counters(start) or Counters()  # of an imported checkpoint, or a fresh state
    lost = 0
    if jax.process_index() == 0:
        cut = folder.cut_metrics(start, used.rows, accept_gap)
        used, lost = used._replace(rows=cut.kept), cut.lost
        wall.add({"repeated": cut.dropped_seconds})

    begin = time.monotonic()
    batch = setup.batch_after(start)
    with wall.spent("compiling"):
        setup.train_step.prepare(batch)
    compile_seconds = time.monotonic() - begin
    display.note(f"compiled in {compile_seconds:.1f} s on {jax.device_count()} x {jax.devices()[0].device_kind}")

    if folder.has_run_record():
        wall.add(folder.read_run()["wall_seconds"])
    record = RunRecord(setup, state, compile_seconds, started_from, wall, start, lost)
    record.write("running")
    display.begin(start)
    with StopSignals() as stop:  # until all is written
        with display, Log(setup.config, folder, start, used, display) as log:
            with wall.spent("training"):
                stopped_by = _loop(setup, log, record, wall, state, start, stop)
            with wall.spent("saving"):
                setup.checkpoints.close()
        record.write("stopped" if stopped_by else "finished", outcome=outcome_of(setup))
    if verbose:
        display.note(format_wall_time(wall.seconds()))
    return stopped_by


def _check_finished(folder: RunFolder, step: int, accept_gap: bool) -> None:
    """Raises UserError where a finished run has lost what `mhsh compare` reads."""
    if not folder.has_run_record():
        raise UserError(
            f"{folder.path} is finished, but run.json is missing; put it back from a copy, or train again in another --workdir"
        )
    used = folder.counters(step)
    assert used is not None, "it was trained"
    cut = folder.cut_metrics(step, used.rows, accept_gap)
    record = folder.read_run()
    if cut.lost and str(step) not in record["lost_rows"]:
        folder.write_run(record | {"lost_rows": record["lost_rows"] | {str(step): cut.lost}})


def _loop(
    setup: Setup, log: Log, record: RunRecord, wall: WallTime, state: TrainState, start: int, stop: StopSignals
) -> int | None:
    """Runs steps `start` + 1 to train.num_steps. Returns the number of the signal that ended it
    early, or None.
    """
    train, train_step, watchdog = setup.config.train, setup.train_step, setup.watchdog
    agreement = StopAgreement()
    profiler = Profiler(train, setup.folder.path)
    batches = contextlib.closing(setup.batches(start, train.num_steps))
    with batches as iterator, MaintenanceWatch(stop), watchdog.watching():
        for step, host_batch in enumerate(wall.waiting(iterator), start + 1):
            batch = setup.put(host_batch)
            if not train_step.is_compiled_for(batch):
                with log.clock.paused(), wall.spent("compiling"):
                    train_step.prepare(batch)
            if step == profiler.first:
                profiler.start(state)
            state, metrics = train_step(state, batch)
            if step == profiler.last:
                with log.clock.paused(), wall.spent("saving"):
                    log.note(profiler.finish(state))
            setup.checkpoints.raise_failed_save()
            log.finish_previous()
            log.begin(step, batch["inputs"].shape[1], metrics)

            last = step == train.num_steps
            stopped_by = agreement.stops_after(step, stop.signal)
            saves = last or stopped_by is not None or _due(step, train.checkpoint_interval)
            validates = last or _due(step, train.eval_interval)
            if saves or validates:
                log.finish_previous(always=True)
            if log.skipped_in_a_row >= train.max_skipped_steps:
                _give_up(setup, record, state, batch, step)
            with log.clock.paused():
                if validates:
                    with wall.spent("evaluating"):
                        log.validation(step, *setup.validator(state.params, train.eval_batches, watchdog.heartbeat))
                if saves:
                    # A save may wait for slow storage.
                    with wall.spent("saving"), watchdog.paused():
                        setup.checkpoints.save(step, state, log.counters())
                    record.write("running")
            watchdog.heartbeat()
            if stopped_by is not None and not last:
                return stopped_by
    return None


def _restore_or_create(setup: Setup, display: ProgressDisplay, wall: WallTime) -> tuple[TrainState, int, dict[str, Any] | None]:
    """The state to go on from, its step, and from which other run it started (None: none).

    It is the newest good checkpoint; damaged ones are set aside. If none was ever saved, it is a
    fresh state, or one with the parameters of train.start_from.
    """
    config, checkpoints = setup.config, setup.checkpoints
    steps = checkpoints.steps()
    for step in steps:
        try:
            with wall.spent("restoring"):
                state = checkpoints.restore(step, setup.abstract)
        except DamagedCheckpoint as error:
            display.note(f"{error}; it is set aside as {checkpoints.set_aside(step)}")
        else:
            display.note(f"resuming from the checkpoint of step {step}")
            # An imported checkpoint has no record yet.
            return state, step, setup.folder.read_run().get("started_from") if setup.folder.has_run_record() else None
    if checkpoints.damaged():
        raise checkpoints.none_left()
    state = create_state(config, setup.model, setup.optimizer, setup.mesh, setup.put(setup.batch_after(0)))
    if not config.train.start_from:
        return state, 0, None
    check_same_vocabulary(config, setup.corpus)
    state, report = init_from_run(config, state, setup.mesh)
    display.note(
        f"starts from step {report['step']} of {report['folder']}: {', '.join(report['taken'])}"
        + "".join(f"; {name}: {', '.join(report[name])}" for name in ("fresh", "left") if report[name])
    )
    return state, 0, report


def _give_up(setup: Setup, record: RunRecord, state: TrainState, batch: dict[str, jax.Array], step: int) -> None:
    """Writes the NaN report to run.json and ends the run. The checkpoints stay."""
    report = nan_report(setup.config, setup.model, setup.mesh, state.params, batch)
    setup.checkpoints.close()
    record.write("stopped", outcome=DIVERGED, diagnosis={"step": step, **report})
    raise UserError(
        f"{setup.folder.path} diverged: {setup.config.train.max_skipped_steps} updates in a row were not finite, to step {step}; "
        f"{format_report(report)} (run.json has all); lower optimizer.learning_rate, or try another model.residual"
    )


def _due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0
