"""Compiled programs kept in the run's folder, so that a resumed run does not compile again."""

from __future__ import annotations

import contextlib
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
    found = cache.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
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
