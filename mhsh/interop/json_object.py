"""JSON files that somebody else wrote: one object, strict UTF-8, no name twice in one object."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mhsh.errors import UserError


def read_object(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds. Raises UserError where it cannot be read or is something
    else.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    return parse_object(content, str(path))


def parse_object(content: bytes, what: str) -> dict[str, Any]:
    """The object that `content` is the JSON of; `what` it is, as an error shows it.

    Raises:
      UserError: it is not UTF-8, not JSON or not an object, is nested too deep, or gives one name
        twice, of which readers believe now the first, now the last.
    """
    try:
        value = json.loads(content.decode("utf-8"), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{what} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise UserError(f"{what} is damaged: it holds no object")
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"{name!r} stands there twice")
            seen.add(name)
    return value
