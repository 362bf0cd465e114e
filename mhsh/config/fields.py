"""The fields of a config by path, such as model.num_layers: the schema's words on each one, and the
differences of two configs.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec.inspect as inspect

from mhsh.config.schema import DATA_SECTIONS, OBJECTIVES, Config, Section, to_dict
from mhsh.errors import UserError

# Also fields of every config file, and not of a config: where they are not 0 they change the shape,
# one after the other (config.shapes).
SHAPING = (
    "model.heads_per_layer",
    "model.layers_at_equal_size",
    "model.heads_at_equal_width",
    "model.kv_heads_at_equal_size",
)

_KINDS: Mapping[type, type] = {
    inspect.IntType: int,
    inspect.FloatType: float,
    inspect.BoolType: bool,
    inspect.StrType: str,
    inspect.LiteralType: str,
}

# How a value is written on the command line; a text is written as it is.
_WRITTEN: Mapping[type, str] = {int: "a whole number, in digits", float: "a number", bool: "true or false"}


@dataclasses.dataclass(frozen=True)
class Field:
    """One field of the schema."""

    path: str  # section.name
    kind: type  # int, float, bool or str
    annotation: Any  # the type with its bounds, as msgspec checks it
    default: int | float | bool | str
    allowed: str  # values beyond the type, for people; empty: any
    doc: str
    role: str
    row: str | None  # of the fairness ledger
    since: int  # version of the schema
    before: int | float | bool | str | None  # the value that stands for what was done without the field

    @property
    def name(self) -> str:
        """The path without its section."""
        return self.path.split(".")[1]

    @property
    def values(self) -> str:
        """The type and the bounds for people: `int, 1 or more`; of a choice the values alone."""
        if self.kind is str:
            return self.allowed or "str"
        return ", ".join(filter(None, [self.kind.__name__, self.allowed]))


def section_names() -> tuple[str, ...]:
    """model, data, optimizer, train, mesh: in the order of the schema."""
    return Config.__struct_fields__


@functools.cache
def section_class(section: str, objective: str) -> type[Section]:
    """The class of a section; that of the data section depends on the objective."""
    return DATA_SECTIONS[objective] if section == "data" else typing.get_type_hints(Config)[section]


@functools.cache
def fields_of(section: str, cls: type[Section]) -> Mapping[str, Field]:
    """The fields of a section by name, in the order of the schema."""
    annotations = typing.get_type_hints(cls, include_extras=True)
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    return {entry.name: _field(f"{section}.{entry.name}", entry, annotations[entry.name]) for entry in info.fields}


def all_fields(objective: str) -> Iterator[Field]:
    """Every field of a config with this objective, in the order of the schema."""
    for section in section_names():
        yield from fields_of(section, section_class(section, objective)).values()


def sections() -> Iterator[tuple[str, str, Sequence[Field]]]:
    """The heading, the meaning and the fields of every section; the data section once a kind."""
    for section in section_names():
        objectives: dict[type[Section], list[str]] = {}
        for objective in OBJECTIVES:
            objectives.setdefault(section_class(section, objective), []).append(objective)
        for cls, names in objectives.items():
            heading = section if len(objectives) == 1 else f"{section}, where model.objective is {' or '.join(names)}"
            yield heading, (cls.__doc__ or "").split("\n")[0], list(fields_of(section, cls).values())


def kind_of(path: str) -> type | None:
    """The type of the field `section.name`, which is the same in every data section; None where
    there is no such field.
    """
    if path in SHAPING:
        return int
    return next((field.kind for objective in OBJECTIVES for field in all_fields(objective) if field.path == path), None)


def parse_value(path: str, text: str) -> int | float | bool | str:
    """The text as a value of the type of the field `section.name`; `resolve.from_dict` checks
    whether it is allowed. A field of no section is taken as text. Raises UserError where it is of
    another type.
    """
    kind = kind_of(path) or str
    try:
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        raise UserError(f"{path} = {text!r}; allowed: {_WRITTEN[kind]}") from None


def flatten(config: Config | Mapping[str, Any]) -> dict[str, Any]:
    """The values of a config, or of the plain dictionary that a file holds, by path."""
    sections = to_dict(config) if isinstance(config, Config) else config
    return {
        f"{section}.{name}": value
        for section, values in sections.items()
        if isinstance(values, Mapping)
        for name, value in values.items()
    }


def differences(old: Config | Mapping[str, Any], new: Config | Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The two values of every field in which two configs differ, by path; None for one that a
    config does not have.
    """
    one, other = flatten(old), flatten(new)
    return {path: (one.get(path), other.get(path)) for path in one | other if one.get(path) != other.get(path)}


def format_differences(old: Config | Mapping[str, Any], new: Config | Mapping[str, Any], without: Collection[str] = ()) -> str:
    """`model.num_layers is 2 there, 4 here; ...`, where `new` is here, but for the fields of
    `without`; empty for equal configs.
    """
    differing = differences(old, new).items()
    return "; ".join(f"{path} is {one!r} there, {other!r} here" for path, (one, other) in differing if path not in without)


def free_fields(objective: str) -> Mapping[str, Field]:
    """The paths of the fields that may change while a run goes on, as they change none of its
    losses but by rounding: those of the roles `clock` and `bookkeeping`. The training seed may
    differ from run to run, not within one: it draws dropout, and tells a run from its replicates.
    """
    roles = ("clock", "bookkeeping")
    return {field.path: field for field in all_fields(objective) if field.role in roles and field.path != "train.seed"}


def _field(path: str, entry: inspect.Field, annotation: Any) -> Field:
    info: inspect.Type = entry.type
    schema: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    if isinstance(info, inspect.Metadata):
        schema, extra, info = info.extra_json_schema or {}, info.extra or {}, info.type
    return Field(
        path=path,
        kind=_KINDS[type(info)],
        annotation=annotation,
        default=entry.default,
        allowed=extra.get("allowed") or _allowed_values(info, annotation),
        doc=schema.get("description", ""),
        role=extra.get("role", ""),
        row=extra.get("row"),
        since=extra.get("since", 1),
        before=extra.get("before"),
    )


def _allowed_values(info: inspect.Type, annotation: Any) -> str:
    match info:
        case inspect.LiteralType():
            # Of the annotation, as msgspec sorts the values.
            return ", ".join(typing.get_args(typing.get_args(annotation)[0]))
        case inspect.IntType(ge=int(least)) | inspect.FloatType(ge=float(least) | int(least), lt=None):
            return f"{least:g} or more"
        case inspect.FloatType(ge=float(least) | int(least), lt=float(limit) | int(limit)):
            return f"from {least:g} to less than {limit:g}"
        case inspect.FloatType(gt=float(limit) | int(limit)):
            return f"more than {limit:g}"
    return ""
