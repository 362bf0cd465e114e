"""What the schema says of each field, for those who check, list or compare configs."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec.inspect as inspect

from mhsh.config.schema import DATA_SECTIONS, OBJECTIVES, Config, Section
from mhsh.errors import UserError

# Also fields of every config file, and not of a config: they change the shape (shapes.regroup and
# at_equal_size).
HEADS_PER_LAYER = "model.heads_per_layer"
LAYERS_AT_EQUAL_SIZE = "model.layers_at_equal_size"
SHAPING = (HEADS_PER_LAYER, LAYERS_AT_EQUAL_SIZE)

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
    allowed: str  # values beyond the type, for people; empty: any
    doc: str
    role: str
    row: str | None  # of the fairness ledger
    step: str
    added: Mapping[str, Any]  # {"before": value} where older config.json files lack the field, else empty

    @property
    def name(self) -> str:
        """The path without its section."""
        return self.path.split(".")[1]


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
    return {each.name: _field(f"{section}.{each.name}", each.type, annotations[each.name]) for each in info.fields}


def all_fields(objective: str) -> Iterator[Field]:
    """Every field of a config with this objective, in the order of the schema."""
    for section in section_names():
        yield from fields_of(section, section_class(section, objective)).values()


def kind_of(path: str) -> type | None:
    """The type of the field `section.name`, which every data section gives the same; None where
    there is no such field.
    """
    if path in SHAPING:
        return int
    return next((field.kind for objective in OBJECTIVES for field in all_fields(objective) if field.path == path), None)


def parse_value(path: str, text: str) -> int | float | bool | str:
    """The text as a value of the type of the field `section.name`; `resolve.from_dict` says whether
    it is allowed there. A field of no section is taken as text.

    Raises:
      UserError: it is of another type.
    """
    kind = kind_of(path) or str
    try:
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        raise UserError(f"{path} = {text!r}; allowed: {_WRITTEN[kind]}") from None


def _field(path: str, info: inspect.Type, annotation: Any) -> Field:
    schema: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    if isinstance(info, inspect.Metadata):
        schema, extra, info = info.extra_json_schema or {}, info.extra or {}, info.type
    return Field(
        path=path,
        kind=_KINDS[type(info)],
        annotation=annotation,
        allowed=extra.get("allowed") or _allowed(info, annotation),
        doc=schema.get("description", ""),
        role=extra.get("role", ""),
        row=extra.get("row"),
        step=extra.get("step", "same"),
        added={name: value for name, value in extra.items() if name == "before"},
    )


def _allowed(info: inspect.Type, annotation: Any) -> str:
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
