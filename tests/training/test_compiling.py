"""The flags that the compiler gets, and the cache of a run, which is for its owner alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mhsh.config.resolve import named_flags
from mhsh.errors import UserError
from mhsh.storage.run_folder import RunFolder
from mhsh.training.compiling import (
    CACHE_FOLDER,
    flags_in_force,
    keep_compiled,
    machine,
    numeric_flags,
)
from tests.training.states import train_step_of


def test_what_they_become(monkeypatch):
    assert named_flags("none") == {}
    assert named_flags("--xla_a=true  --xla_b=2") == {"xla_a": True, "xla_b": "2"}
    monkeypatch.setenv("XLA_FLAGS", "--xla_c=3")
    monkeypatch.delenv("LIBTPU_INIT_ARGS", raising=False)
    assert flags_in_force("--xla_a=1") == {"step": {"xla_a": "1"}, "XLA_FLAGS": "--xla_c=3", "LIBTPU_INIT_ARGS": ""}


def test_flags_that_change_numbers(monkeypatch):
    """An unknown flag counts; the step's own win over those of the environment."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/x --xla_gpu_deterministic_ops --xla_unknown=3 --xla_a=1")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_enable_async_collective_fusion=true --xla_allow_excess_precision=false")
    assert numeric_flags("--xla_a=2 --xla_cpu_enable_fast_math=true --xla_gpu_enable_latency_hiding_scheduler=true") == {
        "xla_a": "2",
        "xla_allow_excess_precision": "false",
        "xla_cpu_enable_fast_math": "true",
        "xla_gpu_deterministic_ops": "true",
        "xla_unknown": "3",
    }


@pytest.mark.parametrize(("flags", "said"), [("fast", "'fast' is no flag"), ("--xla_a", "is no flag"), (" ", "' ' is no flag")])
def test_what_is_no_flag_is_named(flags, said):
    with pytest.raises(UserError, match=rf"train\.xla_flags.*{said}.*give none, or flags"):
        named_flags(flags)


def test_the_compiler_gets_them(make_config):
    """It knows the first, and says what is wrong with the others."""

    def with_flags(flags):
        return make_config("bert", "2l8h", **{"train.xla_flags": flags, "model.num_layers": 1})

    assert train_step_of(with_flags("--xla_cpu_enable_fast_math=false")).func.as_text()
    with pytest.raises(UserError, match=r"train\.xla_flags: No such compile option: 'xla_of_nobody'"):
        train_step_of(with_flags("--xla_of_nobody=true"))
    with pytest.raises(UserError, match=r"train\.xla_flags: While setting option xla_cpu_enable_fast_math, '7' is not"):
        train_step_of(with_flags("--xla_cpu_enable_fast_math=7"))


# Compiles something slow enough to be kept, in a process whose cache is the run's.
PROGRAM = """
import sys
import jax, jax.numpy as jnp
from mhsh.storage.run_folder import RunFolder
from mhsh.training.compiling import keep_compiled
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
note = keep_compiled(RunFolder(sys.argv[1]))
jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((8, 8))).block_until_ready()
print(note, file=sys.stderr)
print(events.count("/jax/compilation_cache/cache_hits"), events.count("/jax/compilation_cache/cache_misses"))
"""


def hits_misses_and_note(folder: Path) -> tuple[int, int, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        env=environment | {"JAX_PLATFORMS": "cpu"},
    )
    hits, misses = done.stdout.split()
    return int(hits), int(misses), done.stderr.strip()


def test_the_second_process_compiles_nothing_and_nobody_else_may_look(tmp_path):
    hits, misses, note = hits_misses_and_note(tmp_path)
    assert (hits, note) == (0, "") and misses > 0
    assert hits_misses_and_note(tmp_path) == (misses, 0, "")
    assert (tmp_path / CACHE_FOLDER).stat().st_mode & 0o777 == 0o700
    assert [entry.name for entry in (tmp_path / CACHE_FOLDER).iterdir()] == [machine()]


@pytest.mark.parametrize("kind", ["open to others", "link", "broken link", "file"])
def test_a_cache_that_is_not_its_owners_alone_is_not_used(tmp_path, monkeypatch, kind):
    """It is neither read nor written."""
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    cache, elsewhere = tmp_path / CACHE_FOLDER, tmp_path / "elsewhere"
    if kind == "file":
        cache.write_text("mine")
    elif kind == "open to others":
        cache.mkdir(mode=0o755)
    else:
        cache.symlink_to(elsewhere)
    if kind == "link":
        elsewhere.mkdir(mode=0o700)
    before = sorted(tmp_path.rglob("*"))
    hits, _, note = hits_misses_and_note(tmp_path)
    assert hits == 0 and f"{cache} is not a folder of yours alone, and its programs would be executed; remove it" in note
    assert sorted(tmp_path.rglob("*")) == before


def test_a_cache_of_the_users_own_stands(tmp_path):
    assert os.environ["JAX_COMPILATION_CACHE_DIR"]  # the tests have one
    assert keep_compiled(RunFolder(tmp_path)) == ""
    assert list(tmp_path.iterdir()) == []
