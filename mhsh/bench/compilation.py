"""mhsh bench compile: tracing, lowering and compiling the training step, all caches cold."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from mhsh.bench import mhsh_steps
from mhsh.bench.candidate import Candidate
from mhsh.bench.results import cell, document
from mhsh.bench.rounds import Plan, take_turns
from mhsh.config.schema import Config
from mhsh.models.build import build_model
from mhsh.training.optimizer import build_optimizer
from mhsh.training.remat import resolve_remat
from mhsh.training.sharding import make_mesh
from mhsh.training.state import abstract_state
from mhsh.training.step import compile_train_step


def compile_step(configs: Mapping[str, Config], rounds: int, note: Callable[[str], None]) -> dict[str, Any]:
    """The document of `configs`. Nothing is computed, and no array is made.

    What the backend keeps for itself (a GPU's autotuning) is warm after the first repetition, which
    does not count.
    """
    candidates = [_contestant(name, config) for name, config in configs.items()]
    plan = Plan(rounds, 1, 0.0, each=True)
    with _no_persistent_cache():
        times = take_turns(candidates, plan, note)
    setting = {
        "batch": configs[mhsh_steps.CONFIG].train.batch_size,
        "length": configs[mhsh_steps.CONFIG].data.sequence_length,
    }
    return document("compile", "program", {"rounds": rounds}, configs, [cell(setting, candidates, times)], {}, None)


def _contestant(name: str, config: Config) -> Candidate:
    mesh = make_mesh(config)
    config, _ = resolve_remat(config, mesh)
    model, optimizer = build_model(config.model), build_optimizer(config.optimizer, config.train)

    def run(repetitions: int) -> None:
        for _ in range(repetitions):
            jax.clear_caches()  # traced functions and programs of this process
            compile_train_step(config, model, optimizer, mesh, abstract_state(config, model, optimizer, mesh))

    return Candidate(
        name=name,
        label=mhsh_steps.label(config),
        run=run,
        work=1,
        baseline=mhsh_steps.baseline_of(name),
        facts=mhsh_steps.identity(name, config, mesh.size),
    )


@contextlib.contextmanager
def _no_persistent_cache() -> Iterator[None]:
    before = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # it remembers from its first use whether it is used
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()
