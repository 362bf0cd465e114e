"""The record of a run: the rows of its metrics, and run.json."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import jax
import numpy as np

from mhsh.config.entries import recorded_entries
from mhsh.config.fields import all_fields, flatten
from mhsh.config.schema import Config
from mhsh.errors import Unavailable
from mhsh.models.admin import has_omega, read_omega
from mhsh.models.costs import PEAK_FLOPS, parameter_counts, row_flops, row_tokens, step_flops
from mhsh.models.losses import weighted_mean
from mhsh.models.types import sort_stacks
from mhsh.storage.imported import imported_checkpoint
from mhsh.storage.outage import is_over, one_try
from mhsh.storage.outcome import DIVERGED, SPIKE_ROWS, is_spike, plateau_outcome, smoothed_final_loss
from mhsh.storage.run_folder import Counters, RunFolder
from mhsh.training.checkpoints.verify import hex_digits
from mhsh.training.compiling import flags_in_force
from mhsh.training.environment import code_hash, environment, numerics
from mhsh.training.optimizer import count_decayed
from mhsh.training.setup import Run, Start
from mhsh.training.state import TrainState
from mhsh.training.step import StepMetrics
from mhsh.training.trackers import Tracker
from mhsh.training.validation import ValidationResult

_UPLOAD_SECONDS = 30.0  # between two uploads to a bucket


class Log(contextlib.AbstractContextManager["Log", None]):
    """Makes rows of the metrics of a run, and counts tokens, FLOPs and seconds. A step's metrics
    are fetched one step late, so that the device never waits for the host. A context, at whose end
    all rows are written and the trackers closed.
    """

    def __init__(self, run: Run, start: Start, trackers: Sequence[Tracker]) -> None:
        """Continues after the step of `start`. The rows go to metrics.jsonl and to `trackers`."""
        used = start.used
        self._run, self._used = run, used  # what is used up to the last row of training
        self._tokens, self._flops, self._rows = used.tokens, used.flops, used.rows
        self._seconds_before = used.seconds - run.clock.training_seconds()
        self._peak = PEAK_FLOPS.get(jax.devices()[0].device_kind)
        self._pending: tuple[int, Callable[[], StepMetrics]] | None = None
        self._flushed = time.monotonic()
        self._trackers = trackers
        self._unwritten: list[dict[str, Any]] = []  # in a bucket, appending to a file replaces it
        self._before = deque(start.losses, maxlen=SPIKE_ROWS)
        self.skipped_in_a_row = start.skipped_in_a_row

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not isinstance(error, Unavailable):
            self.flush(waits=True)
        for tracker in self._trackers:
            tracker.close(failed=error is not None)

    def begin(self, step: int, metrics: Callable[[], StepMetrics]) -> None:
        """Takes the function that fetches the metrics of a step, which may still be running."""
        self._pending = (step, metrics)

    def finish_previous(self, *, always: bool = False) -> None:
        """Waits for the pending step. Writes its row if log_interval says so, if its loss spikes
        over those of the steps before, if its update was skipped, or `always`.
        """
        if self._pending is None:
            return
        (step, fetch), self._pending = self._pending, None
        sums, is_finite, batch = fetch()
        self._tokens += int(sums["tokens"].sum)
        self._flops += step_flops(self._run.config)
        self.skipped_in_a_row = 0 if is_finite else self.skipped_in_a_row + 1
        for tracker in self._trackers:
            tracker.on_step(step)
        loss = weighted_mean(*map(float, sums["target_loss"]))
        spikes = is_spike(self._before, loss)
        self._before.append(loss)
        if not (always or spikes or not is_finite or step % self._run.config.train.log_interval == 0):
            return
        values = {name: weighted_mean(*map(float, each)) for name, each in sums.items() if name != "tokens"}
        seconds = self._seconds_before + self._run.clock.training_seconds()
        row = self._row(step, "train", seconds, values) | {"batch": hex_digits(batch)}
        row |= {"spike": True} if spikes else {}
        if not is_finite:
            row["skipped"] = True
            message = f"step {step}: the loss or a gradient is not finite; the update is skipped (batch {row['batch']})"
            self._run.display.note(message)
        row |= self._rates(seconds)
        self._used = Counters(self._tokens, self._flops, seconds)
        self._write(row)

    def write_validation(self, step: int, result: ValidationResult) -> None:
        """Writes a validation row."""
        row = self._row(step, "validation", self._used.seconds, result.values)
        self._write(row | {"loss_parts": result.loss_parts, "batch": result.batches})

    def counters(self) -> Counters:
        """The counts up to the last row, when `flush` has written it: a checkpoint must not be
        newer than the rows.
        """
        if jax.process_index() == 0:
            self._run.folder.sync_metrics()
        return self._used._replace(rows=self._rows)

    def _rates(self, seconds: float) -> dict[str, float]:
        """Tokens and FLOPs a second since the last row, and the share of the devices' peak if that
        is known.
        """
        elapsed = max(seconds - self._used.seconds, 1e-9)
        flops_per_second = (self._flops - self._used.flops) / elapsed
        rates = {"tokens_per_second": (self._tokens - self._used.tokens) / elapsed, "flops_per_second": flops_per_second}
        if self._peak:
            rates["mfu"] = flops_per_second / (self._peak * jax.device_count())
        return rates

    def _row(self, step: int, split: str, seconds: float, values: Mapping[str, float]) -> dict[str, Any]:
        values = {name.removeprefix("target_"): value for name, value in values.items()}
        return {"step": step, "split": split, "tokens": self._tokens, "flops": self._flops, "seconds": seconds} | values

    def _write(self, row: dict[str, Any]) -> None:
        self._rows += 1
        self._unwritten.append(row)
        for tracker in self._trackers:
            tracker.on_row(row)
        if not self._run.folder.is_remote or time.monotonic() - self._flushed > _UPLOAD_SECONDS:
            self.flush()

    def flush(self, waits: bool = False) -> bool:
        """Writes all rows so far. Returns whether that was done: where the storage does not answer
        the rows wait for the next time, or with `waits` this call does, until the deadline. Raises
        Unavailable where the deadline is over.
        """
        self._flushed = time.monotonic()
        if not self._unwritten:
            return True
        try:
            with contextlib.nullcontext() if waits else one_try():
                if jax.process_index() == 0:
                    self._run.folder.append_metrics(self._unwritten)
                self._unwritten = []
                for tracker in self._trackers:
                    tracker.flush()
        except Unavailable:
            if waits or is_over():
                raise
        return not self._unwritten


class RunRecord:
    """run.json: everything about a run that is not a curve. Process 0 writes it."""

    def __init__(self, run: Run, start: Start, state: TrainState, compile_seconds: float) -> None:
        """Takes a run that goes on from `start`, in this state."""
        config, corpus, step = run.config, run.corpus, start.step
        changed = {path: now for path, (_, now) in start.changed.items()}
        before = run.folder.run_record()
        self._run = run
        ran = {
            **environment(),
            "mesh": dict(run.mesh.shape),
            "remat_policy": config.model.remat_policy,
            "xla_flags": flags_in_force(),
            **({"cells_together": run.together} if run.together > 1 else {}),
        }
        then, now = (_clock_settings(flatten(each)) for each in (run.folder.read_config(), config))
        clock = {name: before[name] for name in ran if name in before} | then
        self._values: dict[str, Any] = {
            **ran,
            # Who reads seconds asks what ran from which step on.
            "clock": _extend_history(before.get("clock") or ({"0": clock} if before else {}), step, ran | now),
            "changed": run.folder.changes(step) | ({str(step): changed} if changed else {}),
            "code": _extend_history(before.get("code", {}), step, code_hash()),
            "numerics": _extend_history(before.get("numerics", {}), step, numerics()),
            "entries": recorded_entries(config),
            "objective": config.model.objective,
            "choices": [str(choice) for choice in (run.plan.mesh_choice, run.plan.remat) if choice],
            "parameters": parameter_counts(config.model),
            "weight_decayed_parameters": count_decayed(run.config.model.residual, state.params),
            "flops_per_token_forward": row_flops(config).total / row_tokens(config),
            "flops_per_step": step_flops(config),
            "data": {"fingerprint": corpus.fingerprint, "unigram_entropy": corpus.unigram_entropy, **corpus.summary()},
            "omega": _initial_omega(run, state),
            "compile_seconds": compile_seconds,
            "started_from": start.started_from,
            "imported": imported_checkpoint(run.folder.path, before),
            "branched_from": before.get("branched_from"),  # None: its first steps are no copies
            "lost_rows": lost_rows(before.get("lost_rows", {}), step, start.lost_rows),
        }

    def write(self, status: str, **more: Any) -> None:
        """Replaces run.json. Before the first one the vocabulary is written, whose hash it has."""
        if jax.process_index():
            return
        folder = self._run.folder
        if not folder.has_vocabulary():
            self._run.corpus.save_vocab(folder.path)
        vocabulary = folder.vocabulary_hash(self._run.config)
        # What a later start must find again.
        written = {
            "checkpoint": folder.newest_checkpoint(),
            "vocabulary": vocabulary,
            "wall_seconds": self._run.clock.seconds(),
            "status": status,
        }
        folder.write_run(self._values | written | more)


def outcome_of(folder: RunFolder, config: Config, entropy: float | None, goes_on: bool = False) -> str | None:
    """The outcome of a run that has ended without error, by the rules of storage/outcome.py;
    `entropy` is the unigram entropy of its training text. None of one that `goes_on` and whose last
    losses are not finite: of runs that have not finished only those that give up have diverged.
    """
    metrics = folder.read_metrics()
    _, losses = metrics.series("train", "step", "loss")
    _, validation = metrics.series("validation", "step", "loss")
    last = float(validation[-1]) if len(validation) else None
    outcome = plateau_outcome(config.model.objective, smoothed_final_loss(losses), last, entropy)
    return None if goes_on and outcome == DIVERGED else outcome


def lost_rows(before: Mapping[str, int], step: int, lost: int) -> dict[str, int]:
    """The numbers of lost rows, by the step up to which they are, of a run that has so many up to
    `step`. What was lost up to later steps is logged again, and the file may have been restored.
    """
    return {at: number for at, number in before.items() if int(at) < step} | ({str(step): lost} if lost else {})


def _extend_history(before: Mapping[str, Any], start: int, now: Any) -> dict[str, Any]:
    """A setting's history, by the step after which each value began: `before`, up to step `start`,
    and the value `now`, if it is another.
    """
    history = {step: value for step, value in before.items() if int(step) < start}
    return history if now in list(history.values())[-1:] else history | {str(start): now}


def _clock_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that change seconds, without those of which run.json has what ran."""
    clock = (field for field in all_fields(values["model.objective"]) if field.role == "clock")
    return {field.name: values[field.path] for field in clock if field.row != "mesh" and field.name != "remat_policy"}


def _initial_omega(run: Run, state: TrainState) -> dict[str, list[float]] | None:
    """Admin's omega at the start of the run, by stack; None for other residual schemes."""
    if not has_omega(run.config.model):
        return None
    if run.folder.has_run_record():
        return run.folder.read_run("omega")["omega"]
    # All elements of a fresh omega vector are equal.
    fresh = jax.jit(lambda params: {stack: omega[..., 0] for stack, omega in read_omega(params).items()})(state.params)
    return {stack: np.asarray(omega).reshape(-1).tolist() for stack, omega in sort_stacks(jax.device_get(fresh)).items()}
