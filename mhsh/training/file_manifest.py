"""The files of a checkpoint with their sizes and SHA-256: damage is found before any array is read
from them.

Orbax reads many arrays at once and, where one read fails, leaves the others to end by themselves; a
file that is missing or too short must not get that far.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from etils import epath

INVENTORY_FILE = "files.json"
_BLOCK_BYTES = 1 << 22


def write_inventory(folder: epath.Path) -> None:
    """Lists all files in the folders of `folder` (Orbax's items), as they are now, in its
    files.json.

    Those that lie in `folder` itself are Orbax's record of the save, to which it adds the time when
    all else is done.
    """
    items = [path for path in folder.iterdir() if path.is_dir()]
    files = {name: _describe(folder / name) for item in items for name in _files(item)}
    (folder / INVENTORY_FILE).write_text(json.dumps(files, indent=1, sort_keys=True) + "\n")


def damage(folder: epath.Path) -> str | None:
    """What is wrong with the files of `folder`, in half a line; None where all are as they were
    listed.

    Files that are not listed do no harm. Sizes are compared before anything is read.
    """
    try:
        listed: dict[str, dict[str, Any]] = json.loads((folder / INVENTORY_FILE).read_text())
        sizes = {name: entry["bytes"] for name, entry in listed.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"its list of files, {INVENTORY_FILE}, is missing or unreadable"
    for name, size in sizes.items():
        path = folder / name
        if not path.exists():
            return f"{name} is missing"
        found = path.stat().length
        if found != size:
            return f"{name} has {found} bytes instead of {size}"
    for name, entry in listed.items():
        try:
            if _describe(folder / name) != entry:
                return f"{name} is not what was saved"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror or error})"
    return None


def _files(folder: epath.Path) -> Iterator[str]:
    """The files below a folder, by their path from the folder above it."""
    for path in folder.iterdir():  # walk() would leave the bucket out of the names
        below = _files(path) if path.is_dir() else [path.name]
        yield from (f"{folder.name}/{name}" for name in below)


def _describe(path: epath.Path) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
    return {"bytes": size, "sha256": digest.hexdigest()}
