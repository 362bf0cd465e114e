"""A config is immutable, and no field of it goes unread."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mhsh import configs
from mhsh.config.fields import all_fields
from mhsh.config.resolve import from_dict
from mhsh.config.schema import OBJECTIVES

ROOT = Path(__file__).resolve().parents[2]
BERT = from_dict(configs.load("bert").get_config("2l8h").to_dict())


def test_a_config_cannot_be_changed():
    with pytest.raises(AttributeError, match="immutable"):
        BERT.model.num_layers = 3  # type: ignore[misc]


def test_every_field_of_every_section_is_read_outside_config():
    """As SECTION.FIELD in the source; a model's also as config.FIELD."""
    sources = [path.read_text() for path in (ROOT / "mhsh").rglob("*.py") if path.parent.name != "config"]
    nodes = [node for source in sources for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)]
    # The last name before the dot, and the one behind it.
    read = {(getattr(node.value, "attr", getattr(node.value, "id", "")), node.attr) for node in nodes}
    for field in (field for objective in OBJECTIVES for field in all_fields(objective)):
        section, name = field.path.split(".")
        assert (section, name) in read or (section == "model" and ("config", name) in read), field.path
