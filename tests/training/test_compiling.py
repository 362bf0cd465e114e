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

from mhsh.errors import UserError
from mhsh.training import compiling
from mhsh.training.compiling import (
    CACHE_FOLDER,
    flags_in_force,
    numeric_flags,
    private_cache,
    use_compilation_cache,
)


def test_flags_that_change_numbers(monkeypatch):
    """An unknown flag counts, and a later one wins."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/x --xla_gpu_deterministic_ops --xla_unknown=3 --xla_a=1 --xla_a=2")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_enable_async_collective_fusion=true --xla_allow_excess_precision=false")
    assert numeric_flags() == {
        "xla_a": "2",
        "xla_allow_excess_precision": "false",
        "xla_gpu_deterministic_ops": "true",
        "xla_unknown": "3",
    }
    assert flags_in_force() == {"step": {}} | {name: os.environ[name] for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")}


def test_a_quote_in_a_path_is_no_beginning_of_a_text(monkeypatch):
    """XLA takes it, and the run ended with a stack trace."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/it's/here --xla_a=1")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "")
    assert numeric_flags() == {"xla_a": "1"}


# Compiles something in a process whose cache is the user's.
PROGRAM = """
import sys
import jax, jax.numpy as jnp
from mhsh.training.compiling import use_compilation_cache
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
note = use_compilation_cache()
jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((8, 8))).block_until_ready()
print(note, file=sys.stderr)
print(events.count("/jax/compilation_cache/cache_hits"), events.count("/jax/compilation_cache/cache_misses"))
"""


def test_the_next_process_compiles_nothing(tmp_path):
    cache, seen = tmp_path / "cache", []
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_COMPILATION", "JAX_PERSISTENT"))}
    environment |= {"JAX_PLATFORMS": "cpu", "MHSH_CACHE": str(cache)}
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=environment)
        assert done.stderr.strip() == ""
        seen.append([int(count) for count in done.stdout.split()])
    assert seen[0][0] == seen[1][1] == 0 and seen[0][1] == seen[1][0] > 0
    assert (cache / CACHE_FOLDER).stat().st_mode & 0o777 == 0o700


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
        note = use_compilation_cache()
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


def test_a_cache_of_the_users_own_stands():
    assert os.environ["JAX_COMPILATION_CACHE_DIR"]  # the tests have one
    assert use_compilation_cache() == ""
