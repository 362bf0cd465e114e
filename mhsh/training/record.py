"""run.json: everything about a run that is not a curve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from mhsh.data.batches import BATCH_ORDER_VERSION
from mhsh.models.admin import read_omega
from mhsh.models.costs import parameter_counts, row_flops, step_flops
from mhsh.models.types import in_stack_order
from mhsh.outcome import plateau_outcome, smoothed_final
from mhsh.training.compiling import flags_in_force
from mhsh.training.environment import code_hash, environment, numerics
from mhsh.training.optimizer import decayed_count
from mhsh.training.setup import Setup
from mhsh.training.state import TrainState
from mhsh.training.tracking.wall_time import WallTime


class RunRecord:
    """Writes run.json and the vocabulary. Only process 0 does."""

    def __init__(
        self,
        setup: Setup,
        state: TrainState,
        compile_seconds: float,
        started_from: dict[str, Any] | None,
        wall: WallTime,
        start: int,
        lost_rows: int,
    ) -> None:
        """Of a run that goes on after step `start`, up to which `lost_rows` of metrics.jsonl are
        lost.
        """
        config, corpus = setup.config, setup.corpus
        self._setup, self._wall = setup, wall
        before = setup.folder.read_run() if setup.folder.has_run_record() else {}
        self._values: dict[str, Any] = {
            **environment(),
            "code": _by_step(before.get("code", {}), start, code_hash()),
            "numerics": _by_step(before.get("numerics", {}), start, numerics(config)),
            "objective": config.model.objective,
            "mesh": dict(setup.mesh.shape),
            "remat_policy": config.model.remat_policy,
            "xla_flags": flags_in_force(config.train.xla_flags, jax.devices()[0].device_kind),
            "choices": [str(setup.remat)] if setup.remat else [],
            "parameters": parameter_counts(config.model),
            "weight_decayed_parameters": decayed_count(state.params),
            "flops_per_token_forward": row_flops(config).total / config.data.sequence_length,
            "flops_per_step": step_flops(config),
            "batch_order": BATCH_ORDER_VERSION,
            "data": {"fingerprint": corpus.fingerprint, "unigram_entropy": corpus.unigram_entropy, **corpus.summary()},
            "omega": _initial_omega(setup, state),
            "compile_seconds": compile_seconds,
            "started_from": started_from,
            "lost_rows": before.get("lost_rows", {}) | ({str(start): lost_rows} if lost_rows else {}),
        }

    def write(self, status: str, **more: Any) -> None:
        """Replaces run.json. Before the first one the vocabulary is written, whose hash it has."""
        if jax.process_index():
            return
        folder = self._setup.folder
        if not folder.has_vocabulary():
            self._setup.corpus.save_vocab(folder.path)
        values = {"vocabulary": folder.vocabulary_hash(self._setup.config), "wall_seconds": self._wall.seconds(), "status": status}
        folder.write_run(self._values | values | more)


def outcome_of(setup: Setup) -> str:
    """The outcome of a run that has ended without error, by the rules of mhsh/outcome.py."""
    metrics = setup.folder.read_metrics()
    _, losses = metrics.series("train", "step", "loss")
    _, validation = metrics.series("validation", "step", "loss")
    return plateau_outcome(smoothed_final(losses), validation[-1] if validation else None, setup.corpus.unigram_entropy)


def _by_step(before: Mapping[str, Any], start: int, now: Any) -> dict[str, Any]:
    """All that trained the parameters, each by the step after which it began: what did `before`, up
    to step `start`, and what does now, if that is another.
    """
    kept = {step: value for step, value in before.items() if int(step) < start}
    return kept if now in list(kept.values())[-1:] else kept | {str(start): now}


def _initial_omega(setup: Setup, state: TrainState) -> dict[str, list[float]] | None:
    """Admin's omega at the start of the run, by stack; None for other residual schemes."""
    if setup.config.model.residual != "admin":
        return None
    if setup.folder.has_run_record():
        return setup.folder.read_run()["omega"]
    # All elements of a fresh omega vector are equal.
    fresh = jax.jit(lambda params: {stack: each[..., 0] for stack, each in read_omega(params).items()})(state.params)
    return {stack: np.asarray(each).reshape(-1).tolist() for stack, each in in_stack_order(jax.device_get(fresh)).items()}
