"""How programs are compiled: the flags of XLA, and a cache in the run's folder. With the cache a
resumed run does not compile again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shlex
import stat
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from mhsh.config.resolve import named_flags
from mhsh.errors import UserError
from mhsh.storage.run_folder import RunFolder

CACHE_FOLDER = "compilation_cache"
# jax would keep only what takes a second to compile. The others of a run take as long together.
KEEP_ALL = ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

# From the environment; they apply to everything that the process compiles.
_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")

# In the names of flags that change the time, the memory or what is written, but no number. Every
# other flag counts as one that changes numbers, also one that is not known here: a comparison that
# doubts too much says so, and one that doubts too little is wrong in silence.
_NO_NUMBERS = (
    *("async", "cache_dir", "command_buffer", "compilation_parallelism", "data_dir", "device_count", "dump"),
    *("memory_limit", "pipelined", "profile", "scheduler", "vmem_limit"),
)


def flags_in_force(flags: str) -> dict[str, Any]:
    """What run.json records: the step's own flags, and those of the environment."""
    return {"step": named_flags(flags)} | {name: os.environ.get(name, "") for name in _VARIABLES}


def numeric_flags(flags: str) -> dict[str, str]:
    """Of the flags in force, those that may change numbers. The step's own come last and win."""
    in_force: dict[str, str] = {}
    for argument in shlex.split(" ".join(os.environ.get(name, "") for name in _VARIABLES)):
        flag, _, value = argument.lstrip("-").partition("=")
        in_force[flag] = value or "true"  # without a value it is switched on
    in_force |= {flag: str(value).lower() for flag, value in named_flags(flags).items()}
    return {flag: in_force[flag] for flag in sorted(in_force) if not any(part in flag for part in _NO_NUMBERS)}


def keep_compiled(folder: RunFolder) -> str:
    """Makes jax use a compilation cache in the run's folder. Returns a note for the user: empty, or
    why there is none.

    Programs from the cache are executed, so only its owner may have access to it. Nothing is kept
    in a bucket, where that cannot be checked. If JAX_COMPILATION_CACHE_DIR is set, that cache is
    used instead.
    """
    if folder.is_remote or os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return ""
    try:
        cache = private_cache(Path(os.fspath(folder.path)))
    except UserError as error:  # a cache can be done without
        return f"{error}; until then every start compiles anew"
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update(KEEP_ALL[0].lower(), float(KEEP_ALL[1]))
    compilation_cache.reset_cache()  # jax decides at its first compilation whether it has one
    return ""


def private_cache(folder: Path) -> Path:
    """The cache in `folder` for programs of this kind of machine. Creates it if needed.

    Raises:
      UserError: it is no folder, it belongs to somebody else, or others have access to it.
    """
    cache = folder / CACHE_FOLDER
    with contextlib.suppress(FileExistsError):
        cache.mkdir(mode=0o700)
    status = cache.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UserError(f"{cache} is not a folder of yours alone, and its programs would be executed; remove it")
    return cache / machine()


def machine() -> str:
    """A hash of the kind of CPU. jax's cache keys distinguish versions and accelerators, not CPUs:
    a program compiled for a newer CPU would crash.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    features = sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})
    return hashlib.sha256("\n".join([platform.machine(), *features]).encode()).hexdigest()[:12]
