"""Times tracing, lowering and compiling the training step with cold caches.

Nothing is computed, and no array is made. What a backend caches by itself (a GPU's autotuning) is
warm after the first repetition, which does not count.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import jax
from jax.experimental.compilation_cache import compilation_cache

from mhsh.bench.results import BenchResults
from mhsh.bench.steps import candidate_fields, train_setting
from mhsh.bench.timing import Candidate, Note, Schedule, bench
from mhsh.config.schema import Config
from mhsh.models.build import build_model
from mhsh.training.mesh import make_mesh
from mhsh.training.optimizer import build_optimizer
from mhsh.training.plan import plan_run
from mhsh.training.state import unbox_state
from mhsh.training.step import compile_train_step


def compile_step(configs: Mapping[str, Config], rounds: int, note: Note) -> BenchResults:
    """Times compiling the step of `configs`, by name."""
    candidates = [candidate(name, config) for name, config in configs.items()]
    with no_persistent_cache():
        cells = [(train_setting(configs), candidates)]
        return bench("compile", "program", configs, cells, Schedule(rounds), note)


def candidate(name: str, config: Config) -> Candidate:
    """Compiling the step of the config called `name`."""
    plan = plan_run(config)
    config, mesh = plan.config, make_mesh(plan.mesh_shape)
    model, optimizer = build_model(config.model), build_optimizer(config)
    state = unbox_state(plan.boxed, mesh, config.model)

    def run(repetitions: int) -> None:
        for _ in range(repetitions):
            jax.clear_caches()  # traced functions and programs of this process
            compile_train_step(config, model, optimizer, mesh, state)

    return Candidate(run=run, work=1, **candidate_fields(name, config, mesh.size))


@contextlib.contextmanager
def no_persistent_cache() -> Iterator[None]:
    """Compiles without jax's cache on disk."""
    before = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # whether to use a cache is decided once, at its first use
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()
