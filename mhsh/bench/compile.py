"""mhsh bench compile: tracing, lowering and compiling the training step with cold caches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import jax
from jax.experimental.compilation_cache import compilation_cache

from mhsh.bench import mhsh_steps
from mhsh.bench.harness import Candidate, Measured, Schedule, bench_results, take_turns
from mhsh.bench.results import BenchResults
from mhsh.config.schema import Config
from mhsh.models.build import build_model
from mhsh.training.memory import resolve_remat
from mhsh.training.optimizer import build_optimizer
from mhsh.training.sharding import make_mesh
from mhsh.training.state import abstract_state
from mhsh.training.step import compile_train_step


def compile_step(configs: Mapping[str, Config], rounds: int, note: Callable[[str], None]) -> BenchResults:
    """Times compiling the step of `configs`, by name. Nothing is computed, and no array is made.

    What a backend caches by itself (a GPU's autotuning) is warm after the first repetition, which
    does not count.
    """
    candidates = [_candidate(name, config) for name, config in configs.items()]
    with _no_persistent_cache():
        times = take_turns(candidates, Schedule(rounds, 1, 0.0, each=True), note)
    setting = {
        "batch": configs[mhsh_steps.CONFIG].train.batch_size,
        "length": configs[mhsh_steps.CONFIG].data.sequence_length,
    }
    measured = [Measured(setting, candidates, times)]
    return bench_results("compile", "program", {"rounds": rounds}, configs, measured, {}, None)


def _candidate(name: str, config: Config) -> Candidate:
    mesh = make_mesh(config)
    config, _ = resolve_remat(config, mesh)
    model, optimizer = build_model(config.model), build_optimizer(config)
    state = abstract_state(config, optimizer, mesh)

    def run(repetitions: int) -> None:
        for _ in range(repetitions):
            jax.clear_caches()  # traced functions and programs of this process
            compile_train_step(config, model, optimizer, mesh, state)

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
    compilation_cache.reset_cache()  # whether there is a cache is decided once, at its first use
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()
