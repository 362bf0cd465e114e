"""Everything that a run consists of before its first step: mesh, data, model, optimizer, checked
on all processes; and the state that it starts from.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import grain
import jax
import numpy as np

from mhsh.cluster.agreement import broadcast_number, check_same_facts, wait_for_all
from mhsh.config.entries import recorded_entries
from mhsh.config.fields import differences
from mhsh.config.resolve import decay_start
from mhsh.config.schema import Config, TranslationDataConfig, to_dict
from mhsh.data.batches import prefetch
from mhsh.data.corpus import Corpus
from mhsh.errors import UserError
from mhsh.models.build import build_model
from mhsh.storage.outcome import SPIKE_ROWS
from mhsh.storage.rows import Metrics
from mhsh.storage.run_folder import Counters, RunFolder
from mhsh.training.checkpoints.checkpoint import Checkpoints, DamagedCheckpoint
from mhsh.training.checkpoints.restore import check_same_vocabulary, init_from_run, load_recorded_corpus
from mhsh.training.environment import code_hash, environment, numerics
from mhsh.training.mesh import make_mesh
from mhsh.training.optimizer import build_optimizer
from mhsh.training.plan import plan_run
from mhsh.training.progress import Display
from mhsh.training.sharding import process_rows, put_batch
from mhsh.training.state import TrainState, create_state, unbox_state
from mhsh.training.validation import Validator
from mhsh.training.watching import Clock, Profiler, Watchdog


class Run:
    """The parts of a run that the loop needs: folder, mesh, data, model, optimizer, checkpoints."""

    def __init__(self, config: Config, folder: RunFolder, display: Display, together: int = 1) -> None:
        """A run of `config` in `folder`, one of so many that are trained `together`. Raises
        UserError where the data, the mesh or the folder does not fit the config, or the processes
        differ.
        """
        self.given_config = config
        code_hash()  # kept from here on: the files are still those that were imported
        self.folder = folder
        self.display = display
        self.watchdog = Watchdog(config.train.hang_seconds)
        self.clock = Clock(self.watchdog.on_phase, display.on_phase)
        self.profiler = Profiler(config.train, folder.path, self.clock, self.display.note)

        self.together = together
        self.plan = plan_run(config, together=together)
        if self.plan.refusal:
            raise UserError(self.plan.refusal)
        self.config = config = self.plan.config
        self.mesh = mesh = make_mesh(self.plan.mesh_shape)
        sentences = config.data.validation_sentences if isinstance(config.data, TranslationDataConfig) else 0
        if sentences and jax.process_count() > 1:
            told = f"data.validation_sentences = {sentences} is for a run of one process, this one has {jax.process_count()}"
            if folder.newest_checkpoint() is None:
                raise UserError(f"{told}; set it to 0, and use mhsh eval afterwards")
            display.note(f"{told}: nothing is translated from here on; use mhsh eval afterwards")
            sentences = 0
        self.optimizer = build_optimizer(config)
        self.abstract = abstract = unbox_state(self.plan.boxed, mesh, config.model)  # shapes, dtypes and shardings of the state

        self.corpus = load_recorded_corpus(folder, config)
        self.corpus.check_batch(config.train.batch_size)
        self._rows = process_rows(mesh, config.train.batch_size)
        wait_for_all("the data")  # a host may have copied prepared rows from a bucket
        check_same_facts(_facts(config, self.corpus))

        self.checkpoints = Checkpoints(folder.checkpoints_path, keep=config.train.keep_checkpoints, keep_step=decay_start(config))
        self.model = model = build_model(config.model)
        self._compiled = itertools.count()
        self.validator = Validator(
            config, model, mesh, self.corpus, abstract.params, compiling=self.compiling, num_sentences=sentences
        )

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """A context to compile in. It ends when every process has compiled."""
        with self.clock.phase("compiling"):
            yield
            wait_for_all(f"compiled/{next(self._compiled)}")

    def batches(self, start: int, end: int) -> grain.DatasetIterator[dict[str, np.ndarray]]:
        """This process's rows of the batches of steps `start` + 1 to `end`; must be closed."""
        return prefetch(self.corpus.train_steps(self.config.train.batch_size, self._rows), start, end)


class Start(NamedTuple):
    """The state and the step from which a run goes on in this process."""

    state: TrainState
    step: int  # of the state
    started_from: dict[str, Any] | None  # for run.json: another run; None: none
    changed: Mapping[str, tuple[Any, Any]]  # the fields whose values differ from here on: before, and now
    used: Counters  # up to this step
    lost_rows: int  # of metrics.jsonl
    losses: tuple[float, ...]  # the last ones that are logged up to this step, in process 0
    skipped_in_a_row: int  # the last updates before it that were not finite


def prepare_start(run: Run, accept_gap: bool) -> Start:
    """The start from which the run goes on; the rows of later steps are cut off. Raises UserError
    where all its checkpoints are damaged, those of train.start_from do not fit, or rows are lost
    and `accept_gap` does not take that.
    """
    state, step, started_from = _first_state(run)
    changed = differences(run.folder.config_at(step), run.given_config)
    used = run.folder.counters(step) or Counters()  # none: of an imported checkpoint, or a fresh state
    lost, skipped, losses = 0, 0, ()
    if jax.process_index() == 0:
        cut = run.folder.cut_metrics(step, used.rows, accept_gap)
        used, lost = used._replace(rows=cut.num_kept), cut.num_lost
        run.clock.add({"repeated": cut.dropped_seconds})
        if used.rows:
            metrics = run.folder.read_metrics()
            losses = tuple(metrics.series("train", "step", "loss")[1][-SPIKE_ROWS:].tolist())
            skipped = _count_skipped(metrics, step)
    return Start(state, step, started_from, changed, used, lost, losses, broadcast_number(skipped))


def _count_skipped(metrics: Metrics, step: int) -> int:
    """The number of updates in a row, up to that of `step`, that were skipped: each has a row."""
    skipped = set(metrics.numbers("train", "step")[metrics.flags("train", "skipped")].tolist())
    return next(number for number in itertools.count() if step - number not in skipped)


def _first_state(run: Run) -> tuple[TrainState, int, dict[str, Any] | None]:
    """The state to go on from, its step, and from which other run it started. A run has four
    starts, tried in this order:

    1. It goes on from its newest good checkpoint; damaged ones are set aside.
    2. It goes on from an imported checkpoint, which has no run.json yet.
    3. It starts with the parameters of another run, train.start_from.
    4. It starts with fresh parameters.
    """
    config, checkpoints, folder, note = run.config, run.checkpoints, run.folder, run.display.note
    for step in checkpoints.steps():
        try:
            with run.clock.phase("restoring"):
                state = checkpoints.restore(step, run.abstract)
        except DamagedCheckpoint as error:
            note(f"{error}; it is set aside as {checkpoints.set_aside(step)}")
        else:
            note(f"resuming from the checkpoint of step {step}")
            return state, step, folder.read_run().get("started_from") if folder.has_run_record() else None
    if checkpoints.damaged_checkpoints():
        raise checkpoints.no_checkpoint_error()
    with contextlib.closing(run.batches(0, 1)) as batches:
        state = create_state(config, run.model, run.optimizer, run.mesh, put_batch(next(batches), run.mesh))
    if not config.train.start_from:
        return state, 0, None
    check_same_vocabulary(config, run.corpus)
    state, report = init_from_run(config, state, run.mesh)
    note(
        f"starts from step {report['step']} of {report['folder']}: {', '.join(report['taken'])}"
        + "".join(f"; {name}: {', '.join(report[name])}" for name in ("fresh", "left") if report[name])
    )
    return state, 0, report


def _facts(config: Config, corpus: Corpus) -> dict[str, str]:
    """The facts that must be equal on all processes, by name."""
    code = environment()
    return {
        "config": hashlib.sha256(json.dumps(to_dict(config)).encode()).hexdigest()[:12],
        "code": f"{code['versions']['mhsh']} at {code['git_revision']}, sources {code_hash()}",
        "numeric settings": json.dumps(numerics()),
        "versions": ", ".join(f"{name} {version}" for name, version in code["versions"].items()),
        "entries": json.dumps(recorded_entries(config)),
        "data": corpus.fingerprint[:12],
        "local devices": f"{jax.local_device_count()} x {jax.devices()[0].device_kind}",
    }
