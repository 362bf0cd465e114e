"""The flags that the compiler gets, and the cache of a user, which is for nobody else."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from mhsh.config.resolve import named_flags
from mhsh.errors import UserError
from mhsh.storage.run_folder import RunFolder
from mhsh.training import compiling
from mhsh.training.compiling import (
    CACHE_FOLDER,
    flags_in_force,
    keep_compiled,
    machine,
    numeric_flags,
    private_cache,
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


@pytest.mark.parametrize(("flags", "said"), [("fast", "'fast' is not a flag"), ("--xla_a", "is not a flag"), (" ", "' ' is not a")])
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


# Compiles something in a process whose cache is the user's.
PROGRAM = """
import sys
import jax, jax.numpy as jnp
from mhsh.storage.run_folder import RunFolder
from mhsh.training.compiling import keep_compiled
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
note = keep_compiled(RunFolder(sys.argv[1]))
jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((8, 8))).block_until_ready()
print(note, file=sys.stderr)
print(events.count("/jax/compilation_cache/cache_hits"), events.count("/jax/compilation_cache/cache_misses"))
"""


def hits_misses_and_note(run: Path, cache: Path) -> tuple[int, int, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_COMPILATION", "JAX_PERSISTENT"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(run)],
        capture_output=True,
        text=True,
        check=True,
        env=environment | {"JAX_PLATFORMS": "cpu", "MHSH_CACHE": str(cache)},
    )
    hits, misses = done.stdout.split()
    return int(hits), int(misses), done.stderr.strip()


def test_the_next_process_compiles_nothing_in_any_folder_and_reads_nothing_from_one(tmp_path):
    """The second run's folder brings a cache, as archives of before did."""
    cache, brought = tmp_path / "cache", tmp_path / "b" / CACHE_FOLDER
    hits, misses, note = hits_misses_and_note(tmp_path / "a", cache)
    assert (hits, note) == (0, "") and misses > 0
    assert (cache / CACHE_FOLDER).stat().st_mode & 0o777 == 0o700
    brought.mkdir(parents=True, mode=0o700)
    assert hits_misses_and_note(tmp_path / "b", cache) == (
        misses,
        0,
        f"{brought} is of an earlier mhsh, and nothing reads it; remove it",
    )

    for entry in (cache / CACHE_FOLDER / machine()).glob("*-cache"):
        (brought / machine()).mkdir(exist_ok=True)
        entry.rename(brought / machine() / entry.name)
    assert hits_misses_and_note(tmp_path / "b", cache)[:2] == (0, misses)


@pytest.mark.parametrize("kind", ["open to others", "link", "broken link", "file"])
def test_a_cache_that_is_not_its_owners_alone_is_not_used(tmp_path, kind):
    """It is neither read nor written."""
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
    with pytest.raises(UserError, match=f"{cache} is not a folder of yours alone, and its programs would be executed; remove it"):
        private_cache(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", ["no folder", "full", "no home"])
def test_a_run_goes_on_without_a_cache(tmp_path, monkeypatch, kind):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv("MHSH_CACHE", str(tmp_path / "file" if kind == "no folder" else tmp_path / "cache"))
    (tmp_path / "file").touch()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if kind == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    if kind == "no home":
        for name in ("MHSH_CACHE", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError))
    before = jax.config.values["jax_compilation_cache_dir"]
    try:
        note = keep_compiled(RunFolder(tmp_path / "run"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    said = {"no folder": "File exists", "full": "File too large", "no home": "this user has no home; set MHSH_CACHE"}[kind]
    assert re.fullmatch(rf"no cache for compiled programs \(.*{said}.*\): every start compiles anew", note)
    assert jax.config.values["jax_compilation_cache_dir"] == before


def test_the_cache_has_a_bound_and_keeps_what_was_used_last(tmp_path):
    for age, name in enumerate(("newest", "middle", "oldest")):
        (tmp_path / name).write_bytes(bytes(10))
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    os.utime(tmp_path / "oldest", (2e9, 1e9))  # it was read since
    compiling._make_room(tmp_path, 20)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["newest", "oldest"]


def test_a_cache_of_the_users_own_stands(tmp_path):
    assert os.environ["JAX_COMPILATION_CACHE_DIR"]  # the tests have one
    assert keep_compiled(RunFolder(tmp_path)) == ""
    assert list(tmp_path.iterdir()) == []
