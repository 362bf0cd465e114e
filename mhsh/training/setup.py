"""Everything that a run consists of before its first step: mesh, data, model, optimizer, the
compiled steps; checked on all processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import grain
import jax
import numpy as np
import optax
from jax.sharding import Mesh

from mhsh.config.schema import Config, DataConfig, TranslationDataConfig, to_dict
from mhsh.data.batches import BATCH_ORDER_VERSION, BatchPart, prefetched
from mhsh.data.corpus import Corpus
from mhsh.data.load import load_corpus
from mhsh.errors import UserError
from mhsh.models.build import Model, build_model
from mhsh.run_folder import RunFolder
from mhsh.training.checkpoints.checkpoint import Checkpoints
from mhsh.training.cluster import preflight, wait_for_all
from mhsh.training.environment import code_hash, environment, numerics
from mhsh.training.memory import RematChoice, check_state_fits, device_bytes, resolve_remat
from mhsh.training.optimizer import build_optimizer
from mhsh.training.sharding import make_mesh, process_rows, put_batch
from mhsh.training.state import TrainState, abstract_state
from mhsh.training.step import CompiledByLength, compile_train_step
from mhsh.training.tracking.watchdog import Watchdog
from mhsh.training.validation import Decoding, Validator


@dataclasses.dataclass(frozen=True)
class Setup:
    """The parts of a run. The steps are compiled when they are first needed."""

    config: Config
    folder: RunFolder
    checkpoints: Checkpoints
    mesh: Mesh
    corpus: Corpus
    rows: BatchPart  # global batch size -> the rows of it that this process makes
    optimizer: optax.GradientTransformationExtraArgs
    abstract: TrainState  # shapes, dtypes and shardings of the state
    remat: RematChoice | None  # None: the config names a policy
    watchdog: Watchdog
    model: Model
    train_step: CompiledByLength
    validator: Validator

    def batches(self, start: int, end: int) -> grain.DatasetIterator[dict[str, np.ndarray]]:
        """This process's rows of the batches of steps `start` + 1 to `end`; must be closed."""
        return prefetched(self.corpus.train_steps(self.config.train.batch_size, self.rows), start, end)

    def batch_after(self, step: int) -> dict[str, np.ndarray]:
        """This process's rows of the batch of step `step` + 1."""
        with contextlib.closing(self.batches(step, step + 1)) as batches:
            return next(batches)

    def put(self, batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        """This process's rows as its part of the global batch."""
        return put_batch(batch, self.mesh)


def prepare(config: Config, folder: RunFolder) -> Setup:
    """The parts of a run of `config` in `folder`.

    Raises:
      UserError: the data, the mesh or the folder does not fit the config, or the processes differ.
    """
    code_hash()  # kept from here on: the files are still those that were imported
    mesh = make_mesh(config)
    if isinstance(config.data, TranslationDataConfig) and config.data.validation_sentences and jax.process_count() > 1:
        raise UserError(
            f"data.validation_sentences = {config.data.validation_sentences} is for a run of one process, this one has "
            f"{jax.process_count()}; set it to 0, and use mhsh eval afterwards"
        )
    optimizer = build_optimizer(config)
    abstract = abstract_state(config, optimizer, mesh)
    check_state_fits(abstract, device_bytes(mesh.devices.flat[0]))
    folder.check_vocabulary(config)
    corpus = load_corpus(config, folder.path if folder.has_vocabulary() else None)
    corpus.check_batch(config.train.batch_size)
    _check_same_batches(config, folder, corpus)
    wait_for_all("the data")  # a host may have copied prepared rows from a bucket
    preflight(_facts(config, corpus))
    checkpoints = Checkpoints.of_run(folder, config.train)
    config, remat = resolve_remat(config, mesh)
    rows = functools.partial(process_rows, mesh)
    watchdog = Watchdog(config.train.hang_seconds)
    compiling = _all_compile(watchdog)
    model = build_model(config.model)
    train_step = CompiledByLength(lambda length: compile_train_step(config, model, optimizer, mesh, abstract, length), compiling)
    sentences = config.data.validation_sentences if isinstance(config.data, TranslationDataConfig) else 0
    decoding = Decoding(num_sentences=sentences, num_hypotheses=1, length_penalty=0.0)
    validator = Validator(config, model, mesh, corpus, rows, abstract.params, decoding, compiling)
    return Setup(
        config,
        folder,
        checkpoints,
        mesh,
        corpus,
        rows,
        optimizer,
        abstract,
        remat,
        watchdog,
        model,
        train_step,
        validator,
    )


def _check_same_batches(config: Config, folder: RunFolder, corpus: Corpus) -> None:
    """Raises UserError if a run to be resumed would not see the batches that it began with."""
    if not folder.has_run_record():
        return
    record = folder.read_run()
    # Version 1 was not recorded. The batches of pre-training are the same under both.
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


def _facts(config: Config, corpus: Corpus) -> dict[str, str]:
    """What must be the same on all processes."""
    code = environment()
    return {
        "config": hashlib.sha256(json.dumps(to_dict(config)).encode()).hexdigest()[:12],
        "code": f"{code['versions']['mhsh']} at {code['git_revision']}, sources {code_hash()}",
        "numeric settings": json.dumps(numerics(config)),
        "versions": ", ".join(f"{name} {version}" for name, version in code["versions"].items()),
        "data": corpus.fingerprint[:12],
        "local devices": f"{jax.local_device_count()} x {jax.devices()[0].device_kind}",
    }


def _all_compile(watchdog: Watchdog) -> Callable[[], AbstractContextManager[None]]:
    """A context to compile in. It ends when every process has compiled; the watchdog does not count
    that time.
    """
    points = itertools.count()

    @contextlib.contextmanager
    def compiling() -> Iterator[None]:
        with watchdog.paused():
            yield
            wait_for_all(f"compiled/{next(points)}")

    return compiling
