"""A config as a file holds it: its fields, and which schema and which mhsh wrote them. What an
older mhsh wrote is brought up to this schema, and what a newer one wrote is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from mhsh import __version__
from mhsh.config.fields import all_fields, fields_of
from mhsh.config.resolve import from_dict
from mhsh.config.schema import OBJECTIVES, SCHEMA_VERSION, Config, Section, to_dict
from mhsh.errors import UserError

WRITER: Mapping[str, int | str] = {"schema": SCHEMA_VERSION, "mhsh": __version__}  # in every file of mhsh's own


class Renaming(NamedTuple):
    """A field that has another path since a version of the schema."""

    since: int
    path: str  # before
    now: str


class Removal(NamedTuple):
    """A field that is gone since a version: mhsh does now what it did with `value` there. A file
    with another value is refused.
    """

    since: int
    path: str
    value: int | float | bool | str


CHANGES: tuple[Renaming | Removal, ...] = (  # every one so far
    Removal(6, "model.attention_implementation", "xla"),
    Removal(6, "optimizer.decay_shape", "linear"),
    Removal(6, "train.keep_every", 0),
    Removal(6, "train.xla_flags", "none"),
)

_said: set[str] = set()  # what was filled in, as it was said


def to_record(config: Config) -> dict[str, Any]:
    """The plain nested dictionary that `from_record` reads."""
    return {**WRITER, **to_dict(config)}


def from_record(record: Mapping[str, Any], where: str) -> Config:
    """The Config that was recorded. Fields that are newer than the record have the values that they
    had before they existed; a line on standard error says so, once a process. `where` is the file,
    for that line and for errors. Raises UserError where a newer mhsh wrote it, a field is wrong or
    missing, or one that is gone today has a value that mhsh no longer knows.
    """
    version = check_version(record, where)
    try:
        fields, filled = current_fields(record, version)
        config = from_dict(fields)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    said = f"schema {version}, before {', '.join(f'{path} = {value!r}' for path, value in filled.items())}"
    if filled and said not in _said:
        _said.add(said)
        print(f"mhsh: {where} is of {said}, which holds for it and all others of that schema", file=sys.stderr)
    return config


def current_fields(record: Mapping[str, Any], version: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sections that schema `version` recorded as they are today; and what was filled in, by path.
    Raises UserError where a field that is gone today has a value that mhsh no longer knows.
    """
    fields = {name: dict(value) if isinstance(value, Mapping) else value for name, value in record.items() if name not in WRITER}
    _apply_changes(fields, version)
    return fields, _fill(fields, version)


def check_version(record: Mapping[str, Any], where: str) -> int:
    """The version of the schema that wrote a file; 1 where it names none. Raises UserError where it
    is newer than this mhsh, or no version.
    """
    version, writer = record.get("schema", 1), record.get("mhsh")
    if type(version) is not int or version < 1:
        raise UserError(f"{where} is damaged: schema is {version!r:.40}; put it back from a copy")
    if version > SCHEMA_VERSION:
        newer = f"mhsh {writer}" if isinstance(writer, str) else "a newer mhsh"
        raise UserError(
            f"{where} was written by {newer:.40} with schema {version}, and this is mhsh {__version__} with schema "
            f"{SCHEMA_VERSION}: install that mhsh, or the newest"
        )
    return version


def identity(section: Section, name: str) -> dict[str, Any]:
    """The values that tell the section `name` from others, for hashes that outlive a version:
    without the newer fields that have the values of before.
    """
    known, values = fields_of(name, type(section)), to_dict(section)
    return {each: value for each, value in values.items() if known[each].since == 1 or value != known[each].before}


def current_path(path: str, version: int) -> str:
    """The path today of a field that a file of schema `version` names."""
    for change in sorted(CHANGES, key=lambda change: change.since):
        if isinstance(change, Renaming) and change.since > version and change.path == path:
            path = change.now
    return path


def current_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by path that changed while a run went on, by the paths of today. A field that is gone
    is left out: such a change decides no loss.
    """
    gone = {change.path for change in CHANGES if isinstance(change, Removal)}
    return {current_path(path, 0): value for path, value in values.items() if path not in gone}


def _apply_changes(fields: dict[str, Any], version: int) -> None:
    """Renames and removes what was renamed and removed since."""
    for change in sorted(CHANGES, key=lambda change: change.since):
        section, _, name = change.path.partition(".")
        values = fields.get(section)
        if change.since <= version or not isinstance(values, dict) or name not in values:
            continue
        value = values.pop(name)
        if isinstance(change, Removal):
            if value != change.value:
                raise UserError(
                    f"{change.path} = {value!r}; since schema {change.since} there is only {change.value!r}: open it with the mhsh "
                    "that wrote it"
                )
        else:
            section, _, name = change.now.partition(".")
            fields[section][name] = value


def _fill(fields: dict[str, Any], version: int) -> dict[str, Any]:
    """Gives the fields that are newer their values of before; returns those by path."""
    model = fields.get("model")
    objective = model.get("objective") if isinstance(model, dict) else None
    filled: dict[str, Any] = {}
    for field in all_fields(objective) if objective in OBJECTIVES else ():
        values = fields.get(field.path.partition(".")[0])
        if field.since > version and isinstance(values, dict) and field.name not in values:
            values[field.name] = filled[field.path] = field.before
    return filled
