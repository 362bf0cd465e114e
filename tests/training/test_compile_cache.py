"""The compilation cache of a run: used, for its owner alone, and refused where others could have
written to it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mhsh.errors import UserError
from mhsh.run_folder import RunFolder
from mhsh.training.compile_cache import CACHE_FOLDER, keep_compiled, machine

# Compiles something slow enough to be kept, in a process whose cache is the run's.
PROGRAM = """
import sys
import jax, jax.numpy as jnp
from mhsh.run_folder import RunFolder
from mhsh.training.compile_cache import keep_compiled
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
keep_compiled(RunFolder(sys.argv[1]))
jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((8, 8))).block_until_ready()
print(events.count("/jax/compilation_cache/cache_hits"), events.count("/jax/compilation_cache/cache_misses"))
"""


def hits_and_misses(folder: Path) -> tuple[int, int]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        capture_output=True,
        text=True,
        check=True,
        env=environment | {"JAX_PLATFORMS": "cpu"},
    )
    hits, misses = done.stdout.split()
    return int(hits), int(misses)


def test_the_second_process_compiles_nothing_and_nobody_else_may_look(tmp_path):
    first = hits_and_misses(tmp_path)
    assert first[0] == 0 and first[1] > 0
    assert hits_and_misses(tmp_path) == (first[1], 0)
    assert (tmp_path / CACHE_FOLDER).stat().st_mode & 0o777 == 0o700
    assert [entry.name for entry in (tmp_path / CACHE_FOLDER).iterdir()] == [machine()]


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o750])
def test_a_cache_that_others_can_reach_is_refused(tmp_path, monkeypatch, mode):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    (tmp_path / CACHE_FOLDER).mkdir()
    (tmp_path / CACHE_FOLDER).chmod(mode)
    with pytest.raises(UserError, match=f"{CACHE_FOLDER} is not a folder of yours alone"):
        keep_compiled(RunFolder(tmp_path))


def test_a_link_is_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / CACHE_FOLDER).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="not a folder of yours alone"):
        keep_compiled(RunFolder(tmp_path))


def test_a_cache_of_the_users_own_stands(tmp_path):
    assert os.environ["JAX_COMPILATION_CACHE_DIR"]  # the tests have one
    keep_compiled(RunFolder(tmp_path))
    assert list(tmp_path.iterdir()) == []
