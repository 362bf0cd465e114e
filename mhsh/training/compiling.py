"""The compilation of programs: the flags of XLA, and a cache that all runs of a user share."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shlex
import stat
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from mhsh.cluster.agreement import is_same_everywhere
from mhsh.errors import UserError
from mhsh.storage.files import cache_folder, make_folder

CACHE_FOLDER = "compilation_cache"
_LARGEST, _ROOM = 4 << 30, 1 << 20  # bytes that the cache may have at a start, and that a start must find free
_MEASURED_SECONDS = 3600

# From the environment; they apply to everything that the process compiles.
_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")

# In the names of flags that change the time, the memory or what is written, but no number. Every
# other flag counts as one that changes numbers, also one that is not known here: a comparison that
# doubts too much says so, and one that doubts too little is wrong in silence.
_NO_NUMBERS = (
    *("async", "cache_dir", "command_buffer", "compilation_parallelism", "data_dir", "device_count", "dump"),
    *("memory_limit", "pipelined", "profile", "scheduler", "vmem_limit"),
)


def flags_in_force() -> dict[str, Any]:
    """The flags that run.json records. A step had flags of its own before schema 6."""
    return {"step": {}} | {name: os.environ.get(name, "") for name in _VARIABLES}


def numeric_flags() -> dict[str, str]:
    """The flags in force that may change numbers."""
    in_force: dict[str, str] = {}
    for argument in _words(" ".join(os.environ.get(name, "") for name in _VARIABLES)):
        flag, _, value = argument.lstrip("-").partition("=")
        in_force[flag] = value or "true"  # without a value it is switched on
    return {flag: in_force[flag] for flag in sorted(in_force) if not any(part in flag for part in _NO_NUMBERS)}


def _words(flags: str) -> list[str]:
    """The flags one by one. For XLA a quote in the middle of one, as in a path, is a character."""
    try:
        return shlex.split(flags)
    except ValueError:
        return flags.split()


def use_compilation_cache() -> str:
    """Makes jax keep compiled programs in the user's cache, where every run finds them. Returns a
    note for the user: empty, or that there is no cache.

    Programs from a cache are executed. So none is read from a run folder, which may be somebody
    else's, and only its owner may have access to the cache. If JAX_COMPILATION_CACHE_DIR is set,
    that cache is used instead.

    Of several processes only the first writes programs. Where the others do not see them, all
    compile: on GPUs they tune kernels together, and would wait for the one that need not.
    """
    # jax would keep only what takes a second to compile. The others of a run take as long together.
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return ""
    note = ""
    try:
        cache = private_cache(cache_folder())
        if _is_due(cache.parent / "measured"):
            _make_room(cache.parent, _LARGEST)
        identity = _identity(cache)
    except (UserError, OSError) as error:  # a cache can be done without
        cache, identity, note = None, "", f"no cache for compiled programs ({error}): every start compiles anew"
    if not is_same_everywhere("cache", identity):
        return note or "the processes of this run share no cache: every start compiles anew, until JAX_COMPILATION_CACHE_DIR is one"
    if cache:
        jax.config.update("jax_compilation_cache_dir", str(cache))
        compilation_cache.reset_cache()  # jax decides at its first compilation whether it has one
    return note


def private_cache(folder: Path) -> Path:
    """The cache in `folder` for programs of this kind of machine. Creates it if needed. Raises
    UserError where it is not a folder, it belongs to somebody else, or others have access to it.
    Raises OSError where it cannot be made, or written to.
    """
    cache = folder / CACHE_FOLDER
    make_folder(folder)
    with contextlib.suppress(FileExistsError):
        cache.mkdir(mode=0o700)
    status = cache.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UserError(f"{cache} is not a folder of yours alone, and its programs would be executed; remove it")
    programs = cache / machine_hash()
    make_folder(programs)
    with tempfile.TemporaryFile(dir=programs) as file:  # else jax warns for each program that the disk is full
        os.posix_fallocate(file.fileno(), 0, _ROOM)
    return programs


def _is_due(measured: Path) -> bool:
    """Whether the cache, of thousands of files, was not measured for an hour; then it is now."""
    with contextlib.suppress(FileNotFoundError):
        if 0 <= time.time() - measured.stat().st_mtime < _MEASURED_SECONDS:
            return False
    measured.touch()
    return True


def _make_room(cache: Path, largest: int) -> None:
    """Removes files until they have `largest` bytes together, and first those that were not read
    for longest. jax's own bound looks at every file of the cache for each program that it adds, and
    takes a lock for each that it reads.
    """
    files = []
    for path in cache.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # another process makes room
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                files.append((max(status.st_atime, status.st_mtime), status.st_size, path))
    excess = sum(size for _, size, _ in files) - largest
    for _, size, path in sorted(files):
        if excess <= 0:
            break
        path.unlink(missing_ok=True)
        excess -= size


def _identity(cache: Path) -> str:
    """A name that is equal for all processes that see this cache. It is the target of a link, as
    that appears at once, with its content.
    """
    link = cache / "identity"
    with contextlib.suppress(FileExistsError):
        link.symlink_to(uuid.uuid4().hex)
    return str(link.readlink())


def machine_hash() -> str:
    """A hash of the kind of CPU. jax's cache keys distinguish versions and accelerators, not CPUs:
    a program compiled for a newer CPU would crash.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    features = sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})
    return hashlib.sha256("\n".join([platform.machine(), *features]).encode()).hexdigest()[:12]
