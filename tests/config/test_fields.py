"""The schema says everything of a field, and everything reads it there; how two configs differ."""

from __future__ import annotations

import ast
from typing import Annotated, Any, Literal, get_args

import msgspec
import pytest
from msgspec.structs import replace

from mhsh.cli.main import main
from mhsh.config import fields as config_fields
from mhsh.config import resolve
from mhsh.config.fields import (
    SHAPING,
    all_fields,
    differences,
    flatten,
    format_differences,
    kind_of,
    section_class,
)
from mhsh.config.schema import OBJECTIVES, ROLES, ModelConfig, Role, Row, loss, to_dict
from mhsh.configs import base
from mhsh.errors import UserError
from mhsh.sweep.axes import parse_axes
from mhsh.verdict.fairness import _settings
from tests.conftest import ROOT
from website import reference

EVERY_FIELD = list({(objective, field.path): field for objective in OBJECTIVES for field in all_fields(objective)}.values())


def test_every_field_has_a_role_and_a_line_of_documentation() -> None:
    assert len(EVERY_FIELD) > 200
    for field in EVERY_FIELD:
        assert field.doc and "\n" not in field.doc, field.path
        assert field.role in ROLES and field.row in (None, *get_args(Row)), field.path
    assert list(ROLES) == list(get_args(Role))


def test_every_field_that_makes_losses_unequal_is_in_the_ledger() -> None:
    assert not [field.path for field in EVERY_FIELD if field.role == "loss" and field.row is None]
    # What counts against the losses is `loss`, and what counts against the clock is `clock`.
    for row in get_args(Row):
        assert len({field.role for field in EVERY_FIELD if field.row == row}) == 1, row


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_config_file_has_every_field_with_its_default(objective: str) -> None:
    found = flatten(base.make_config(dict(model=dict(objective=objective))).to_dict())
    expected = {field.path: field.default for field in all_fields(objective)} | dict.fromkeys(SHAPING, 0)
    assert found == expected | {"model.objective": objective}


def test_every_default_is_allowed() -> None:
    assert [field for field in EVERY_FIELD if msgspec.convert(field.default, field.annotation) != field.default] == []
    assert {type(field.default) is field.kind for field in EVERY_FIELD} == {True}


def test_the_kind_of_a_path_does_not_depend_on_the_objective() -> None:
    assert all(kind_of(field.path) is field.kind for field in EVERY_FIELD)
    assert {kind_of(path) for path in SHAPING} == {int} and kind_of("model.colour") is None


@pytest.fixture
def coloured(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A config's fields where the schema has one more, model.colour."""
    colour = Annotated[Literal["red", "blue"], loss("the colour of the model", "dropout")]
    extended = msgspec.defstruct("Extended", [("colour", colour, "blue")], bases=(ModelConfig,), frozen=True, kw_only=True)

    def with_colour(section: str, objective: str) -> type:
        return extended if section == "model" else section_class(section, objective)

    for module in (config_fields, resolve, base):
        monkeypatch.setattr(module, "section_class", with_colour)
    return base.make_config().to_dict()


def test_a_new_field_is_one_line_in_the_schema(coloured: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    config = resolve.from_dict(coloured)
    assert to_dict(config)["model"]["colour"] == "blue"
    with pytest.raises(UserError, match=r"^model.colour = 'green'; allowed: red, blue$"):
        resolve.from_dict(coloured | {"model": coloured["model"] | {"colour": "green"}})
    with pytest.raises(UserError, match=r"^model.color = 'red' is not a field of the config; did you mean model.colour\?$"):
        resolve.from_dict(coloured | {"model": coloured["model"] | {"color": "red"}})
    assert _settings(config, "dropout").endswith(", colour blue")
    (axis,) = parse_axes(["colour=red,blue"], coloured)
    assert axis.values == ("red", "blue")
    row = "| `model.colour` | red, blue | blue | loss | the colour of the model |"
    assert row in reference.fields()
    assert main(["configs"]) == 0 and "  model.colour (red, blue; loss)\n      the colour of" in capsys.readouterr().out


def test_every_differing_field_with_both_values(make_config) -> None:
    config = make_config("bert", "2l8h")
    assert differences(config, to_dict(config)) == {} and format_differences(config, config) == ""
    there, here = make_config("bert", "2l8h"), make_config("bert", "4l4h", **{"optimizer.beta2": 0.98})
    assert differences(there, here) == {
        "model.num_layers": (2, 4),
        "model.num_heads": (8, 4),
        "model.mlp_dim": (256, 128),
        "model.layers_per_group": (1, 2),
        "optimizer.beta2": (0.999, 0.98),
    }
    assert format_differences(there, replace(there, train=replace(there.train, batch_size=16, start_from="run"))) == (
        "train.start_from is '' there, 'run' here; train.batch_size is 8 there, 16 here"
    )
    found = differences(config, make_config("translation", "tiny"))
    assert (found["data.mask_fraction"], found["data.max_length_ratio"]) == ((0.15, None), (None, 9.0))
    assert flatten({"model": {"num_layers": 3}, "version": 2}) == {"model.num_layers": 3}


def test_every_field_of_every_section_is_read_outside_config() -> None:
    """As SECTION.FIELD in the source; a model's also as config.FIELD."""
    sources = [path.read_text() for path in (ROOT / "mhsh").rglob("*.py") if path.parent.name != "config"]
    nodes = [node for source in sources for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)]
    # The last name before the dot, and the one behind it.
    read = {(getattr(node.value, "attr", getattr(node.value, "id", "")), node.attr) for node in nodes}
    for field in EVERY_FIELD:
        section, name = field.path.split(".")
        assert (section, name) in read or (section == "model" and ("config", name) in read), field.path
