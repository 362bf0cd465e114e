"""Training, from a config to a finished run folder."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import jax
from etils import epath

from mhsh.cluster.agreement import StopAgreement, agreed, begin_run, wait_for_all
from mhsh.cluster.signals import StopSignals, maintenance_watch
from mhsh.config.entries import REGISTRIES, check_entries, check_recorded
from mhsh.config.fields import differences, format_differences, free_fields
from mhsh.config.resolve import branch_point, decay_start
from mhsh.config.schema import Config, to_dict
from mhsh.data.tables import format_overlap, format_unknown
from mhsh.errors import UserError
from mhsh.models.build import left_to_xla
from mhsh.storage.outage import bear, is_failing
from mhsh.storage.outcome import DIVERGED
from mhsh.storage.run_folder import Counters, RunFolder
from mhsh.training.branch import branch
from mhsh.training.compiling import keep_compiled
from mhsh.training.ending import ending
from mhsh.training.nan_report import format_report, nan_report
from mhsh.training.progress import Display
from mhsh.training.record import Log, RunRecord, outcome_of
from mhsh.training.remarks import Remarks
from mhsh.training.setup import Run, start
from mhsh.training.state import TrainState
from mhsh.training.trackers import TensorBoard, Tracker, WandbRun, check_wandb


def train(
    config: Config, workdir: epath.PathLike, verbose: bool = False, accept_gap: bool = False, fresh: bool = False
) -> int | None:
    """Trains `config` in the run folder `workdir`, local or in a bucket; resumes from the newest
    good checkpoint if there is one.

    Args:
      verbose: also prints which remat policy was chosen for these devices.
      accept_gap: goes on where rows of metrics.jsonl, or newer checkpoints, are lost, and records
        lost rows.
      fresh: begins a run again whose checkpoints are gone; its rows are moved aside.

    Returns None when the run has reached train.num_steps, or the number of the signal that stopped
    it. The state is saved in both cases.

    Raises:
      UserError: the data, the mesh or the folder does not fit the config, the tracker is not
        installed, another process trains there, or the run has diverged.
    """
    bear(config.train.storage_minutes)
    check_own_entries(config, workdir)
    # Process 0 makes the folder; the others use it after all have agreed on the config.
    if jax.process_index():
        return train_held(config, RunFolder(workdir), "", StopSignals(), verbose, accept_gap)
    folder = RunFolder.open_for_training(workdir, config)
    with folder.held() as note:
        if fresh and (aside := folder.set_rows_aside()) is not None:
            print(f"{folder.path} begins again; what it had logged is in {aside}")
        return train_held(config, folder, note, StopSignals(), verbose, accept_gap)


def train_held(
    config: Config, folder: RunFolder, note: str, stop: StopSignals, verbose: bool = False, accept_gap: bool = False
) -> int | None:
    """`train`, where process 0 holds the folder, which is open for this config.

    Args:
      note: what holding it says.
      stop: afterwards it also knows of a signal that came when the run was at its end.
    """
    begin_run()
    bear(config.train.storage_minutes)
    if jax.process_index() == 0:
        if config.train.tracker == "wandb":
            check_wandb()
        if not accept_gap:
            folder.check_checkpoints()
        differing = format_differences(folder.read_config(), config, without=free_fields(config.model.objective))
        if differing:
            raise UserError(f"{folder.path} was taken by a run of another config ({differing}); choose another --workdir")
        branch(folder, config)
    wait_for_all("the folder")
    return _train(config, folder, note, stop, verbose, accept_gap)


def check_own_entries(config: Config, workdir: epath.PathLike) -> None:
    """Raises UserError where an entry that the config names is not known here, or is not the one
    that the run in the folder began with; the run that it starts from names the file, too.
    """
    folder, parent = RunFolder(workdir), config.train.start_from
    record = folder.recorded()
    differing = check_recorded(config, record, folder.path, REGISTRIES)
    if not record and parent:
        point = branch_point(parent)
        before = RunFolder(parent if point is None else point[0])
        check_recorded(config, before.recorded(), before.path, REGISTRIES)
    if differing:
        raise UserError(f"{differing}; put that file back, or train in another --workdir")
    check_entries(config)


def _train(config: Config, folder: RunFolder, note: str, stop: StopSignals, verbose: bool, accept_gap: bool) -> int | None:
    if folder.newest_checkpoint() == config.train.num_steps:
        if jax.process_index() == 0:
            _finish(folder, config, accept_gap)
            for line in ending(folder, config):
                print(f"{folder.path.name}: {line}")
        return None  # nothing is left to train
    with contextlib.closing(Display(folder.path.name, config.train.num_steps, quiet=jax.process_index() != 0)) as display:
        run = Run(config, folder, display)
        stopped_by = _train_run(run, note, stop, verbose, accept_gap)
        for line in ending(folder, config) if jax.process_index() == 0 else ():
            display.note(line)
        return stopped_by


def _train_run(run: Run, note: str, stop: StopSignals, verbose: bool, accept_gap: bool) -> int | None:
    config, folder, display, clock = run.config, run.folder, run.display, run.clock
    counts = run.corpus.summary()
    choices = [str(run.plan.mesh_choice or ""), str(run.plan.remat or "") if verbose else ""]
    with jax.set_mesh(run.mesh):
        choices.append(left_to_xla(config.model))
    for line in (note, keep_compiled(folder), format_overlap(counts["overlap"]), format_unknown(counts), *choices):
        if line:
            display.note(line)

    state, step, started_from = start(run)
    changed = differences(folder.config_at(step), run.asked_for)
    if changed:
        display.note(_said(config, step, changed))
    used = folder.counters(step) or Counters()  # none: of an imported checkpoint, or a fresh state
    lost = 0
    if jax.process_index() == 0:
        cut = folder.cut_metrics(step, used.rows, accept_gap)
        used, lost = used._replace(rows=cut.kept), cut.lost
        clock.add({"repeated": cut.dropped_seconds})
    run.compile()
    compile_seconds = clock.seconds()["compiling"]
    display.note(f"compiled in {compile_seconds:.1f} s on {jax.device_count()} x {jax.devices()[0].device_kind}")

    if folder.has_run_record():
        clock.add(folder.read_run("wall_seconds")["wall_seconds"])
    record = RunRecord(run, state, compile_seconds, started_from, step, lost, {path: now for path, (_, now) in changed.items()})
    record.write("running")
    with stop:  # until all is written
        trackers: list[Tracker] = [display, Remarks(config, run.corpus.unigram_entropy, display.note)]
        if jax.process_index() == 0:
            is_wandb = config.train.tracker == "wandb"
            trackers.append(WandbRun(folder, display.note) if is_wandb else TensorBoard(folder, step))
        with Log(run, used, trackers) as log, contextlib.closing(run.watchdog):
            stopped_by = _steps(run, log, record, state, step, stop)
            with clock.phase("saving"):
                run.checkpoints.close()
        record.write("stopped" if stopped_by else "finished", outcome=outcome_of(run))
    return stopped_by


def _said(config: Config, step: int, changed: Mapping[str, tuple[Any, Any]]) -> str:
    """What has changed, in a line."""
    line = f"after step {step}: {', '.join(f'{path} = {now!r} (before: {old!r})' for path, (old, now) in changed.items())}"
    drops = any(value for name, value in to_dict(config.model).items() if name.endswith("_dropout"))
    return line + ("; dropout draws other masks" if drops and "train.accumulation_steps" in changed else "")


def _steps(run: Run, log: Log, record: RunRecord, state: TrainState, start: int, stop: StopSignals) -> int | None:
    """Runs steps `start` + 1 to train.num_steps. Returns the number of the signal that ended it
    early, or None.
    """
    train, clock, watchdog, agreement = run.config.train, run.clock, run.watchdog, StopAgreement()
    decays_after = decay_start(run.config)  # longer runs begin with this checkpoint
    batches = contextlib.closing(run.batches(start, train.num_steps))
    with batches as iterator, maintenance_watch(stop), clock.phase("training"):
        for step, host_batch in enumerate(clock.waiting(iterator), start + 1):
            batch = run.put(host_batch)
            run.profiler.before_step(step, state)
            state, metrics = run.train_step(state, batch)
            run.profiler.after_step(step, state)
            run.checkpoints.raise_failed_save()
            log.finish_previous()  # while the device computes this step
            log.begin(step, metrics)

            last = step == train.num_steps
            stopped_by = agreement.stops_after(step, stop.signal)
            saves = last or stopped_by is not None or _due(step, train.checkpoint_interval) or step == decays_after
            validates = last or _due(step, train.eval_interval)
            if saves or validates:
                log.finish_previous(always=True)
            if log.skipped_in_a_row >= train.max_skipped_steps:
                _give_up(run, record, state, batch, step)
            if validates:
                with clock.phase("evaluating"):
                    log.validation(step, run.validator(state.params, train.eval_batches, watchdog.on_progress))
            if saves:
                with clock.phase("saving"):
                    run.display.note(f"step {step}/{train.num_steps}  saving the checkpoint")
                    _save(run, log, record, state, step, waits=last or stopped_by is not None)
            watchdog.on_progress()
            if stopped_by is not None and not last:
                return stopped_by
    return None


def _save(run: Run, log: Log, record: RunRecord, state: TrainState, step: int, waits: bool) -> None:
    """Saves the state, with the rows before it and run.json. Where the storage does not answer, and
    this save need not be waited for, it is left out: the next one is due soon.
    """
    written = log.flush(waits) and (waits or not (is_failing() and run.checkpoints.is_saving))
    if not agreed(written):
        run.display.note(f"step {step}: no checkpoint, as {run.folder.path} does not answer; training goes on")
        return
    run.checkpoints.save(step, state, log.counters())
    record.write("running")


def _due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0


def _give_up(run: Run, record: RunRecord, state: TrainState, batch: dict[str, jax.Array], step: int) -> None:
    """Writes the NaN report to run.json and ends the run. The checkpoints stay."""
    report = nan_report(run.config, run.model, run.mesh, state.params, batch)
    run.checkpoints.close()
    record.write("stopped", outcome=DIVERGED, diagnosis={"step": step, **report})
    raise UserError(
        f"{run.folder.path} diverged: {run.config.train.max_skipped_steps} updates in a row were not finite, to step {step}; "
        f"{format_report(report)} (run.json has all); lower optimizer.learning_rate, or try another model.residual"
    )


def _finish(folder: RunFolder, config: Config, accept_gap: bool) -> None:
    """Sends what the tracker lacks of a finished run.

    Raises:
      UserError: the run has lost what `mhsh compare` reads.
    """
    if not folder.has_run_record():
        raise UserError(
            f"{folder.path} is finished, but run.json is missing; put it back from a copy, or train again in another --workdir"
        )
    step = config.train.num_steps
    used = folder.counters(step)
    assert used is not None, "it was trained"
    cut = folder.cut_metrics(step, used.rows, accept_gap)
    record = folder.read_run("lost_rows")
    if cut.lost and str(step) not in record["lost_rows"]:
        folder.write_run(record | {"lost_rows": record["lost_rows"] | {str(step): cut.lost}})
    if config.train.tracker == "wandb":
        WandbRun(folder, print).close(failed=False)
