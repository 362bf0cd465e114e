"""A config is immutable, and no field of it goes unread."""

from __future__ import annotations

import ast
import typing
from pathlib import Path

import msgspec
import pytest

from mhsh import configs
from mhsh.config.resolve import from_dict
from mhsh.config.schema import Config, ModelConfig

ROOT = Path(__file__).resolve().parents[2]
BERT = from_dict(configs.load("bert").get_config("2l8h").to_dict())


def test_a_config_cannot_be_changed():
    with pytest.raises(AttributeError, match="immutable"):
        BERT.model.num_layers = 3  # type: ignore[misc]


def attributes_read(source: str) -> set[tuple[str, str]]:
    """(owner, attribute) of every attribute read in a source text; owner is the last name before
    the dot.
    """
    owners = {ast.Name: "id", ast.Attribute: "attr"}
    return {
        (getattr(node.value, owners[type(node.value)]), node.attr)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and type(node.value) in owners
    }


def unread(config_class: type, read: set[tuple[str, str]]) -> list[str]:
    """The section.field names of a config class that no (owner, attribute) reads; only a model is
    also called `config`.
    """
    return [
        f"{section}.{name}"
        for section, annotation in typing.get_type_hints(config_class).items()
        for cls in typing.get_args(annotation) or (annotation,)
        for name in cls.__struct_fields__
        if not any((owner, name) in read for owner in ({section, "config"} if section == "model" else {section}))
    ]


def test_every_field_of_every_section_is_read_outside_config():
    sources = [path.read_text() for path in (ROOT / "mhsh").rglob("*.py") if path.parent.name != "config"]
    assert len(sources) > 20
    assert unread(Config, set().union(*map(attributes_read, sources))) == []


def test_a_field_that_nobody_reads_would_be_found():
    model = msgspec.defstruct("Model", [("depth", int), ("colour", str)], bases=(ModelConfig,), frozen=True, kw_only=True)
    config = msgspec.defstruct("Extended", [("model", model), ("mesh", msgspec.defstruct("Mesh", ["data"]))])
    inherited = [f"model.{name}" for name in ModelConfig.__struct_fields__]
    read = attributes_read("x = config.model.depth\nconfig.colour = 1\nother.colour\nconfig.data\n" + "\n".join(inherited))
    assert unread(config, read) == ["model.colour", "mesh.data"]
