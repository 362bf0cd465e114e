"""What a checkpoint consists of: its arrays (path, shape, dtype, checksum) and its files (size,
SHA-256). Both lists are saved with it and compared when it is restored.

Files are compared before any array is read: Orbax reads many arrays at once, and when one read
fails it leaves the others running.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from etils import epath

from mhsh.errors import UserError
from mhsh.files import is_remote, make_durable, parse_object
from mhsh.run_folder import COUNTERS_FILE, Counters
from mhsh.training.checkpoints.checksum import as_hex

Manifest = dict[str, dict[str, Any]]
FILE_MANIFEST = "files.json"
_BLOCK_BYTES = 1 << 22


def flatten(tree: Any) -> dict[str, Any]:
    """{path: leaf} in the tree's own order. A checkpoint holds such a plain dictionary."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def manifest(leaves: dict[str, Any], sums: dict[str, Any] | None = None) -> Manifest:
    """{path: {shape, dtype}} of arrays, real or abstract; with `sums`, their checksums too."""
    entries: Manifest = {path: {"shape": list(leaf.shape), "dtype": str(leaf.dtype)} for path, leaf in leaves.items()}
    if sums is not None:
        entries = {path: entry | {"checksum": as_hex(sums[path])} for path, entry in entries.items()}
    return entries


def compare_manifests(saved: Manifest, wanted: Manifest, where: epath.Path) -> None:
    """Raises UserError naming the first array that is missing, unexpected, or of another shape or
    dtype.
    """
    differences = [
        f"{path} is {_describe(saved.get(path))} there, {_describe(wanted.get(path))} in the config"
        for path in sorted(saved.keys() | wanted.keys())
        if saved.get(path) != wanted.get(path)
    ]
    if differences:
        more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
        raise UserError(f"the checkpoint {where} is of another model: {differences[0]}{more}; give the config it was saved with")


def write_file_manifest(folder: epath.Path, counters: Counters | None) -> None:
    """Writes `counters` (where there are any), lists their file and those in the subfolders of
    `folder` (Orbax's items) in files.json, and flushes all of them to the disk. Orbax flushes the
    arrays alone.

    Files in `folder` itself are Orbax's record of the save. Orbax still changes them afterwards.
    """
    if counters is not None:
        (folder / COUNTERS_FILE).write_text(json.dumps(counters._asdict()) + "\n")
    items = [path for path in folder.iterdir() if path.is_dir()]
    names = [*([] if counters is None else [COUNTERS_FILE]), *(name for item in items for name in _files(item))]
    files = {name: _size_and_digest(folder / name) for name in names}
    (folder / FILE_MANIFEST).write_text(json.dumps(files, indent=1, sort_keys=True) + "\n")
    make_durable(folder)


def find_damage(folder: epath.Path) -> str | None:
    """What is wrong with the listed files of `folder`, as half a line; None if nothing is.

    Files that are not listed are ignored. Sizes are compared before anything is read. A listed name
    that leads out of `folder`, or to something that is no file, is damage: nothing of it is opened.
    """
    try:
        listed = _listed_files(folder / FILE_MANIFEST)
    except (OSError, UserError, KeyError, TypeError, ValueError):
        return f"its list of files, {FILE_MANIFEST}, is missing or unreadable"
    for name, entry in listed.items():
        path = folder / name
        try:
            if not path.exists():
                return f"{name} is missing"
            if not _is_inside(path, folder):
                return f"{name}, which {FILE_MANIFEST} lists, is no file of it"
            size = path.stat().length
        except OSError as error:
            return f"{name} cannot be read ({error.strerror or error})"
        if size != entry["bytes"]:
            return f"{name} has {size} bytes instead of {entry['bytes']}"
    for name, entry in listed.items():
        try:
            if _size_and_digest(folder / name) != entry:
                return f"{name} is not what was saved"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror or error})"
    return None


def _listed_files(path: epath.Path) -> Manifest:
    """The entries of a files.json; raises where it is none."""
    if not is_remote(path) and not Path(path).is_file():
        raise ValueError("it is no regular file")
    listed: Manifest = parse_object(path.read_bytes(), str(path))
    for name, entry in listed.items():
        if set(entry) != {"bytes", "sha256"} or any(part in ("", ".", "..") for part in name.split("/")):
            raise ValueError(f"{name!r} is no name of a file in the checkpoint")
    return listed


def _is_inside(path: epath.Path, folder: epath.Path) -> bool:
    """Whether `path` is a regular file below `folder`, links followed."""
    if is_remote(path):
        return True  # objects have no links
    real = Path(os.path.realpath(path))
    return real.is_relative_to(os.path.realpath(folder)) and real.is_file()


def _describe(entry: dict[str, Any] | None) -> str:
    return "absent" if entry is None else f"{entry['dtype']}{entry['shape']}"


def _files(folder: epath.Path) -> Iterator[str]:
    """The files below a folder, by their path from the parent folder."""
    for path in folder.iterdir():  # walk() would leave the bucket out of the names
        below = _files(path) if path.is_dir() else [path.name]
        yield from (f"{folder.name}/{name}" for name in below)


def _size_and_digest(path: epath.Path) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
    return {"bytes": size, "sha256": digest.hexdigest()}
