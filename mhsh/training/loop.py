"""Training from a config to a finished run folder: mesh, data, model, state, step, checkpoint, loop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from mhsh.analysis.ledger import PEAK_FLOPS, parameter_counts, row_flops, step_flops
from mhsh.config import Config
from mhsh.data.corpus import Corpus, check_batch, load_corpus
from mhsh.data.pipeline import prefetched, train_steps, validation_batches
from mhsh.errors import UserError
from mhsh.evaluation.validation import evaluate
from mhsh.models.admin import read_omega
from mhsh.models.bert import build_model
from mhsh.models.objective import Means
from mhsh.run_folder import RunFolder
from mhsh.training.checkpoint import Checkpoints
from mhsh.training.interruption import Interruption
from mhsh.training.optimizer import build_optimizer
from mhsh.training.progress import ProgressDisplay
from mhsh.training.recorder import Recorder, environment
from mhsh.training.sharding import make_mesh, process_rows, put_batch
from mhsh.training.state import TrainState, abstract_state, create_state
from mhsh.training.step import compile_eval_step, compile_train_step


def train(config: Config, folder: RunFolder) -> int | None:
    """Trains `config` in `folder`, going on from its newest checkpoint if it has one.

    Returns None when the run has reached train.num_steps, or the number of the signal that stopped it; its state is saved then.

    Raises:
      UserError: the data, the mesh or what the folder holds does not fit the config.
    """
    checkpoints = Checkpoints(folder.checkpoints_path, keep=config.train.keep_checkpoints, keep_every=config.train.keep_every)
    start = checkpoints.latest_step() or 0
    if start >= config.train.num_steps:
        return None  # nothing is left to do
    mesh = make_mesh(config)
    corpus = load_corpus(config.model, config.data, folder.vocab_path if folder.vocab_path.exists() else None)
    check_batch(corpus, config.train.batch_size)
    rows = process_rows(mesh, config.train.batch_size)
    steps = train_steps(corpus, config.model, config.data, config.train.batch_size, rows)

    model, optimizer = build_model(config.model), build_optimizer(config.optimizer, config.train)
    _check_same_data(folder, corpus)
    if start:
        state = checkpoints.restore(start, abstract_state(config, model, optimizer, mesh))
    else:
        first = put_batch(next(prefetched(steps, 0, 1)), mesh, config.train.batch_size)
        state = create_state(config, model, optimizer, mesh, first)

    begin = time.monotonic()
    step = compile_train_step(config, model, optimizer, mesh, state)
    compile_seconds = time.monotonic() - begin
    score = _scorer(config, corpus, mesh, rows, compile_eval_step(config, model, mesh, state.params))

    record = _record(folder, config, corpus, mesh, state, compile_seconds)
    if not folder.vocab_path.exists():
        corpus.tokenizer.save(folder.vocab_path)
    folder.write_run(record | {"status": "running"})
    log = Log(config, folder, start)
    stopped_by = None
    batches = contextlib.closing(prefetched(steps, start, config.train.num_steps))
    display = ProgressDisplay(folder.path.name, start, config.train.num_steps)
    with batches as iterator, display, Interruption() as interruption:
        if start:
            display.note(f"going on from the checkpoint of step {start}")
        display.note(f"compiled in {compile_seconds:.1f} s on {jax.device_count()} x {jax.devices()[0].device_kind}")
        for number, batch in enumerate(iterator, start + 1):
            state, means = step(state, put_batch(batch, mesh, config.train.batch_size))
            log.finish_previous(display)
            log.begin(number, means)
            stopping = number == config.train.num_steps or interruption.signal is not None
            if stopping or _due(number, config.train.eval_interval) or _due(number, config.train.checkpoint_interval):
                log.finish_previous(display, always=True)
                with log.clock.paused():
                    if number == config.train.num_steps or _due(number, config.train.eval_interval):
                        log.validation(number, score(state.params), display)
                    if stopping or _due(number, config.train.checkpoint_interval):
                        checkpoints.save(number, state)
            if interruption.signal is not None and number < config.train.num_steps:
                stopped_by = interruption.signal
                break
        checkpoints.close()
        log.close()
    folder.write_run(record | {"status": "stopped" if stopped_by else "finished"})
    return stopped_by


class Clock:
    """Seconds spent training; what runs inside `paused` (evaluation, saving) does not count."""

    def __init__(self, seconds: float) -> None:
        self._start = time.monotonic() - seconds

    def seconds(self) -> float:
        """Training seconds so far, those before a resume included."""
        return time.monotonic() - self._start

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stops the clock for a while."""
        begin = time.monotonic()
        yield
        self._start += time.monotonic() - begin


class Log:
    """Rows of figures, each fetched one step late: while the host waits for step n, the device already runs n + 1."""

    def __init__(self, config: Config, folder: RunFolder, start: int) -> None:
        self._recorder = Recorder(folder, start)
        rows = [row for row in folder.read_metrics().rows if row["split"] == "train"] if start else []
        last = rows[-1] if rows else {"tokens": 0, "seconds": 0.0}
        self._interval, self._flops = config.train.log_interval, step_flops(config)
        self._peak = PEAK_FLOPS.get(jax.devices()[0].device_kind)
        self._tokens: int = last["tokens"]
        self._last = (start, self._tokens, last["seconds"])
        self._pending: tuple[int, Means] | None = None
        self.clock = Clock(last["seconds"])

    def begin(self, step: int, means: Means) -> None:
        """Takes the figures of a step that may still be running."""
        self._pending = (step, means)

    def finish_previous(self, display: ProgressDisplay, *, always: bool = False) -> None:
        """Waits for the pending step; writes its row where the interval (or `always`) says so."""
        if self._pending is None:
            return
        step, means = self._pending
        values = {name: float(mean.sum) / float(mean.weight) for name, mean in jax.device_get(means).items()}
        self._pending = None
        self._tokens += int(values.pop("tokens"))
        if not (always or step % self._interval == 0):
            return
        seconds = self.clock.seconds()
        last_step, last_tokens, last_seconds = self._last
        elapsed = max(seconds - last_seconds, 1e-9)
        flops_per_second = (step - last_step) * self._flops / elapsed
        rates = {"tokens_per_second": (self._tokens - last_tokens) / elapsed, "flops_per_second": flops_per_second}
        if self._peak:
            rates["mfu"] = flops_per_second / (self._peak * jax.device_count())
        self._last = (step, self._tokens, seconds)
        self._write(self._row(step, "train", seconds, values) | rates, display)

    def validation(self, step: int, values: dict[str, float], display: ProgressDisplay) -> None:
        """Writes a row of validation figures."""
        self._write(self._row(step, "validation", self._last[2], values), display)

    def close(self) -> None:
        """Ends the files."""
        self._recorder.close()

    def _row(self, step: int, split: str, seconds: float, values: dict[str, float]) -> dict[str, Any]:
        values = {name.removeprefix("token_"): value for name, value in values.items()}
        return {"step": step, "split": split, "tokens": self._tokens, "flops": step * self._flops, "seconds": seconds} | values

    def _write(self, row: dict[str, Any], display: ProgressDisplay) -> None:
        if jax.process_index() == 0:
            self._recorder.write(row)
            display.show(row)


def _due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0


def _scorer(
    config: Config, corpus: Corpus, mesh: Mesh, rows: slice, step: jax.stages.Compiled
) -> Callable[[Any], dict[str, float]]:
    """Parameters -> validation figures over the first train.eval_batches batches (0: all)."""
    batches = validation_batches(corpus, config.model, config.data, config.train.batch_size, rows)
    count = min(config.train.eval_batches or len(batches), len(batches))
    return lambda params: evaluate(
        step, params, (put_batch(batch, mesh, config.train.batch_size) for batch in prefetched(batches, 0, count))
    )


def _check_same_data(folder: RunFolder, corpus: Corpus) -> None:
    """A run that goes on must see the rows that it began with."""
    if not folder.has_run_record():
        return
    recorded = folder.read_run().get("data", {}).get("fingerprint")
    if recorded != corpus.fingerprint:
        raise UserError(
            f"{folder.path} was trained on other data (fingerprint {str(recorded)[:12]}, here {corpus.fingerprint[:12]}); "
            "restore the text files (or, for the source stdlib, the same Python), or start again in another --workdir"
        )


def _record(
    folder: RunFolder, config: Config, corpus: Corpus, mesh: Mesh, state: TrainState, compile_seconds: float
) -> dict[str, Any]:
    """run.json: everything about the run that is not a curve. A resumed run keeps the omega it started from."""
    omega = None
    if config.model.residual == "admin":
        if folder.has_run_record():
            omega = folder.read_run()["omega"]
        else:
            omega = np.asarray(jax.device_get(read_omega(state.params))).mean(axis=-1).reshape(-1).tolist()
    forward = row_flops(config)
    return {
        **environment(),
        "objective": config.model.objective,
        "mesh": dict(mesh.shape),
        "parameters": parameter_counts(config.model),
        "flops_per_token_forward": forward.total / config.data.sequence_length,
        "flops_per_step": step_flops(config),
        "data": {"fingerprint": corpus.fingerprint, "unigram_entropy": corpus.unigram_entropy, **corpus.summary()},
        "omega": omega,
        "compile_seconds": compile_seconds,
    }
