"""Training from a config to a finished run folder: mesh, data, model, state, step, checkpoint,
loop.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from mhsh.config.schema import Config, DataConfig, TranslationDataConfig, to_dict
from mhsh.data.batches import BATCH_ORDER_VERSION, ProcessRows, prefetched
from mhsh.data.corpus import Corpus
from mhsh.data.load import load_corpus
from mhsh.errors import UserError
from mhsh.models import fusion
from mhsh.models.admin import read_omega
from mhsh.models.build import Model, build_model
from mhsh.models.costs import parameter_counts, row_flops, step_flops
from mhsh.models.stack import in_stack_order
from mhsh.outcome import DIVERGED, plateau_outcome, smoothed_final
from mhsh.run_folder import RunFolder, vocab_file
from mhsh.training.checkpoint import Checkpoints, DamagedCheckpoint
from mhsh.training.cluster import StopAgreement, preflight, wait_for_all
from mhsh.training.compile_cache import keep_compiled
from mhsh.training.init_from import check_same_vocabulary, started_from
from mhsh.training.log import Log
from mhsh.training.maintenance import MaintenanceWatch
from mhsh.training.nan_report import diagnose, in_words
from mhsh.training.optimizer import build_optimizer, decayed_count
from mhsh.training.progress import ProgressDisplay
from mhsh.training.recorder import environment
from mhsh.training.remat import resolve_remat
from mhsh.training.sharding import make_mesh, process_rows, put_batch
from mhsh.training.signals import Interruption
from mhsh.training.state import TrainState, abstract_state, create_state
from mhsh.training.step import CompiledByLength, compile_train_step
from mhsh.training.validation import Decoding, Scorer
from mhsh.training.watchdog import Watchdog


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a run is made of before its first step."""

    config: Config
    folder: RunFolder
    checkpoints: Checkpoints
    mesh: Mesh
    corpus: Corpus
    rows: ProcessRows  # of a global batch, this process's
    model: Model
    optimizer: optax.GradientTransformationExtraArgs
    choices: tuple[str, ...]  # made for these devices, in words

    def put(self, batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        """This process's rows as its part of the global batch."""
        return put_batch(self.config, batch, self.mesh)


def train(config: Config, folder: RunFolder) -> int | None:
    """Trains `config` in `folder`, going on from its newest good checkpoint if it has one.

    Returns None when the run has reached train.num_steps, or the number of the signal that stopped
    it; its state is saved then.

    Raises:
      UserError: the data, the mesh or what the folder holds does not fit the config, or the run has
        diverged.
    """
    if folder.newest_checkpoint() == config.train.num_steps:
        return None  # nothing is left to do
    setup = _prepare(config, folder)
    display = ProgressDisplay(folder.path.name, config.train.num_steps, quiet=jax.process_index() != 0)
    for choice in setup.choices:
        display.note(choice)
    state, start, started = _restore_or_create(setup, display)

    begin = time.monotonic()
    watchdog = Watchdog(config.train.hang_seconds)
    step, scorer = _compiled(setup, watchdog)
    step.prepare(_batch_of(setup, start))
    compile_seconds = time.monotonic() - begin
    display.note(f"compiled in {compile_seconds:.1f} s on {jax.device_count()} x {jax.devices()[0].device_kind}")

    record = _record(setup, state, compile_seconds) | {"started_from": started}
    _write_record(setup, record | {"status": "running"})
    log = Log(config, folder, start)
    display.begin(start)
    with contextlib.ExitStack() as stack:
        for resource in (display, contextlib.closing(log)):
            stack.enter_context(resource)
        stopped_by = _loop(setup, state, start, step, scorer, watchdog, log, display, record)
        setup.checkpoints.close()
    _write_record(setup, record | {"status": "stopped" if stopped_by else "finished", "outcome": _outcome(setup)})
    return stopped_by


def _loop(
    setup: Setup,
    state: TrainState,
    start: int,
    step: CompiledByLength,
    scorer: Scorer,
    watchdog: Watchdog,
    log: Log,
    display: ProgressDisplay,
    record: dict[str, Any],
) -> int | None:
    """Steps `start` + 1 to train.num_steps; returns the number of the signal that ended it early,
    if one did.
    """
    train, checkpoints = setup.config.train, setup.checkpoints
    steps = setup.corpus.train_steps(train.batch_size, setup.rows)
    num_eval_batches = min(train.eval_batches or scorer.num_batches, scorer.num_batches)
    agreement = StopAgreement()
    batches = contextlib.closing(prefetched(steps, start, train.num_steps))
    with batches as iterator, Interruption() as interruption, MaintenanceWatch(interruption), watchdog.watching():
        for number, host_batch in enumerate(iterator, start + 1):
            batch = setup.put(host_batch)
            if not step.knows(batch):
                with log.clock.paused():
                    step.prepare(batch)
            state, report = step(state, batch)
            checkpoints.raise_failed_save()
            log.finish_previous(display)
            log.begin(number, batch["inputs"].shape[1], report)
            last = number == train.num_steps
            stopped_by = agreement.stops_after(number, interruption.signal)
            saving = last or stopped_by is not None or _due(number, train.checkpoint_interval)
            scoring = last or _due(number, train.eval_interval)
            if saving or scoring:
                log.finish_previous(display, always=True)
            if log.skipped_in_a_row >= train.max_skipped_steps:
                _give_up(setup, state, batch, number, record)
            with log.clock.paused():
                if scoring:
                    log.validation(number, scorer(state.params, num_eval_batches, watchdog.alive), display)
                if saving:
                    log.flush()
                    checkpoints.save(number, state)
            watchdog.alive()
            if stopped_by is not None and not last:
                return stopped_by
    return None


def _prepare(config: Config, folder: RunFolder) -> Setup:
    """Mesh, data and model, after all processes have found that they agree."""
    mesh = make_mesh(config)
    if isinstance(config.data, TranslationDataConfig) and config.data.validation_sentences and jax.process_count() > 1:
        raise UserError(
            f"data.validation_sentences = {config.data.validation_sentences} is for a run of one process, this one has "
            f"{jax.process_count()}; set it to 0, and use mhsh eval afterwards"
        )
    corpus = load_corpus(config, folder.path if (folder.path / vocab_file(config)).exists() else None)
    corpus.check_batch(config.train.batch_size)
    _check_same_data(config, folder, corpus)
    code = environment()
    preflight(
        {
            "config": hashlib.sha256(json.dumps(to_dict(config)).encode()).hexdigest()[:12],
            "code": f"{code['versions']['mhsh']} at {code['git_revision']}",
            "versions": ", ".join(f"{name} {version}" for name, version in code["versions"].items()),
            "data": corpus.fingerprint[:12],
            "local devices": f"{jax.local_device_count()} x {jax.devices()[0].device_kind}",
        }
    )
    keep_compiled(folder)
    checkpoints = Checkpoints.of_run(folder, config.train)
    config, remat = resolve_remat(config, mesh)
    model, optimizer = build_model(config.model), build_optimizer(config.optimizer, config.train)
    with jax.set_mesh(mesh):
        rows = config.train.batch_size // config.train.accumulation_steps
        kernels = fusion.in_words(fusion.why_plain(config.model, rows, config.data.sequence_length))
    choices = tuple(map(str, filter(None, [remat, kernels if config.model.kernels != "plain" else None])))
    return Setup(config, folder, checkpoints, mesh, corpus, functools.partial(process_rows, mesh), model, optimizer, choices)


def _restore_or_create(setup: Setup, display: ProgressDisplay) -> tuple[TrainState, int, dict[str, Any] | None]:
    """The newest good checkpoint and its step, damaged ones set aside; where none was ever saved, a
    fresh state, or one that starts from another run, and 0. And of what other run it started, as
    `started_from` says it (None: of none).
    """
    config, checkpoints = setup.config, setup.checkpoints
    abstract = abstract_state(config, setup.model, setup.optimizer, setup.mesh)
    steps = checkpoints.steps()
    for step in steps:
        try:
            state = checkpoints.restore(step, abstract)
        except DamagedCheckpoint as error:
            display.note(f"{error}; it is set aside as {checkpoints.set_aside(step)}")
        else:
            display.note(f"going on from the checkpoint of step {step}")
            # An imported checkpoint has no record yet.
            return state, step, setup.folder.read_run().get("started_from") if setup.folder.has_run_record() else None
    if steps:
        raise UserError(f"{setup.folder.path} has no good checkpoint left; start again in another --workdir")
    state = create_state(config, setup.model, setup.optimizer, setup.mesh, setup.put(_batch_of(setup, 0)))
    if not config.train.start_from:
        return state, 0, None
    check_same_vocabulary(config, setup.corpus)
    state, report = started_from(config, state, setup.mesh)
    display.note(
        f"starts from step {report['step']} of {report['folder']}: {', '.join(report['taken'])}"
        + "".join(f"; {name}: {', '.join(report[name])}" for name in ("fresh", "left") if report[name])
    )
    return state, 0, report


def _batch_of(setup: Setup, step: int) -> dict[str, np.ndarray]:
    """This process's rows of the batch that follows `step`."""
    steps = setup.corpus.train_steps(setup.config.train.batch_size, setup.rows)
    with contextlib.closing(prefetched(steps, step, step + 1)) as batches:
        return next(batches)


def _give_up(setup: Setup, state: TrainState, batch: dict[str, jax.Array], step: int, record: dict[str, Any]) -> None:
    """Writes the diagnosis to run.json and ends the run; the checkpoints stay as they are."""
    diagnosis = diagnose(setup.config.model, setup.model, setup.mesh, state.params, batch)
    setup.checkpoints.close()
    _write_record(setup, record | {"status": "stopped", "outcome": DIVERGED, "diagnosis": {"step": step, **diagnosis}})
    raise UserError(
        f"{setup.folder.path} diverged: {setup.config.train.max_skipped_steps} updates in a row were not finite, to step {step}; "
        f"{in_words(diagnosis)} (run.json has all); lower optimizer.learning_rate, or try another model.residual"
    )


def _due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0


def _compiled(setup: Setup, watchdog: Watchdog) -> tuple[CompiledByLength, Scorer]:
    """The train step, and what scores parameters on the validation rows."""
    points = itertools.count()

    @contextlib.contextmanager
    def together() -> Iterator[None]:
        # Nobody goes on before all have compiled: else the watchdog of the first would count the
        # time that the last one needs.
        with watchdog.paused():
            yield
            wait_for_all(f"compiled/{next(points)}")

    config, mesh = setup.config, setup.mesh
    abstract = abstract_state(config, setup.model, setup.optimizer, mesh)
    step = CompiledByLength(
        lambda length: compile_train_step(config, setup.model, setup.optimizer, mesh, abstract, length), together
    )
    wanted = config.data.validation_sentences if isinstance(config.data, TranslationDataConfig) else 0
    decoding = Decoding(num_sentences=wanted, num_hypotheses=1, length_penalty=0.0)
    return step, Scorer(config, setup.model, mesh, setup.corpus, setup.rows, abstract.params, decoding, together)


def _check_same_data(config: Config, folder: RunFolder, corpus: Corpus) -> None:
    """A run that goes on must see the rows that it began with."""
    if not folder.has_run_record():
        return
    record = folder.read_run()
    # Version 1 was not recorded; the batches of pre-training are the same under both.
    order = record.get("batch_order", 1)
    if order != BATCH_ORDER_VERSION and not isinstance(config.data, DataConfig):
        raise UserError(
            f"{folder.path} cannot be resumed: the order of the batches has changed since it began (version {order} there, "
            f"{BATCH_ORDER_VERSION} here); train it again in another --workdir"
        )
    recorded = record.get("data", {}).get("fingerprint")
    if recorded != corpus.fingerprint:
        raise UserError(
            f"{folder.path} was trained on other data (fingerprint {str(recorded)[:12]}, here {corpus.fingerprint[:12]}); "
            "restore the text files (or, for the source stdlib, the same Python), or start again in another --workdir"
        )


def _write_record(setup: Setup, record: dict[str, Any]) -> None:
    """run.json and the vocabulary, by process 0."""
    if jax.process_index() == 0:
        if not (setup.folder.path / vocab_file(setup.config)).exists():
            setup.corpus.save_vocab(setup.folder.path)
        setup.folder.write_run(record)


def _outcome(setup: Setup) -> str:
    """Left the unigram plateau, on it, or diverged: by the rules of mhsh/outcome.py, over all rows
    of the run.
    """
    metrics = setup.folder.read_metrics()
    _, losses = metrics.series("train", "step", "loss")
    _, validation = metrics.series("validation", "step", "loss")
    return plateau_outcome(smoothed_final(losses), validation[-1] if validation else None, setup.corpus.unigram_entropy)


def _record(setup: Setup, state: TrainState, compile_seconds: float) -> dict[str, Any]:
    """run.json: everything about the run that is not a curve. A resumed run keeps the omega it
    started from.
    """
    config, corpus = setup.config, setup.corpus
    omega = None
    if config.model.residual == "admin":
        if setup.folder.has_run_record():
            omega = setup.folder.read_run()["omega"]
        else:
            # All elements of a fresh omega vector are one figure.
            fresh = jax.jit(lambda params: {stack: each[..., 0] for stack, each in read_omega(params).items()})(state.params)
            omega = {stack: np.asarray(each).reshape(-1).tolist() for stack, each in in_stack_order(jax.device_get(fresh)).items()}
    return {
        **environment(),
        "objective": config.model.objective,
        "mesh": dict(setup.mesh.shape),
        "remat_policy": config.model.remat_policy,
        "choices": list(setup.choices),
        "parameters": parameter_counts(config.model),
        "weight_decayed_parameters": decayed_count(state.params),
        "flops_per_token_forward": row_flops(config).total / config.data.sequence_length,
        "flops_per_step": step_flops(config),
        "batch_order": BATCH_ORDER_VERSION,
        "data": {"fingerprint": corpus.fingerprint, "unigram_entropy": corpus.unigram_entropy, **corpus.summary()},
        "omega": omega,
        "compile_seconds": compile_seconds,
    }
