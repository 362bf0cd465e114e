"""The proofs that a checkpoint is whole: the list of its files, and the checksums of its arrays.

Both are kept, as neither proves what the other does:

- `files.json` has the size and SHA-256 of every file. Process 0 compares it before any process
  opens an array, and all agree on its answer. Without it, a process that meets a damaged file would
  leave Orbax while the others wait for it there. It also covers counters.json.
- The manifest has a checksum of every array, computed on the devices before it is written and again
  after it was restored. It covers what lies between an array and its file: writing, and reading on
  another mesh. Hashes of files see none of that.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath
from jaxtyping import Array, UInt32

from mhsh.errors import UserError
from mhsh.storage.bucket import BucketRefusal, is_remote
from mhsh.storage.files import make_durable, parse_object, read_small_file
from mhsh.storage.outage import TRANSIENT, retry
from mhsh.storage.questions import file_status, files_below, is_dir, is_file, paths_in
from mhsh.storage.run_folder import COUNTERS_FILE, Counters

Manifest = dict[str, dict[str, Any]]
FILE_MANIFEST = "files.json"
# Errors of a file that is whole as far as is known.
OF_THIS_PROCESS = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_BLOCK_BYTES = 1 << 22

# Odd multipliers, as in multiplicative hashing (Knuth, TAOCP 3, section 6.4). Multiplying by an odd
# number is a bijection modulo 2^32, so one changed word always changes the first sum.
_SPREAD = (0x9E3779B1, 0x85EBCA77)
_WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}


def checksum(array: Array, first_row: UInt32[Array, ""] | int = 0) -> UInt32[Array, 2]:
    """Two 32-bit sums over the bits of all elements, weighted by position in the global array, of
    which `array` are the rows from `first_row` on. The checksums of shards add up to the whole's.

    Integer sums modulo 2^32 do not depend on the order of addition, so every sharding gives the
    same. They detect any change of a single element, and miss other changes with a probability of
    about 2^-64. They do not protect against deliberate changes.
    """
    if array.dtype == jnp.bool_:
        array = array.astype(jnp.uint8)
    # Eight bytes (where jax_enable_x64 is set) become two words, on a new last axis.
    bits = jax.lax.bitcast_convert_type(array, _WORDS[array.dtype.itemsize]).astype(jnp.uint32)
    first = jnp.asarray(first_row, jnp.uint32) * jnp.uint32(math.prod(bits.shape[1:]) % 2**32)
    position = jnp.broadcast_to(first, bits.shape)
    stride = 1
    for axis in reversed(range(bits.ndim)):
        position = position + jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis) * jnp.uint32(stride % 2**32)
        stride *= bits.shape[axis]
    weights = [position * jnp.uint32(2 * spread % 2**32) + jnp.uint32(spread) for spread in _SPREAD]
    mixed = (bits, bits ^ (bits >> 15) * jnp.uint32(_SPREAD[1]))
    return jnp.stack([jnp.sum(word * weight, dtype=jnp.uint32) for word, weight in zip(mixed, weights, strict=True)])


@jax.jit
def checksums(arrays: Mapping[str, Array]) -> dict[str, UInt32[Array, 2]]:
    """The checksum of every array of a flat dictionary."""
    jitted = jax.jit(checksum)  # traced and compiled once for all arrays of a shape
    return {name: jitted(array) for name, array in arrays.items()}


def hex_digits(sums: UInt32[Array, 2]) -> str:
    """A checksum as sixteen hexadecimal digits."""
    return "".join(f"{int(part):08x}" for part in sums)


def flatten(tree: Any) -> dict[str, Any]:
    """{path: leaf} in the tree's own order. A checkpoint holds such a plain dictionary."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def manifest(leaves: dict[str, Any], sums: dict[str, Any] | None = None) -> Manifest:
    """{path: {shape, dtype}} of arrays, real or abstract; with `sums`, their checksums too."""
    entries: Manifest = {path: {"shape": list(leaf.shape), "dtype": str(leaf.dtype)} for path, leaf in leaves.items()}
    return entries if sums is None else {path: entry | {"checksum": hex_digits(sums[path])} for path, entry in entries.items()}


def compare_manifests(saved: Manifest, wanted: Manifest, where: epath.Path) -> None:
    """Raises UserError naming the first array that is missing, unexpected, or of another shape or
    dtype.
    """

    def describe(path: str, arrays: Manifest) -> str:
        return f"{arrays[path]['dtype']}{arrays[path]['shape']}" if path in arrays else "absent"

    differing = [path for path in sorted(saved.keys() | wanted.keys()) if describe(path, saved) != describe(path, wanted)]
    if differing:
        first = f"{differing[0]} is {describe(differing[0], saved)} there, {describe(differing[0], wanted)} in the config"
        more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
        # jax_enable_x64 gives some arrays twice the bits.
        both = [path for path in differing if path in saved and path in wanted]
        wide = [["64" in arrays[path]["dtype"] for path in both] for arrays in (saved, wanted)]
        remedy = "give the config it was saved with" if wide[0] == wide[1] else "set JAX_ENABLE_X64 as it was when it was saved"
        raise UserError(f"the checkpoint {where} is of another model: {first}{more}; {remedy}")


def write_file_manifest(folder: epath.Path, counters: Counters | None) -> None:
    """Writes `counters` (where there are any), lists their file and those in the subfolders of
    `folder` (Orbax's items) in files.json, and flushes all of them to the disk. Orbax flushes the
    arrays alone.

    Files in `folder` itself are Orbax's record of the save. Orbax still changes them afterwards.
    """
    names = [str(file.relative_to(folder)) for item in filter(is_dir, paths_in(folder)) for file in files_below(item)]
    if counters is not None:
        (folder / COUNTERS_FILE).write_text(json.dumps(counters._asdict()) + "\n")
        names.append(COUNTERS_FILE)
    files = {name: _size_and_digest(folder / name) for name in names}
    (folder / FILE_MANIFEST).write_text(json.dumps(files, indent=1, sort_keys=True) + "\n")
    make_durable(folder)


def find_damage(folder: epath.Path) -> str | None:
    """The damage of the listed files of `folder`, as half a line; None if there is none.

    Files that are not listed are ignored. Sizes are compared before anything is read. A listed name
    that leads out of `folder`, or to what is not a file, is damage: nothing of it is opened.
    Raises UserError where a bucket is not for this login, or this process may not open a file.
    Raises Unavailable where the storage does not answer. Both say nothing of the files.
    """
    return _damage(folder) if is_remote(folder) else retry(lambda: _damage(folder), folder)


def _damage(folder: epath.Path) -> str | None:
    name, unlisted = "", f"its list of files, {FILE_MANIFEST}, is missing or unreadable"
    if not is_file(folder / FILE_MANIFEST):
        return unlisted
    try:
        listed = _listed_files(folder / FILE_MANIFEST)
        for name, entry in listed.items():
            path = folder / name
            status = file_status(path)
            if status is None:
                return f"{name} is missing"
            if not _is_inside(path, folder):
                return f"{name}, which {FILE_MANIFEST} lists, is not a file of it"
            if status.size != entry["bytes"]:
                return f"{name} has {status.size} bytes instead of {entry['bytes']}"
        for name, entry in listed.items():
            if _size_and_digest(folder / name) != entry:
                return f"{name} is not what was saved"
    except BucketRefusal:
        raise
    except OSError as error:
        if error.errno in TRANSIENT and not is_remote(folder):
            raise
        if error.errno in OF_THIS_PROCESS:
            raise unreadable_here(folder, f"{name or FILE_MANIFEST}: {error.strerror}") from error
        return f"{name} cannot be read ({error.strerror or error})" if name else unlisted
    except (UserError, KeyError, TypeError, ValueError):
        if name:
            raise
        return unlisted
    return None


def unreadable_here(folder: epath.Path, reason: str) -> UserError:
    """The error where this process cannot read a checkpoint that may be whole."""
    return UserError(
        f"the checkpoint {folder} cannot be read here ({reason}), which is no damage, and nothing was changed: free some memory, "
        "raise the limit (ulimit) or change the permissions, and run the same command again"
    )


def _listed_files(path: epath.Path) -> Manifest:
    """The entries of a files.json; raises where it is none."""
    listed: Manifest = parse_object(read_small_file(path), str(path))
    for name, entry in listed.items():
        if set(entry) != {"bytes", "sha256"} or any(part in ("", ".", "..") for part in name.split("/")):
            raise ValueError(f"{name!r} is not a name of a file in the checkpoint")
    return listed


def _is_inside(path: epath.Path, folder: epath.Path) -> bool:
    """Whether `path` is a regular file below `folder`, links followed."""
    if is_remote(path):
        return True  # objects have no links
    real = Path(os.path.realpath(path))
    return real.is_relative_to(os.path.realpath(folder)) and is_file(real)


def _size_and_digest(path: epath.Path) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
    return {"bytes": size, "sha256": digest.hexdigest()}
