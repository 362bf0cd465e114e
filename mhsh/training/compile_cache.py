"""Compiled programs kept in the run's folder, so that a run that goes on does not compile again;
for its owner alone.
"""

from __future__ import annotations

import hashlib
import os
import platform
import stat
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from mhsh.errors import UserError
from mhsh.run_folder import RunFolder

CACHE_FOLDER = "compilation_cache"


def keep_compiled(folder: RunFolder) -> None:
    """Lets jax keep what it compiles from now on in the run's folder, and look there first.

    A program from the cache is executed as it is: the cache is for its owner alone, and one that
    others could have written to is refused. In a bucket nothing is kept, as nobody could tell; and
    where the user has chosen a cache for all of jax (JAX_COMPILATION_CACHE_DIR), that one stands.

    Raises:
      UserError: the cache belongs to somebody else, or others may write to it.
    """
    if folder.is_remote or os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    jax.config.update("jax_compilation_cache_dir", str(private_cache(Path(os.fspath(folder.path)))))
    compilation_cache.reset_cache()  # jax remembers from its first compilation whether it has one


def private_cache(folder: Path) -> Path:
    """The cache in `folder` for this kind of machine's programs, made where it is missing.

    Raises:
      UserError: the cache belongs to somebody else, or others may write to it.
    """
    cache = folder / CACHE_FOLDER
    cache.mkdir(mode=0o700, exist_ok=True)
    found = cache.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UserError(f"{cache} is not a folder of yours alone, and what lies in it would be executed; remove it")
    return cache / machine()


def machine() -> str:
    """Which machine's programs these are, in a word: jax tells versions and accelerators apart by
    itself, but not CPUs, and a program that was compiled for a better one dies.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    features = sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})
    return hashlib.sha256("\n".join([platform.machine(), *features]).encode()).hexdigest()[:12]
