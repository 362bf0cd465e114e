"""The checkpoint of another library that a run was imported from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from etils import epath

from mhsh.storage.files import read_object
from mhsh.storage.questions import exists

# Beside config.json: the checkpoint's files with their SHA-256, and what was not taken from it.
IMPORTED_FILE = "imported.json"


def imported_checkpoint(folder: epath.Path, record: Mapping[str, Any]) -> str | None:
    """A digest of the checkpoint that the run in `folder` was imported from, and of what was taken
    of it; None: it was not imported. It is that of its run.json, the `record`, if it has one: a run
    that began before has not, and a branch or a copy may lack the file.
    """
    if "imported" in record:
        return record["imported"]
    if not exists(folder / IMPORTED_FILE):
        return None
    said = read_object(folder / IMPORTED_FILE)
    weights = said.get("sha256")
    files = sorted(map(str, weights.values() if isinstance(weights, dict) else [weights]))
    return hashlib.sha256(json.dumps([files, said.get("fresh"), said.get("labels")]).encode()).hexdigest()[:12]
