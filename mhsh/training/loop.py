"""Training, from a config to a finished run folder."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from etils import epath

from mhsh.cluster.agreement import StopAgreement, begin_run, broadcast_decision, is_same_everywhere, wait_for_all
from mhsh.cluster.signals import StopSignals, maintenance_watch
from mhsh.config.entries import REGISTRIES, check_entries, check_recorded
from mhsh.config.fields import format_differences, free_fields
from mhsh.config.resolve import branch_point, decay_start, whole_run_as_start
from mhsh.config.schema import Config, to_dict
from mhsh.data.tables import format_overlap, format_unknown
from mhsh.errors import Unavailable, UserError
from mhsh.models.build import describe_fallbacks
from mhsh.storage.bucket import LostRun
from mhsh.storage.outage import is_failing, set_patience
from mhsh.storage.outcome import DIVERGED
from mhsh.storage.run_folder import RunFolder, committed_steps
from mhsh.storage.run_record import FINISHED, RUNNING, STOPPED
from mhsh.training.branch import branch
from mhsh.training.compiling import use_compilation_cache
from mhsh.training.program import HostBatch, Program, check_together
from mhsh.training.progress import Display, Remarks, last_lines
from mhsh.training.record import Log, RunRecord, lost_rows, outcome_of
from mhsh.training.setup import Run, Start, prepare_start
from mhsh.training.state import TrainState
from mhsh.training.trackers import TensorBoard, Tracker, WandbRun, check_wandb
from mhsh.training.watching import Clock

# So often a process looks for the checkpoints that the others see, after pauses of so many seconds:
# NFS shows for a minute what a folder was (nfs(5), acdirmax).
_LOOKS, _SECONDS_BETWEEN_LOOKS = 30, 3.0


class HeldRun(NamedTuple):
    """A run whose folder process 0 holds, and which is open for this config."""

    config: Config
    folder: RunFolder
    note: str  # what holding it says


class DivergedRun(UserError):
    """A run has ended itself: too many updates in a row were not finite."""


def train(config: Config, workdir: epath.PathLike, accept_gap: bool = False, fresh: bool = False) -> int | None:
    """Trains `config` in the run folder `workdir`, local or in a bucket; resumes from the newest
    good checkpoint if there is one.

    Args:
      accept_gap: goes on where rows of metrics.jsonl, or newer checkpoints, are lost, and records
        lost rows.
      fresh: begins a run again whose checkpoints are gone; its rows are moved aside.

    Returns None when the run has reached train.num_steps, or the number of the signal that stopped
    it. The state is saved in both cases.

    Raises UserError where the data, the mesh or the folder does not fit the config, the tracker is
    not installed, or another process trains there; DivergedRun.
    """
    set_patience(config.train.storage_minutes)
    check_own_entries(config, workdir)
    with contextlib.ExitStack() as holding:
        run = HeldRun(config, RunFolder(workdir), "")
        # Process 0 makes the folder; the others use it after all have agreed on the config.
        if jax.process_index() == 0:
            folder = RunFolder.open_for_training(workdir, config)
            run = HeldRun(config, folder, holding.enter_context(folder.hold()))
            if fresh and (aside := folder.set_rows_aside()) is not None:
                print(f"{folder.path} begins again; what it had logged is in {aside}")
        [(_, ended)] = train_together([run], StopSignals(), accept_gap)
        if isinstance(ended, Exception):
            raise ended
        return ended


def train_together(
    runs: Sequence[HeldRun], stop: StopSignals, accept_gap: bool = False
) -> Generator[tuple[HeldRun, int | Exception | None]]:
    """`train` of several runs in one program; yields each when it has ended, with what that returns
    or raises. Those that stand at other steps are trained one after the other. Afterwards `stop`
    also knows of a signal that came at the end.

    Raises Unavailable where storage does not answer, and LostRun where another process has taken a
    run; those that have not ended go on from their newest checkpoints.
    """
    begin_run()
    with contextlib.ExitStack() as open_runs:
        by_step: dict[int, list[_ReadyRun]] = {}
        for held in runs:
            try:
                ready = open_runs.enter_context(_prepare(held, len(runs), accept_gap))
            except (Unavailable, LostRun):
                raise
            except Exception as error:
                yield held, error
                continue
            if ready is None:
                yield held, None
            else:
                by_step.setdefault(ready.start.step, []).append(ready)
        for group in by_step.values():
            yield from _train_group(group, stop) if stop.signal is None else [(each.held, stop.signal) for each in group]


def check_own_entries(config: Config, workdir: epath.PathLike) -> None:
    """Raises UserError where an entry that the config names is not known here, or is not the one
    that the run in the folder began with; the run that it starts from names the file, too, and must
    be there.
    """
    folder, parent = RunFolder(workdir), config.train.start_from
    record = folder.run_record()
    differing = check_recorded(config, record, folder.path, REGISTRIES)
    if not record and parent:
        point = branch_point(parent)
        before = RunFolder(parent if point is None else point[0])
        if point is not None and not before.has_begun() and RunFolder(parent).has_begun():
            raise UserError(
                f"train.start_from = {parent!r} is step {point[1]} of {point[0]}, where no run is; of the run in {parent} write "
                f"--config.train.start_from={shlex.quote(whole_run_as_start(parent))}"
            )
        before.read_config()  # raises where there is none
        check_recorded(config, before.run_record(), before.path, REGISTRIES)
    if differing:
        raise UserError(f"{differing}; put that file back, or train in another --workdir")
    check_entries(config)


class _ReadyRun(NamedTuple):
    """A run before its first step in this process."""

    held: HeldRun
    run: Run
    start: Start


@contextlib.contextmanager
def _prepare(held: HeldRun, together: int, accept_gap: bool) -> Iterator[_ReadyRun | None]:
    """Prepares a run, one of so many `together`; None where nothing is left to train."""
    config, folder, _ = held
    set_patience(config.train.storage_minutes)
    if together > 1:
        check_together(config)
    if jax.process_index() == 0:
        if config.train.tracker == "wandb":
            check_wandb()
        folder.check_checkpoints(accept_gap)
        differing = format_differences(folder.read_config(), config, without=free_fields(config.model.objective))
        if differing:
            raise UserError(f"{folder.path} was taken by a run of another config ({differing}); choose another --workdir")
        if (point := branch_point(config.train.start_from)) is not None:
            branch(folder, config, *point)
        newest = folder.newest_checkpoint()
        if newest is not None and not folder.has_run_record() and folder.counters(newest) is not None:  # none: it is imported
            raise UserError(
                f"{folder.path} was trained to step {newest}, but run.json is missing, which says how; put it back from a copy, or "
                "train again in another --workdir"
            )
    wait_for_all("the folder")
    if _saved_everywhere(folder)[-1:] == [config.train.num_steps]:
        if jax.process_index() == 0:
            _finish(folder, config, accept_gap)
            for line in last_lines(folder, config):
                print(f"{folder.name}: {line}")
        yield None
        return
    quiet = jax.process_index() != 0
    with contextlib.closing(Display(folder.name, config.train.num_steps, quiet=quiet, alone=together == 1)) as display:
        yield _make_ready(held, Run(config, folder, display, together), accept_gap)


def _saved_everywhere(folder: RunFolder) -> list[int]:
    """The steps of the checkpoints, ascending, when all processes see the same ones: each goes on
    from the newest, and those at other steps would add up gradients of other batches. Raises
    Unavailable, in all of them, where they do not for long.
    """
    for look in range(_LOOKS):
        steps = committed_steps(folder.checkpoints_path)
        if is_same_everywhere(f"checkpoints/{look}", str(steps)):
            return steps
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    seen = ", ".join(map(str, steps)) or "none"
    raise Unavailable(
        f"the processes of this run see other checkpoints in {folder.checkpoints_path} (process {jax.process_index()}: {seen}); "
        "give all of them the same folder, and run the same command again"
    )


def _make_ready(held: HeldRun, run: Run, accept_gap: bool) -> _ReadyRun:
    counts = run.corpus.summary()
    with jax.set_mesh(run.mesh):
        choices = str(run.plan.mesh_choice or ""), describe_fallbacks(run.config.model)
    unknown = format_unknown(counts, run.corpus.task.unknown_remedy)
    for line in (held.note, use_compilation_cache(), format_overlap(counts["overlap"]), unknown, *choices):
        if line:
            run.display.note(line)
    start = prepare_start(run, accept_gap)
    if start.changed:
        run.display.note(_describe_changes(run.config, start.step, start.changed))
    return _ReadyRun(held, run, start)


def _train_group(runs: Sequence[_ReadyRun], stop: StopSignals) -> Iterator[tuple[HeldRun, int | Exception | None]]:
    """Steps runs that stand at the same step. One that ends before the others is stepped on, with
    some batch and unseen: a smaller program would have to be compiled.
    """
    left = list(range(len(runs)))
    for each in runs:
        each.run.together = len(runs)
    try:
        program = Program([each.run for each in runs], [each.start.state for each in runs])
        for place, ended in _rounds(program, runs, stop):
            left.remove(place)
            yield runs[place].held, ended
    except (Unavailable, LostRun):
        raise
    except Exception as error:
        yield from ((runs[place].held, error) for place in left)


def _rounds(program: Program, runs: Sequence[_ReadyRun], stop: StopSignals) -> Iterator[tuple[int, int | Exception | None]]:
    """Steps the runs until all have ended; yields the place of each that has, and how."""
    training = {place: _train(each, program, place) for place, each in enumerate(runs)}
    clocks = {place: each.run.clock for place, each in enumerate(runs)}
    batches: list[Any] = [None] * len(runs)
    with stop, maintenance_watch(stop), contextlib.ExitStack() as opened:  # until all is written
        for each in training.values():
            opened.callback(each.close)
        requested = None
        while training:
            for place in _take_turns([*training], clocks):
                try:
                    batches[place] = training[place].send(requested)
                except (Unavailable, LostRun):
                    raise
                except StopIteration as ended:
                    del training[place]
                    yield place, ended.value
                except Exception as error:
                    del training[place]
                    yield place, error
            if training:
                program.step([batch or batches[min(training)] for batch in batches])
                requested = stop.signal  # after this step all of them stop


def _take_turns(places: Sequence[int], clocks: Mapping[int, Clock]) -> Iterator[int]:
    """Yields each of the runs; meanwhile the clocks of the others pause."""
    if len(places) == 1:
        yield from places
        return
    for place in places:
        clocks[place].pause()
    for place in places:
        clocks[place].resume()
        yield place
        clocks[place].pause()
    for place in places:
        clocks[place].resume()


def _train(ready: _ReadyRun, program: Program, place: int) -> Generator[HostBatch, int | None, int | None]:
    """Trains a run at its place in the program: yields the batch of each step. When the step has
    begun it is sent the signal that asks it to stop, or None. Returns the signal that it stopped by
    (None: it is finished).
    """
    _, run, start = ready
    config, folder, display, clock = run.config, run.folder, run.display, run.clock
    compile_seconds = clock.seconds()["compiling"]
    display.note(f"compiled in {compile_seconds:.1f} s on {jax.device_count()} x {jax.devices()[0].device_kind}")
    if folder.has_run_record():
        clock.add(folder.read_run("wall_seconds")["wall_seconds"])
    record = RunRecord(run, start, program.state(place), compile_seconds)
    record.write(RUNNING)
    trackers: list[Tracker] = [display, Remarks(config, run.corpus.unigram_entropy, display.note)]
    if jax.process_index() == 0:
        is_wandb = config.train.tracker == "wandb"
        trackers.append(WandbRun(folder, display.note) if is_wandb else TensorBoard(folder, start.step))
    with Log(run, start, trackers) as log, contextlib.closing(run.watchdog):
        stopped_by = yield from _steps(run, log, record, program, place, start.step)
        with clock.phase("saving"):
            run.checkpoints.close()
    outcome = outcome_of(folder, config, run.corpus.unigram_entropy, goes_on=stopped_by is not None)
    record.write(FINISHED if stopped_by is None else STOPPED, outcome=outcome)
    for line in last_lines(folder, config) if jax.process_index() == 0 else ():
        display.note(line)
    return stopped_by


def _describe_changes(config: Config, step: int, changed: Mapping[str, tuple[Any, Any]]) -> str:
    """The fields that have changed after `step`, in a line, with their values before and now."""
    line = f"after step {step}: {', '.join(f'{path} = {now!r} (before: {old!r})' for path, (old, now) in changed.items())}"
    drops = any(value for name, value in to_dict(config.model).items() if name.endswith("_dropout"))
    return line + ("; dropout draws other masks" if drops and "train.accumulation_steps" in changed else "")


def _steps(
    run: Run, log: Log, record: RunRecord, program: Program, place: int, start: int
) -> Generator[HostBatch, int | None, int | None]:
    """Steps `start` + 1 to train.num_steps, as `_train` has them. Returns the number of the signal
    that ended it early, or None.
    """
    train, clock, watchdog, agreement = run.config.train, run.clock, run.watchdog, StopAgreement()
    decays_after = decay_start(run.config)  # longer runs begin with this checkpoint
    batches = contextlib.closing(run.batches(start, train.num_steps))
    with batches as iterator, clock.phase("training"):
        for step, batch in enumerate(clock.time_waits(iterator), start + 1):
            run.profiler.before_step(step, program.wait)
            requested = yield batch
            run.profiler.after_step(step, program.wait)
            run.checkpoints.raise_failed_save()
            log.finish_previous()  # while the device computes this step
            log.begin(step, program.metrics(place))

            last = step == train.num_steps
            stopped_by = agreement.stops_after(step, requested)
            saves = last or stopped_by is not None or _is_due(step, train.checkpoint_interval) or step == decays_after
            validates = last or _is_due(step, train.eval_interval)
            if saves or validates:
                log.finish_previous(always=True)
            if log.skipped_in_a_row >= train.max_skipped_steps:
                _give_up(run, log, record, step)
            if validates:
                with clock.phase("evaluating"):
                    log.write_validation(step, run.validator(program.state(place).params, train.eval_batches, watchdog.on_progress))
            if saves:
                with clock.phase("saving"):
                    run.display.note(f"step {step}/{train.num_steps}  saving the checkpoint")
                    _save(run, log, record, program.state(place), step, waits=last or stopped_by is not None)
            watchdog.on_progress()
            if stopped_by is not None and not last:
                return stopped_by
    return None


def _save(run: Run, log: Log, record: RunRecord, state: TrainState, step: int, waits: bool) -> None:
    """Saves the state, with the rows before it and run.json. Where the storage does not answer, and
    this save need not be waited for, it is left out: the next one is due soon.
    """
    written = log.flush(waits) and (waits or not (is_failing() and run.checkpoints.is_saving))
    if not broadcast_decision(written):
        run.display.note(f"step {step}: no checkpoint, as {run.folder.path} does not answer; training goes on")
        return
    run.checkpoints.save(step, state, log.counters())
    record.write(RUNNING)


def _is_due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0


def _give_up(run: Run, log: Log, record: RunRecord, step: int) -> None:
    """Ends a run that diverges. The checkpoints stay."""
    log.flush(waits=True)  # before run.json says how it ended
    run.checkpoints.close()
    record.write(STOPPED, outcome=DIVERGED)
    raise DivergedRun(
        f"{run.folder.path} diverged: {run.config.train.max_skipped_steps} updates in a row were not finite, to step {step}; lower "
        "optimizer.learning_rate, or try another model.residual"
    )


def _finish(folder: RunFolder, config: Config, accept_gap: bool) -> None:
    """Ends a run that has its last checkpoint: says in run.json that it is finished, where a
    process died before that, and sends the rows that the tracker lacks. Raises UserError where the
    run has lost rows that `mhsh compare` reads.
    """
    step = config.train.num_steps
    used = folder.counters(step)
    assert used is not None, "it was trained"
    cut = folder.cut_metrics(step, used.rows, accept_gap)
    record, changes = folder.read_run("lost_rows", "data"), {}
    if (lost := lost_rows(record["lost_rows"], step, cut.num_lost)) != record["lost_rows"]:
        changes["lost_rows"] = lost
    if record.get("status") != FINISHED:
        outcome = outcome_of(folder, config, record["data"].get("unigram_entropy"))
        changes |= {"status": FINISHED, "outcome": outcome, "checkpoint": step}
    if changes:
        folder.write_run(record | changes)
    if config.train.tracker == "wandb":
        WandbRun(folder, print).close(failed=False)
