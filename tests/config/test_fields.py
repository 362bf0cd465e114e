"""The schema says everything of a field, and everything reads it there."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

import msgspec
import pytest

from mhsh.config import fields as config_fields
from mhsh.config import reference, resolve
from mhsh.config.fields import SHAPING, Field, all_fields, fields_of, kind_of, section_class, section_names
from mhsh.config.roles import ROLES, Role, Row, Step, loss
from mhsh.config.schema import OBJECTIVES, Config, ModelConfig, Section, to_dict
from mhsh.configs import base
from mhsh.errors import UserError
from mhsh.sweep.axes import parse_axes
from mhsh.verdict.fairness import _settings

EVERY_FIELD = list({(objective, field.path): field for objective in OBJECTIVES for field in all_fields(objective)}.values())


def unexplained(field: Field) -> bool:
    """Whether the schema lacks something that it must say of every field."""
    one_line = bool(field.doc) and "\n" not in field.doc
    return not one_line or field.role not in ROLES or field.step not in get_args(Step) or field.row not in (None, *get_args(Row))


def test_every_field_has_a_role_and_a_line_of_documentation() -> None:
    assert len(EVERY_FIELD) > 200
    assert [field.path for field in EVERY_FIELD if unexplained(field)] == []
    assert list(ROLES) == list(get_args(Role))


def test_a_field_without_them_would_be_found() -> None:
    width = Annotated[int, msgspec.Meta(description="the width")]
    bare = msgspec.defstruct("Bare", [("depth", int), ("width", width)], bases=(Section,), frozen=True, kw_only=True)
    assert [field.path for field in fields_of("model", bare).values() if unexplained(field)] == ["model.depth", "model.width"]


def test_every_field_that_makes_losses_unequal_is_in_the_ledger() -> None:
    assert not [field.path for field in EVERY_FIELD if field.role == "loss" and field.row is None]
    # What counts against the losses is `loss`, and what counts against the clock is `clock`.
    for row in get_args(Row):
        assert len({field.role for field in EVERY_FIELD if field.row == row}) == 1, row


def test_only_what_changes_a_step_of_a_shape_is_refused_beside_a_bench() -> None:
    same = {"model.admin_omega", "model.depth_exponent", "model.base_layers"}
    assert {field.path for field in EVERY_FIELD if field.role == "shape" and field.step != "changes"} == same
    assert {field.step for field in EVERY_FIELD if field.role == "bookkeeping"} == {"same"}


def test_the_roles_of_a_few() -> None:
    roles = {field.path: field.role for field in EVERY_FIELD}
    expected = {
        "model.num_layers": "shape",
        "model.residual": "shape",
        "model.hidden_dropout": "loss",
        "data.sequence_length": "loss",
        "optimizer.learning_rate": "loss",
        "model.remat_policy": "clock",
        "mesh.fsdp": "clock",
        "train.log_interval": "bookkeeping",
        "train.seed": "bookkeeping",
    }
    assert {path: roles[path] for path in expected} == expected
    assert all(role == "loss" for path, role in roles.items() if path.startswith("optimizer."))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_base_has_every_field_once(objective: str) -> None:
    sections = base.make_config(dict(model=dict(objective=objective))).to_dict()
    paths = {f"{section}.{name}" for section, values in sections.items() for name in values}
    assert paths == {field.path for field in all_fields(objective)} | {*SHAPING}
    source = inspect.getsource(base)
    for name in (*base.MODEL, *base.OPTIMIZER, *base.TRAIN, *base.MESH):
        inside = [section for section in ("model", "optimizer", "train", "mesh") if name in sections[section]]
        assert source.count(f"\n    {name}=") == len(set(inside) - {"mesh"}) + (name in base.PRETRAINING_DATA), name


def test_kinds() -> None:
    assert kind_of("optimizer.learning_rate") is float
    assert kind_of("data.max_question_length") is int
    assert kind_of("model.next_sentence") is bool
    assert kind_of("model.residual") is str
    assert {kind_of(path) for path in SHAPING} == {int}
    assert kind_of("model.colour") is None
    # The kind does not depend on the objective.
    for field in EVERY_FIELD:
        assert kind_of(field.path) is field.kind


@pytest.fixture
def coloured(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A config's fields where the schema and the base have one field more, model.colour."""
    colour = Annotated[Literal["red", "blue"], loss("the colour of the model", "dropout", "named", before="red")]
    extended = msgspec.defstruct("Extended", [("colour", colour)], bases=(ModelConfig,), frozen=True, kw_only=True)

    def with_colour(section: str, objective: str) -> type:
        return extended if section == "model" else section_class(section, objective)

    for module in (config_fields, resolve, reference):
        monkeypatch.setattr(module, "section_class", with_colour)
    monkeypatch.setitem(base.MODEL, "colour", "blue")
    yield base.make_config().to_dict()


def test_a_new_field_is_one_line_in_the_schema_and_one_in_the_base(coloured: dict[str, Any]) -> None:
    config = resolve.from_dict(coloured)
    assert to_dict(config)["model"]["colour"] == "blue"
    with pytest.raises(UserError, match=r"^model.colour = 'green'; allowed: red, blue$"):
        resolve.from_dict(coloured | {"model": coloured["model"] | {"colour": "green"}})
    with pytest.raises(UserError, match=r"^model.color = 'red' is not a field of the config; did you mean model.colour\?$"):
        resolve.from_dict(coloured | {"model": coloured["model"] | {"color": "red"}})
    # An older run's config.json lacks it.
    old = {name: value for name, value in coloured["model"].items() if name != "colour"}
    assert to_dict(resolve.from_saved(coloured | {"model": old}))["model"]["colour"] == "red"
    assert _settings(config, "dropout").endswith(", colour blue")
    (axis,) = parse_axes(["colour=red,blue"], coloured)
    assert axis.values == ("red", "blue")
    row = "| `model.colour` | red, blue | loss | the colour of the model |"
    assert row in reference.markdown() and "model.colour (red, blue; loss)" in reference.text()


def test_the_sections_are_those_of_the_config() -> None:
    assert section_names() == ("model", "data", "optimizer", "train", "mesh") == Config.__struct_fields__
