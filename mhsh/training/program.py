"""The compiled step of a run, or of several runs together that differ in its inputs alone, and the
states that it steps.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mhsh.config.schema import Config
from mhsh.errors import UserError
from mhsh.models.kernels.select import asks_for_kernels
from mhsh.training.setup import Run
from mhsh.training.sharding import put_batch
from mhsh.training.state import TrainState
from mhsh.training.step import compile_train_step, run_inputs

HostBatch = dict[str, np.ndarray]  # this process's rows


class Program:
    """The step of all `runs` as one program: of a single run its own, of several one that is mapped
    over them. A run is named by its place among them.
    """

    def __init__(self, runs: Sequence[Run], states: Sequence[TrainState]) -> None:
        """Compiles the step, for the runs from these states. It takes the states: their arrays are
        gone afterwards.
        """
        first = runs[0]
        self.size, self._mesh = len(runs), first.mesh
        with contextlib.ExitStack() as compiling:
            for run in runs:
                compiling.enter_context(run.compiling())
            compiled = compile_train_step(first.config, first.model, first.optimizer, first.mesh, first.abstract, self.size)
        inputs = self._join_runs([run_inputs(run.config, run.mesh) for run in runs])
        self._step, self._states = functools.partial(compiled, inputs), self._join_runs(states)
        self._metrics: Callable[[], Any] = lambda: None  # of the newest step

    def step(self, batches: Sequence[HostBatch]) -> None:
        """Starts the next step of all runs, and waits for the one before."""
        batch = batches[0] if self.size == 1 else {key: np.stack([each[key] for each in batches]) for key in batches[0]}
        before = self._metrics
        self._states, metrics = self._step(self._states, put_batch(batch, self._mesh))
        self._metrics = functools.cache(functools.partial(jax.device_get, metrics))  # fetched once for all runs
        before()

    def wait(self) -> None:
        """Returns when all steps so far are done."""
        jax.block_until_ready(self._states)

    def state(self, place: int) -> TrainState:
        """The state of one run."""
        return self._states if self.size == 1 else _row(self._states, place)

    def metrics(self, place: int) -> Callable[[], Any]:
        """A function that fetches the metrics of one run and of the newest step, now or later."""
        fetch = self._metrics
        return fetch if self.size == 1 else lambda: jax.tree.map(lambda array: array[place], fetch())

    def _join_runs(self, trees: Sequence[Any]) -> Any:
        if self.size == 1:
            return trees[0]
        joined = stack_trees(list(trees))
        for leaf in jax.tree.leaves(list(trees)):
            leaf.delete()
        return joined


@jax.jit
def stack_trees(trees: list[Any]) -> Any:
    """One tree, whose leaves are those of all `trees`, stacked on a new first axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


@jax.jit
def _row(tree: Any, place: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[place], tree)


def check_together(config: Config) -> None:
    """Raises UserError where a run of this config is not trained together with others."""
    fields = {
        "train.tracker": (config.train.tracker, "tensorboard"),
        "train.profile_steps": (config.train.profile_steps, ""),
    }
    wrong = [f"{name} = {value!r}, not {allowed!r}" for name, (value, allowed) in fields.items() if value != allowed]
    wrong += [f"model.kernels = {config.model.kernels!r}, not 'xla'"] if asks_for_kernels(config.model) else []
    if wrong:
        raise UserError(f"cells are not trained together with {'; '.join(wrong)}; leave --together out")
